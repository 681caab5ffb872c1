"""Check that docs/commands and docs/tutorials show the current output: run every command of a page and compare.

    python scripts/command_pages.py [--write] [PAGE...]

A page's ```console blocks hold commands, `$ …`, each followed by its output on stdout and stderr. All commands of a
page run in one shell, from top to bottom, in a temporary folder that starts as a copy of docs/commands/examples. A
command that fails is followed by `$ echo $?` and its exit code. Blocks are compared word for word, except for what
comments directly above them name:

    <!-- varies: numbers -->          times, sizes, rates, percentages, decimals, dates, hashes, ports, process ids
    <!-- varies: /REGEX/ -->          matches, in the page and in the output
    <!-- may be missing: /REGEX/ -->  the same, and it is optional
    <!-- file: NAME -->               the block below, in any language, is this file of the folder

Exit code 0: every page is up to date; 1: some are stale, stdout has the differences. `--write` updates stale pages and
leaves the others untouched. Output depends on the machine: pages are made without a GPU.
"""

from __future__ import annotations

import argparse
import difflib
import os
import re
import select
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

ROOT = Path(__file__).resolve().parent.parent
PAGES = ROOT / "docs" / "commands"
TUTORIALS = ROOT / "docs" / "tutorials"
EXAMPLES = PAGES / "examples"
# Shown in pages instead of the real folders.
HOME = "/home/you"
COMMAND_TIMEOUT_S = 240.0

_NOTES = r"(?P<notes>(?:<!-- (?:varies|may be missing|file): [^\n]* -->\n)*)"
_BLOCK = re.compile(r"^" + _NOTES + r"```(?P<language>\w+)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
_NOTE = re.compile(r"<!-- (varies|may be missing|file): (.*) -->")
_STATUS = "echo $?"

_NUMBER = r"[+-]?(?<![\w.])\d[\d,]*(?:\.\d+)*(?:e[+-]?\d+)?"
_UNIT = r"(?:ns|us|µs|ms|s|min|h|B|KiB|MiB|GiB|KB|MB|GB|[GT]FLOP|MiB/s|GiB/s|[GT]FLOP/s|x)"
_NUMBERS: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern, re.MULTILINE), mask)
    for pattern, mask in (
        (r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:?\d\d)?", "<date>"),
        (r"(127\.0\.0\.1|localhost):\d+", r"\1:<port>"),
        (r'"(port|pid)": \d+', r'"\1": <\1>'),
        (r"\b(?=[a-f]*\d)(?=\d*[a-f])[0-9a-f]{7,}\b", "<hash>"),
        (r"\[" + _NUMBER + r"%?, " + _NUMBER + r"%?\]", "[#, #]"),
        (_NUMBER + r" ?(?:%|/s\b|" + _UNIT + r"\b(?!-))", "#"),
        (r"[+-]?(?<![\w.])\d+(?:\.\d+){1,2}(?:e[+-]?\d+)?(?![\w.]*\w)", "#"),
        (r"\b\d{7,}\b", "#"),
        # Columns are as wide as their numbers.
        (r"(?<=\S) {2,}", " "),
        (r"^ +#", " #"),
    )
)

# Warnings that `omni` adds when other programs keep the machine busy, and lines of progress, `[30 s] ...`, of which a
# terminal shows one at a time and none at the end; no page is about them.
_BUSY = re.compile(
    r"^\[\d[\d.]* (?:s|min|h)\] [^\n]*\n|"
    r"^warning: (?:a noisy neighbour|the machine's host gave|the container's processor quota|the processor was "
    r"throttled)[^\n]*\n(?:\nhint: [^\n]*\n)?",
    re.MULTILINE,
)


class PageError(Exception):
    """A page that cannot be checked."""


@dataclass(frozen=True)
class Block:
    """A fenced block: the position of its body in the page, and the notes in the comments above it."""

    start: int
    end: int
    language: str
    body: str
    notes: tuple[tuple[str, str], ...]

    @property
    def file(self) -> str | None:
        return next((value for kind, value in self.notes if kind == "file"), None)


