"""`omni bisect --command` on real repositories, with programs that print durations which do not vary."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import omni_cli
from omni_cli.cli.app import run
from omni_cli.cli.bisect.report import get_failure, range_so_far
from omni_cli.measure.bench.bisect import BisectRecord, BisectResult
from omni_cli.measure.bench.commits import CommitInfo
from omni_cli.stats.bisection import Search, Trial

pytestmark = pytest.mark.slow

PROGRAM = ("--command", "cat seconds", "--time-budget", "0.5")


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=Ada", "-c", "user.email=ada@example.com", "-c", "commit.gpgsign=false")
    return subprocess.check_output(["git", "-C", str(folder), *identity, *arguments], text=True)


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten commits after the first one: number 7 is slower, number 5 prints no duration; and a change of its own."""
    folder = tmp_path_factory.mktemp("history")
    git(folder, "init", "--quiet", "--initial-branch=main")
    for number in range(11):
        seconds = "0.0105" if number >= 7 else "0.0100"
        (folder / "seconds").write_text("no\n" if number == 5 else f"a first line\n{seconds}\n")
        (folder / "number").write_text(str(number))
        git(folder, "add", ".")
        git(folder, "commit", "--quiet", "--message", f"change {number}")
        git(folder, "tag", f"c{number}")
    (folder / "seconds").write_text("changed since")
    return folder


