"""Progress on stderr: its content, when it is shown, and that it leaves nothing behind."""

from __future__ import annotations

import io
import os
import pty
import re
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from omni_cli.cli.terminal import live_display
from omni_cli.cli.terminal.live_display import LiveLine
from omni_cli.cli.terminal.progress import LineProgress, LiveProgress, ProgressDisplay, StageBoard, choose_progress
from omni_cli.requests.outputs import RequestResult, StageInfo, StageLoading, StageProgress
from omni_cli.serve.exchange import AccessLog

STAGES = [("thinker", "ar"), ("token2wav", "diffusion")]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def ready(name: str, kind: Any, load_s: float) -> StageLoading:
    return StageLoading(name, kind, StageInfo(name, kind, load_s, {"device": 0, "host": 0}))


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_board_follows_loading() -> None:
    clock = Clock()
    board = StageBoard(STAGES, 1, clock)
    board.handle(StageLoading("thinker", "ar"))
    clock.now += 2.5
    assert board.cells() == [
        ("thinker", "ar", "loading 2.50 s", "", ""),
        ("token2wav", "diffusion", "waiting", "", ""),
    ]
    board.handle(ready("thinker", "ar", 4.1))
    assert board.cells()[0] == ("thinker", "ar", "ready in 4.10 s", "", "")


def test_a_long_sound_tells_the_seconds_that_were_heard() -> None:
    board, stream = StageBoard(STAGES, 1, Clock()), io.StringIO()
    lines = LineProgress(stream)
    for heard_s in (20.0, 45.0, 58.0, 61.0, 600.0):
        event = StageProgress("0", "thinker", int(heard_s), None, "token", heard_s=(heard_s, 600.0))
        board.handle(event)
        lines.handle(event)
        lines.handle(StageProgress("1", "thinker", 3, None, "token", heard_s=(heard_s / 100, 6.0)))
    assert board.cells()[0][3] == "600/600 s heard"
    assert stream.getvalue() == "request 0: 61 of 600 s heard\n"


@pytest.mark.parametrize("display", ["none", "lines", "live"])
def test_every_display_prints_the_warnings_of_a_stage(display: str, capsys: pytest.CaptureFixture[str]) -> None:
    stream = {"none": io.StringIO(), "lines": io.StringIO(), "live": Terminal()}[display]
    shown = choose_progress(STAGES, 1, stream, quiet=display == "none", verbose=display == "lines")
    info = StageInfo("token2wav", "diffusion", 1.0, {}, {"dropped_arguments": ["eta"]})
    shown.handle(StageLoading("token2wav", "diffusion"))
    assert "warning" not in capsys.readouterr().err
    shown.handle(StageLoading("token2wav", "diffusion", info))
    shown.hide()
    assert "stage `token2wav`: this checkpoint's pipeline has no use for the profile's `eta`" in capsys.readouterr().err


def test_board_counts_work_and_rate_over_all_requests() -> None:
    clock = Clock()
    board = StageBoard(STAGES, 1, clock)
    board.handle(StageProgress("a", "thinker", 1, None, "token"))
    assert board.cells()[0][3:] == ("1 token", "")
    clock.now += 2.0
    board.handle(StageProgress("a", "thinker", 11, None, "token"))
    board.handle(StageProgress("b", "thinker", 10, 64, "token"))
    assert board.cells()[0][3:] == ("21 tokens", "10.0 tokens/s")
    board.handle(StageProgress("a", "token2wav", 8, 10, "step"))
    board.handle(StageProgress("b", "token2wav", 3, 10, "step"))
    clock.now += 1e-5
    board.handle(StageProgress("b", "token2wav", 10, 10, "step"))
    assert board.cells()[1][3:] == ("18/20 steps", "")


def test_board_counts_finished_requests() -> None:
    board = StageBoard(STAGES, 3)
    board.handle(RequestResult("a", (), ()))
    assert board.cells()[-1] == ("requests", "", "1/3 done", "", "")