def blocks_of(text: str) -> list[Block]:
    """All blocks of a page that name a language; raises `PageError` if a note or a command would be skipped."""
    blocks = []
    for found in _BLOCK.finditer(text):
        notes = tuple((kind, value) for kind, value in _NOTE.findall(found["notes"]))
        blocks.append(Block(found.start("body"), found.end("body"), found["language"], found["body"], notes))
    for what, expected in (("```console", sum(block.language == "console" for block in blocks)),
                           ("<!-- ", sum(len(block.notes) for block in blocks))):  # fmt: skip
        if len(re.findall(f"^ *{what}", text, re.MULTILINE)) != expected:
            raise PageError(f"a line that begins with `{what.strip()}` is not part of a readable block")
    return blocks


def commands_of(body: str) -> Iterator[str]:
    """Yield the commands of a block, continuation lines included."""
    lines = iter(body.splitlines())
    for number, line in enumerate(lines):
        if not line.startswith("$ "):
            if number == 0:
                raise PageError(f"a console block begins with `{line}`, not with a command")
            continue
        command = line[2:]
        while command.endswith("\\"):
            command += "\n" + next(lines, "")
        yield command


class Shell:
    """A bash that runs one command after another in `folder`; everything it started ends with it."""

    def __init__(self, folder: Path) -> None:
        self._mark = f"command-pages-{os.getpid()}-{time.monotonic_ns()}"
        self._status = 0
        work, tools = folder / "work", folder / "bin"
        shutil.copytree(EXAMPLES, work) if EXAMPLES.is_dir() else work.mkdir()
        tools.mkdir()
        (folder / "tmp").mkdir()
        for name, arguments in (("omni", " -m omni_cli"), ("python", "")):
            tool = tools / name
            tool.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)}{arguments} "$@"\n')
            tool.chmod(0o755)
        self.work = work
        self._popen = subprocess.Popen(
            ["bash", "--noprofile", "--norc"],
            cwd=work,
            env=_environment(folder),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def __enter__(self) -> Shell:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            os.killpg(self._popen.pid, signal.SIGTERM)
            self._popen.communicate(timeout=10)
        except ProcessLookupError:
            pass
        except subprocess.TimeoutExpired:
            os.killpg(self._popen.pid, signal.SIGKILL)
            self._popen.communicate()

    def run(self, command: str) -> tuple[str, int]:
        """Run a command; return its output, with the machine's own folders renamed, and its exit status."""
        assert self._popen.stdin is not None
        script = (
            f"(exit {self._status}); eval {shlex.quote(command)} < /dev/null\nprintf '\\n%s %d\\n' {self._mark} $?\n"
        )
        self._popen.stdin.write(script.encode())
        self._popen.stdin.flush()
        printed, status = self._read(command)
        self._status = status
        return self._rename(printed), status

    def _read(self, command: str) -> tuple[str, int]:
        assert self._popen.stdout is not None
        ended = re.compile(rf"\n{self._mark} (\d+)\n\Z".encode())
        deadline, printed = time.monotonic() + COMMAND_TIMEOUT_S, b""
        while not (found := ended.search(printed)):
            ready, _, _ = select.select([self._popen.stdout], [], [], max(0.0, deadline - time.monotonic()))
            chunk = os.read(self._popen.stdout.fileno(), 65536) if ready else b""
            if not chunk:
                why = "the shell ended" if ready else f"still running after {COMMAND_TIMEOUT_S:.0f} s"
                raise PageError(f"`{command}`: {why}; output so far:\n{printed.decode(errors='replace')}")
            printed += chunk
        return printed[: found.start()].decode(errors="replace"), int(found[1])

    def _rename(self, printed: str) -> str:
        folders = [(self.work, HOME), (Path(sys.prefix), f"{HOME}/.venv"), (Path.home(), HOME)]
        for folder, name in folders:
            if len(folder.parts) > 1:
                printed = re.sub(re.escape(str(folder)) + r"(?![\w.-])", name, printed)
        return printed


def _environment(folder: Path) -> dict[str, str]:
    """This process's environment without what changes the output of commands; `omni` is this checkout's."""
    variables = ("OMNI_API_KEY", "OPENAI_API_KEY", "OPENAI_BASE_URL", "BASH_ENV")
    changes = ("COLUMNS", "LINES", "FORCE_COLOR", *variables)
    kept = {name: value for name, value in os.environ.items() if name not in changes}
    path = os.pathsep.join([str(ROOT), *filter(None, [kept.get("PYTHONPATH")])])
    own = {"PATH": f"{folder / 'bin'}{os.pathsep}{kept.get('PATH', os.defpath)}", "PYTHONPATH": path}
    return {**kept, **own, "TMPDIR": str(folder / "tmp"), "LC_ALL": "C.UTF-8", "TERM": "dumb", "no_proxy": "127.0.0.1"}


def run_block(shell: Shell, block: Block) -> str:
    """The block's current body."""
    lines: list[str] = []
    commands = list(commands_of(block.body))
    for command, following in zip(commands, [*commands[1:], None], strict=True):
        printed, status = shell.run(command)
        lines += [f"$ {command}", *_BUSY.sub("", printed).rstrip("\n").splitlines()]
        if status != 0 and following != _STATUS and command != _STATUS:
            lines += [f"$ {_STATUS}", str(status)]
            shell.run(f"(exit {status})")
    return "".join(f"{line.rstrip()}\n" for line in lines)


def masked(text: str, notes: Sequence[tuple[str, str]]) -> str:
    """The text without the parts that the page's notes allow to vary."""
    for kind, value in notes:
        if kind == "file" or value == "numbers":
            continue
        if len(value) < 3 or not value.startswith("/") or not value.endswith("/"):
            raise PageError(f"`{kind}: {value}` is neither `numbers` nor a /regular expression/")
        try:
            text = re.sub(value[1:-1], "<varies>" if kind == "varies" else "", text, flags=re.MULTILINE)
        except re.error as error:
            raise PageError(f"`{kind}: {value}`: {error}") from error
    if ("varies", "numbers") in notes:
        for pattern, mask in _NUMBERS:
            text = pattern.sub(mask, text)
    return text


def differences(block: Block, now: str, name: str) -> str:
    """A diff of the relevant differences, empty if the block is up to date."""
    shown, printed = masked(block.body, block.notes), masked(now, block.notes)
    if shown == printed:
        return ""
    lines = difflib.unified_diff(
        shown.splitlines(), printed.splitlines(), f"{name}: the page", f"{name}: printed now", lineterm="", n=2
    )
    return "\n".join(lines) + "\n"


def check_page(page: Path, *, write: bool = False) -> str:
    """Run a page's commands; return the differences, empty if there are none. Raises `PageError`."""
    text, position, parts, found = page.read_text(), 0, [], ""
    with tempfile.TemporaryDirectory(prefix="omni-page-") as folder, Shell(Path(folder)) as shell:
        for block in blocks_of(text):
            if block.file is not None:
                (shell.work / block.file).write_text(block.body)
            if block.language != "console":
                continue
            now = run_block(shell, block)
            line = text.count("\n", 0, block.start)
            found += differences(block, now, f"{page.name}:{line}")
            parts += [text[position : block.start], now]
            position = block.end
    if write and found:
        page.write_text("".join([*parts, text[position:]]))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("pages", nargs="*", type=Path, metavar="PAGE", help="default: all of docs/commands")
    parser.add_argument("--write", action="store_true", help="update stale pages with the current output")
    options = parser.parse_args()
    num_stale = 0
    for page in options.pages or sorted([*PAGES.glob("*.md"), *TUTORIALS.glob("*.md")]):
        began = time.monotonic()
        try:
            found = check_page(page, write=options.write)
        except PageError as error:
            found, options.write = f"{page.name}: {error}\n", False
        num_stale += bool(found)
        state = ("updated" if options.write else "stale") if found else "up to date"
        sys.stdout.write(f"{found}{page.name}: {state}, {time.monotonic() - began:.1f} s\n")
        sys.stdout.flush()
    if num_stale and not options.write:
        sys.stdout.write("\nUpdate the pages with: python scripts/command_pages.py --write\n")
    return 1 if num_stale and not options.write else 0


if __name__ == "__main__":
    sys.exit(main())
