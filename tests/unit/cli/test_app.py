"""The command-line shell: its imports, the format of every kind of failure, and the exit codes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer

from omni_cli import __version__
from omni_cli.cli import app, lazy
from omni_cli.cli.options import JsonOption, SeedOption, TimeoutOption, VerboseOption
from omni_cli.cli.terminal import console
from omni_cli.core.errors import DeadlineError, ExitCode, InputError, OmniError, StageError

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command line; (exit code, stdout, stderr)."""

    def run_command_line(*argv: str) -> tuple[int, str, str]:
        code = app.run(argv)
        captured = capsys.readouterr()
        return int(code), captured.out, captured.err

    return run_command_line


FAILURES: dict[str, Callable[[], BaseException]] = {
    "plain": lambda: OmniError("it broke", hint="try again"),
    "input": lambda: InputError("empty prompt"),
    "stage": lambda: StageError("no memory", stage="thinker", request_id="7", details="log of the worker"),
    "deadline": lambda: DeadlineError("10 s are over"),
    "bug": lambda: ZeroDivisionError("division by zero"),
    "worker": lambda: BrokenPipeError(32, "Broken pipe"),
    "interrupt": KeyboardInterrupt,
    "abort": typer.Abort,
    "exit": lambda: typer.Exit(4),
}


def fail(
    how: Annotated[str, typer.Argument()],
    number: Annotated[int, typer.Option("--number", min=1)] = 1,
    seed: SeedOption = None,
    timeout: TimeoutOption = None,
    print_first: Annotated[bool, typer.Option()] = False,
    as_json: JsonOption = False,
    verbose: VerboseOption = False,
) -> int | None:
    """Raise the error of the test."""
    if print_first:
        console.print_json({"schema": "test/1"})
    if how == "code":
        return ExitCode.INCONCLUSIVE
    if how in FAILURES:
        raise FAILURES[how]()
    return None


@pytest.fixture(autouse=True)
def fail_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(app._Commands.lazy_commands, "fail", "Fail.")
    monkeypatch.setitem(sys.modules, "omni_cli.cli.fail", sys.modules[__name__])


def test_version_and_help(run: Run) -> None:
    code, out, err = run("--version")
    assert (code, err) == (0, "") and re.fullmatch(rf"omni {re.escape(__version__)}( \([0-9a-f]{{12}}\))?\n", out)
    code, out, err = run("--help")
    assert (code, err) == (0, "")
    for command in ("generate", "profiles", "models", "doctor"):
        assert f"\n  {command} " in out
    assert run("-h") == (0, out, "")


def test_no_command_shows_the_help_as_a_usage_error(run: Run) -> None:
    code, out, err = run()
    assert (code, out) == (2, "")
    assert err.startswith("Usage: omni ")
    code, out, err = run("--json", "profiles")
    assert code == 2


@pytest.mark.parametrize(
    ("argv", "error", "hint"),
    [
        (["profils"], "unknown command `profils`", "did you mean `profiles`?"),
        (["xyz"], "unknown command `xyz`", "see `omni --help`"),
        (["list"], "unknown command `list`", "did you mean `omni models list`?"),
        (["version"], "unknown command `version`", "did you mean `omni --version`?"),
        (["generate", "-m", "x"], "unknown option `-m`", "did you mean `--model`?"),
        (["models", "rm", "x"], "unknown command `rm` of `omni models`", "did you mean `omni models remove`?"),
        (["profiles", "ls"], "unknown command `ls` of `omni profiles`", "did you mean `omni profiles list`?"),
        (["--versoin"], "unknown option `--versoin`", "did you mean `--version`?"),
        (["--json"], "unknown option `--json`", "options of a command follow its name; see `omni --help`"),
        (["fail", "ok", "--sed", "1"], "unknown option `--sed`", "did you mean `--seed`?"),
        (["fail", "ok", "-Z"], "unknown option `-Z`", "see `omni fail --help`"),
        (["fail"], "missing argument `HOW`", "see `omni fail --help`"),
        (["fail", "a", "b"], "got unexpected extra argument(s) (b)", "see `omni fail --help`"),
        (["fail", "ok", "--seed"], "option `--seed` requires an argument", None),
        (["fail", "ok", "--seed", "x"], "invalid value for `--seed`: ", None),
        (["fail", "ok", "--seed", "1", "--seed", "1"], "`--seed` is given twice", "remove one of them"),
        (["fail", "ok", "--number", "0"], "invalid value for `--number`: ", None),
        (
            ["fail", "ok", "--timeout", "nan"],
            "invalid value for `--timeout`: expected a number of seconds greater than 0",
            "see `omni fail --help`",
        ),
        (["profiles", "lst"], "no such command `lst`. Did you mean `list`?", "see `omni profiles --help`"),
    ],
)
def test_usage_errors(run: Run, argv: list[str], error: str, hint: str | None) -> None:
    code, out, err = run(*argv)
    assert code == ExitCode.USAGE
    assert err.startswith(f"error: {error}")
    assert "Traceback" not in err
    if hint is not None:
        assert err == f"error: {error}\n\nhint: {hint}\n"
    assert (json.loads(out)["error"]["kind"] == "usage") if "--json" in argv else out == ""