@pytest.mark.parametrize(
    ("stream", "options", "expected"),
    [
        (Terminal(), {}, LiveProgress),
        (io.StringIO(), {}, ProgressDisplay),
        (Terminal(), {"quiet": True}, ProgressDisplay),
        (io.StringIO(), {"verbose": True}, LineProgress),
        (Terminal(), {"verbose": True}, LineProgress),
        (Terminal(), {"verbose": True, "quiet": True}, ProgressDisplay),
    ],
)
def test_choice(stream: io.StringIO, options: dict, expected: type, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    chosen = choose_progress(STAGES, 1, stream, **{"quiet": False, "verbose": False, **options})
    assert type(chosen) is expected


def test_dumb_terminals_get_no_live_display(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    assert type(choose_progress(STAGES, 1, Terminal(), quiet=False, verbose=False)) is ProgressDisplay


def test_lines_are_plain() -> None:
    stream = io.StringIO()
    progress = LineProgress(stream)
    progress.show()
    for event in (StageLoading("thinker", "ar"), ready("thinker", "ar", 4.1), RequestResult("7", (), ())):
        progress.handle(event)
    progress.hide()
    assert stream.getvalue() == ("stage thinker (ar): loading\nstage thinker (ar): ready in 4.10 s\nrequest 7: done\n")


@pytest.fixture
def terminal() -> Iterator[tuple[int, io.TextIOWrapper]]:
    """A real terminal: (descriptor of what it receives, stream to write to)."""
    parent, child = pty.openpty()
    with os.fdopen(child, "w") as stream:
        yield parent, stream
    os.close(parent)


def read_now(descriptor: int) -> str:
    """Read what is available, without waiting for more."""
    try:
        return os.read(descriptor, 65536).decode()
    except BlockingIOError:
        return ""


@pytest.mark.parametrize("no_colour", [False, True])
def test_live_display_on_a_terminal(
    terminal: tuple[int, io.TextIOWrapper], no_colour: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent, stream = terminal
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("NO_COLOR", "1") if no_colour else monkeypatch.delenv("NO_COLOR", raising=False)
    progress = choose_progress(STAGES, 1, stream, quiet=False, verbose=False)
    progress.show()
    progress.show()
    progress.handle(ready("thinker", "ar", 4.1))
    progress.hide()
    progress.hide()
    os.set_blocking(parent, False)
    shown = "".join(iter(lambda: read_now(parent), ""))
    assert "ready in 4.10 s" in shown
    assert shown.count("\x1b[?25l") == shown.count("\x1b[?25h") == 1, "the cursor is hidden once and shown again"
    assert "\x1b[2K" in shown.rpartition("ready in")[2], "what was drawn is erased"
    assert not any(f"\x1b[{code}m" in shown for code in range(30, 38))


def test_lines_on_stderr_go_above_a_live_display(
    terminal: tuple[int, io.TextIOWrapper], monkeypatch: pytest.MonkeyPatch
) -> None:
    parent, stream = terminal
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setattr(sys, "stderr", stream)
    line = LiveLine(stream, quiet=False, verbose=False)
    line.say("halfway")
    AccessLog().event("engine_lost")
    line.hide()
    assert sys.stderr is stream
    os.set_blocking(parent, False)
    before, _, after = "".join(iter(lambda: read_now(parent), "")).partition("engine_lost")
    assert "halfway" in before and "\x1b[2K" in before.rpartition("halfway")[2], "erased first"
    assert "halfway" in after, "and drawn again below the line"


def test_without_a_terminal_lines_are_few(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(live_display, "EVERY_S", 0.02)
    line = LiveLine(io.StringIO(), quiet=False, verbose=False)
    line.say("two variants")
    line.say("loading")
    line.step("a: ready")
    line.say(lambda: "block 1/8, 30 s left at most")
    shown = ""
    for _ in range(500):
        shown += capsys.readouterr().err
        if shown.count("block 1/8") > 1:
            break
        time.sleep(0.01)
    line.end()
    lines = [re.sub(r"^\[[\d.]+ s\] ", "", line) for line in shown.splitlines()]
    assert lines[0] == "two variants" and lines.count("a: ready") >= 1
    assert lines[-2:] == ["block 1/8, 30 s left at most"] * 2, "again and again, although nothing new happens"


def test_a_quiet_line_computes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    line = LiveLine(io.StringIO(), quiet=True, verbose=False)
    line.say(lambda: pytest.fail("computed for nobody"))
    line.step("ready")
    line.end()
    assert capsys.readouterr().err == ""