@pytest.fixture
def repository(history: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = shutil.copytree(history, tmp_path / "project")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return folder


def search(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict]:
    code = run(["bisect", *arguments, "--json"])
    return code, json.loads(capsys.readouterr().out)


def changes(found: dict) -> list[str]:
    return [commit["subject"] for commit in found["result"]["commits"]]


def test_the_slower_commit_is_found_beside_one_that_does_not_run(
    repository: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    before = git(repository, "status", "--porcelain"), git(repository, "rev-parse", "HEAD")
    code, found = search(capsys, "c0", "main", *PROGRAM)
    assert code == 1 and found["schema"] == "omni.bisect/2"
    assert found["result"]["outcome"] == "found" and changes(found) == ["change 7"]
    assert found["result"]["change"] == pytest.approx(0.05) and found["result"]["confidence"] >= 0.95
    (skipped,) = [trial for trial in found["trials"] if trial["verdict"] == "failed"]
    assert skipped["b"] == 5 and "`no`" in skipped["reason"]
    assert (git(repository, "status", "--porcelain"), git(repository, "rev-parse", "HEAD")) == before
    assert (repository / "seconds").read_text() == "changed since", "the user's files are left alone"
    # The same search again measures nothing, and a comparison's record can be compared.
    records = sorted((tmp_path / "cache").rglob("0*.json"))
    times = [path.stat().st_mtime_ns for path in records]
    assert search(capsys, "c0", "main", *PROGRAM) == (code, found)
    assert [path.stat().st_mtime_ns for path in records] == times
    assert run(["compare", str(records[0]), "--max-regression", "2%"]) == 1
    capsys.readouterr()
    assert run(["bisect", "c0", "main", *PROGRAM]) == 1
    out = capsys.readouterr().out
    assert (
        "Found\n" in out and "change 7\n  Ada, " in out and "+5.00% [+5.00%, +5.00%] against the commit before" in out
    )


def test_no_slowdown(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, found = search(capsys, "c0", "c4", *PROGRAM)
    assert (code, found["result"]["outcome"], changes(found)) == (0, "no regression", [])
    code, found = search(capsys, "c0", "main", *PROGRAM, "--max-regression", "6%")
    assert (code, found["result"]["outcome"]) == (0, "no regression")


def test_commits_that_cannot_be_told_apart(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The build fails before and at the slower commit."""
    build = "grep -qv '[67]' number && touch built"
    code = run(["bisect", "c0", "main", *PROGRAM, "--build", build, "--json"])
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert (code, found["result"]["outcome"]) == (3, "narrowed")
    assert changes(found) == ["change 5", "change 6", "change 7", "change 8"]
    assert err.count("error: 4 commits are left") == 1
    reasons = {trial["b"]: trial["reason"] for trial in found["trials"] if trial["verdict"] == "failed"}
    assert "ended with 1" in reasons[6] and "ended with 1" in reasons[7]


@pytest.mark.parametrize(("duration", "named"), [("wall-time", True), ("last-line", False)])
def test_a_search_in_noise_names_the_measure_that_has_less(duration: str, named: bool) -> None:
    record = BisectRecord(
        created="", spec={"workload": {"duration": duration}}, commits=(), result=BisectResult(outcome="inconclusive")
    )
    failure = get_failure(record, Search(last=1, limit=0.02, budget_s=1.0))
    assert failure is not None and failure.hint is not None
    assert ("`--duration cpu-time`" in failure.hint) == named


@pytest.mark.parametrize(
    ("duration", "program", "seconds"),
    [
        ("last-line", "echo 3; echo 1e-2; echo", 0.01),
        ("json:stats.mean", """echo '{"stats": {"mean": 0.02}}'""", 0.02),
        ("json:runs.1", """echo log; echo '{"runs": [1, 0.03]}'""", 0.03),
    ],
)
def test_places_of_a_duration(
    duration: str, program: str, seconds: float, repository: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    options = ("--command", program, "--duration", duration, "--time-budget", "0.2")
    code, _ = search(capsys, "c0", "c1", *options)
    assert code == 0
    (record,) = (tmp_path / "cache").rglob("00-*.json")
    assert json.loads(record.read_text())["variants"][0]["summary"]["e2e_s"]["median"] == pytest.approx(seconds)


def test_wall_time(repository: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    options = ("--command", "sleep 0.01", "--duration", "wall-time", "--time-budget", "0.2", "--max-regression", "100%")
    run(["bisect", "c0", "c1", *options])
    (record,) = (tmp_path / "cache").rglob("00-*.json")
    assert json.loads(record.read_text())["variants"][0]["summary"]["e2e_s"]["median"] >= 0.01


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["c0", "nothing", *PROGRAM], 2, "`nothing` is not a commit of"),
        (["c0", "c0", *PROGRAM], 2, "are the same commit"),
        (["c4", "c0", *PROGRAM], 2, "swap them: `omni bisect c0 c4`"),
        (["c0", "c5", *PROGRAM], 6, "the last line of its output is not a number of seconds"),
        (["c5", "c6", *PROGRAM], 6, "the last line of its output is not a number of seconds"),
        (["c0", "c4", "--command", "echo oops >&2; exit 7"], 6, "the program ended with 7 (warming up): oops"),
        (["c0", "c4", "--command", " "], 2, "`--command` is empty"),
        (["c0", "c4", "--command", "echo -1"], 6, "is not a number of seconds; its last line is `-1`"),
        (["c0", "c4", *PROGRAM, "--duration", "first-line"], 2, "invalid value for `--duration`"),
        (["c0", "c4", *PROGRAM, "--duration", "json:a"], 6, "`json:a` of its output is not a number of seconds"),
        (["c0", "c4", *PROGRAM, "--build", "false"], 6, "`false` ended with 1"),
        (["c0", "c4", *PROGRAM, "--profile", "tiny-image"], 2, "`--profile` has no effect with `--command`"),
        (["c0", "c4", *PROGRAM, "--metric", "ttft_s"], 2, "`--metric` has no effect with `--command`"),
        (["c0", "c4", "--build", "make"], 2, "`--build` has no effect without `--command`"),
        (["c0", "c4", *PROGRAM, "--max-regression", "0"], 2, "a slowdown of 0 cannot be measured"),
        (["c0", "c4", "--command", "true", "--time-budget", "0"], 2, "invalid value for `--time-budget`"),
        (["c0", "c4", "--metric", "e2e_s", "--require-identical-outputs"], 2, "choose one of them"),
        (["c0", "c4", *PROGRAM, "--cache-dir", "number"], 2, "cannot write"),
        (["c0", *PROGRAM], 2, "missing argument `BAD`"),
    ],
)
def test_mistakes(
    arguments: list[str], code: int, message: str, repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["bisect", *arguments]) == code
    out, err = capsys.readouterr()
    assert out == "" and "Traceback" not in err and err.count("error: ") == 1
    assert message in err


def test_outside_of_a_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert run(["bisect", "c0", "c1", *PROGRAM]) == 2
    assert "is not in a git repository" in capsys.readouterr().err


@pytest.mark.parametrize("damage", ["", "{", '{"schema": "omni.bench/1"}', "changed"])
def test_a_broken_file_of_a_search(
    damage: str, repository: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    search(capsys, "c0", "c4", *PROGRAM)
    (path,) = (tmp_path / "cache").rglob("search.json")
    path.write_text(damage if damage != "changed" else path.read_text().replace("change 2", "change 3"))
    assert run(["bisect", "c0", "c4", *PROGRAM]) == 2
    assert "search.json" in capsys.readouterr().err


def started(arguments: Sequence[str], folder: Path) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(Path(omni_cli.__file__).parents[1])}
    command = [sys.executable, "-P", "-m", "omni_cli", "bisect", *arguments, "--json"]
    return subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_an_interrupt_keeps_the_comparisons_that_ended(repository: Path, tmp_path: Path) -> None:
    """The second comparison hangs until there is a file `go`."""
    ends = "grep -qE '^(0|10)$' number"
    command = f"{ends} || test -e {shlex.quote(str(tmp_path / 'go'))} || sleep 600; cat seconds"
    arguments = ("c0", "main", "--command", command, "--time-budget", "0.5")
    process = started(arguments, repository)
    while not (files := list((tmp_path / "cache").rglob("search.json"))):
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130 and "run the same command again to go on" in err, err
    kept = json.loads(files[0].read_text())["trials"]
    assert len(kept) == 1
    (tmp_path / "go").touch()
    # A worktree whose checkout was interrupted has no mark, and is made again.
    for mark in (tmp_path / "cache").rglob("*.built"):
        mark.unlink()
    again = started(arguments, repository)
    out, err = again.communicate(timeout=120)
    found = json.loads(out)
    assert again.returncode == 1 and changes(found) == ["change 7"], err
    assert found["trials"][: len(kept)] == kept


def test_a_search_that_runs_out_of_time_lists_the_likeliest_commits() -> None:
    commits = [CommitInfo(sha=f"{n:012x}", author="Ada", date="2026-11-20", subject=f"Change {n}") for n in range(17)]
    ends = Trial(a=0, b=16, verdict="regression", limit=0.02, alpha=0.01, change=0.05)
    assert range_so_far(Search(16, 0.02, 60.0, (ends,)), commits) is None
    fields: Any = {"verdict": "inconclusive", "limit": 0.025, "alpha": 0.35, "standard_error": 0.01}
    trials = [Trial(a=0, b=b, change=change, **fields) for b, change in ((8, 0.0), (12, 0.05), (10, 0.02))]
    told = range_so_far(Search(16, 0.02, 60.0, (ends, *trials)), commits)
    assert told is not None
    heading, *likely = told.splitlines()
    assert heading.startswith("so far: one of the 4 commits after 000000000008 up to 00000000000c, with 9")
    shares = [float(line.split()[1].rstrip("%")) for line in likely]
    assert len(likely) == 4 and shares == sorted(shares, reverse=True) and 90 < sum(shares) <= 100