@pytest.mark.parametrize(
    ("option", "meant"),
    [
        ("--steps", "`--num-inference-steps`"),
        ("--size", "`--width PIXELS --height PIXELS`"),
        ("--true-cfg-scale", "`--arg true_cfg_scale=VALUE`"),
    ],
)
def test_other_words_for_an_option_get_a_suggestion(run: Run, option: str, meant: str) -> None:
    code, _, err = run("generate", "hello", option, "1")
    assert code == ExitCode.USAGE and f"hint: did you mean {meant}?" in err


@pytest.mark.parametrize(
    ("how", "code", "kind", "error"),
    [
        ("plain", 6, "run", "error: it broke\n\nhint: try again\n"),
        ("input", 2, "input", "error: empty prompt\n"),
        ("stage", 6, "stage", "error: no memory\n"),
        ("deadline", 6, "deadline", "error: 10 s are over\n"),
        ("interrupt", 130, "interrupted", "error: interrupted\n"),
        ("abort", 130, "interrupted", "error: interrupted\n"),
        (
            "bug",
            6,
            "internal",
            "error: internal error: ZeroDivisionError: division by zero\n\n"
            "hint: this is a bug in omni; run it again with `-v` and report the output\n",
        ),
    ],
)
def test_failures_of_a_command(run: Run, how: str, code: int, kind: str, error: str) -> None:
    assert run("fail", how) == (code, "", error)
    json_code, out, err = run("fail", how, "--json")
    assert (json_code, err) == (code, error)
    document = json.loads(out)
    assert document["schema"] == "omni.error/1"
    assert document["error"]["kind"] == kind
    assert document["error"]["exit_code"] == code
    assert f"error: {document['error']['message']}\n" in error
    if how == "stage":
        assert (document["error"]["stage"], document["error"]["request_id"]) == ("thinker", "7")


def test_another_broken_pipe_is_not_mistaken_for_a_closed_stdout(run: Run) -> None:
    code, _, err = run("fail", "worker")
    assert code == 6
    assert err.startswith("error: internal error: BrokenPipeError: ")


def test_exit_codes_of_commands_that_end_in_order(run: Run) -> None:
    assert run("fail", "ok") == (0, "", "")
    assert run("fail", "exit") == (4, "", "")
    assert run("fail", "code") == (3, "", "")


def test_a_traceback_and_details_come_with_v_only(run: Run) -> None:
    for how, name in (("bug", "ZeroDivisionError"), ("stage", "StageError")):
        code, out, err = run("fail", how, "-v")
        assert "Traceback (most recent call last)" in err
        assert f"{name}: " in err
        assert (code, out) == (6, "")
    assert "log of the worker" in run("fail", "stage", "--verbose")[2]
    assert "log of the worker" not in run("fail", "stage")[2]


def test_a_document_that_was_printed_stays_the_only_one(run: Run) -> None:
    code, out, _ = run("fail", "plain", "--json", "--print-first")
    assert code == 6
    assert json.loads(out) == {"schema": "test/1"}
    # The next command of the same process starts again.
    assert json.loads(run("fail", "plain", "--json")[1])["error"]["message"] == "it broke"


def test_json_in_an_argument_after_two_dashes_is_data(run: Run) -> None:
    assert run("fail", "--", "--json") == (0, "", "")


@pytest.mark.slow
class TestProcess:
    """Behaviour that only a real process shows."""

    def start(self, *argv: str, **options: Any) -> subprocess.CompletedProcess[str]:
        options.setdefault("stderr", subprocess.PIPE)
        return subprocess.run([sys.executable, "-m", "omni_cli", *argv], text=True, **options)

    def test_the_exit_code_arrives(self) -> None:
        done = self.start("profils", stdout=subprocess.PIPE)
        assert (done.returncode, done.stdout) == (2, "")

    def test_help_imports_nothing_that_it_does_not_need(self) -> None:
        code = (
            "import sys; from omni_cli.cli.app import run; run(['--help']); "
            "print([m for m in ('rich', 'pydantic', 'yaml', 'numpy', 'torch', 'vllm') if m in sys.modules])"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert done.stdout.splitlines()[-1] == "[]"

    def test_the_end_lists_nothing_that_libraries_leave(self) -> None:
        pytest.importorskip("triton")
        code = "import triton._C.libtriton; from omni_cli.cli.app import main; main()"
        done = subprocess.run([sys.executable, "-c", code, "--version"], capture_output=True, text=True, check=True)
        assert done.stdout.startswith("omni") and done.stderr == ""

    def test_a_closed_pipe_is_no_error(self) -> None:
        reader = subprocess.Popen(["true"], stdin=subprocess.PIPE)
        reader.wait()
        done = self.start("profiles", "list", stdout=reader.stdin)
        reader.stdin.close()
        assert done.stderr == ""
        assert done.returncode == 141

    @pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
    def test_a_full_disk_behind_stdout_is_one(self) -> None:
        with Path("/dev/full").open("w") as full:
            done = self.start("profiles", "list", stdout=full)
        assert done.stderr == "error: cannot write to standard output: No space left on device\n"
        assert done.returncode == 2

    @pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
    def test_a_full_disk_behind_stderr_is_ignored(self) -> None:
        with Path("/dev/full").open("w") as full:
            assert self.start("profiles", "list", "--bogus", stderr=full).returncode == 2
            assert self.start("profiles", "list", "-v", stderr=full).returncode == 0

    @pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
    def test_streams_that_are_closed_lead_nowhere(self, closed: str) -> None:
        command = f'exec "$0" -m omni_cli profiles list {closed}'
        done = subprocess.run(
            ["sh", "-c", command, sys.executable], capture_output=True, text=True, cwd=Path(app.__file__).parents[2]
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert bool(done.stdout) == (" >&-" not in f" {closed}")

    def test_any_argument_can_be_shown_in_any_encoding(self) -> None:
        env = {"PYTHONIOENCODING": "ascii", "PATH": "/usr/bin:/bin"}
        done = subprocess.run(
            [sys.executable, "-m", "omni_cli", b"caf\xc3\xa9\xff", "--json"],
            capture_output=True,
            env=env,
            cwd=Path(app.__file__).parents[2],
        )
        assert done.returncode == 2
        assert json.loads(done.stdout)["error"]["kind"] == "usage"
        assert b"Traceback" not in done.stderr


class Terminal:
    """A stream that says it is a terminal."""

    def __init__(self) -> None:
        self.text = ""

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> None:
        self.text += text


def test_colours_on_a_terminal_only_and_never_with_no_color(monkeypatch: pytest.MonkeyPatch) -> None:
    def shown(**environment: str) -> str:
        for name in ("NO_COLOR", "TERM"):
            monkeypatch.delenv(name, raising=False)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        terminal = Terminal()
        monkeypatch.setattr(sys, "stderr", terminal)
        console.print_error(OmniError("it broke", hint="try again"))
        return terminal.text

    plain = "error: it broke\n\nhint: try again\n"
    assert shown() == "\x1b[1;31merror:\x1b[0m it broke\n\n\x1b[1;36mhint:\x1b[0m try again\n"
    assert shown(NO_COLOR="1") == plain
    assert shown(TERM="dumb") == plain


def test_json_rejects_values_without_a_json_form(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        console.print_json({"x": float("nan")})
    assert capsys.readouterr().out == ""


SWALLOWED = """
import os, signal, time
from omni_cli.cli.terminal import interrupts

class Finalized:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)

interrupts.install()
try:
    Finalized()
    time.sleep(10)
    print("swallowed")
except KeyboardInterrupt:
    print("interrupted")
"""


def test_an_interrupt_in_a_finalizer_comes_again() -> None:
    ended = subprocess.run([sys.executable, "-c", SWALLOWED], capture_output=True, text=True, timeout=60, check=True)
    assert (ended.stdout, ended.stderr) == ("interrupted\n", "")


@pytest.mark.parametrize("number", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_a_signal_before_anything_is_imported(number: str) -> None:
    early = "import os, signal, omni_cli.__main__ as start\n"
    early += f"start._open_closed_streams = lambda: os.kill(os.getpid(), signal.{number})\nstart.main()"
    ended = subprocess.run([sys.executable, "-c", early], capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stderr) == (130, "error: interrupted\n")


@pytest.mark.parametrize("text", ["7", "-7", " 7 ", "7.0", "x", "99999999999999999999"])
def test_a_number_is_converted_or_refused_as_by_typer(text: str, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(lazy, "_NUMBERS", {})
        expected = run("fail", "code", "--number", text)
    assert run("fail", "code", "--number", text) == expected
