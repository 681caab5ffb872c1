"""Progress of a run on stderr: a live table on a terminal, plain lines with `-v`, else nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TextIO

from msgspec import Struct

from omni_cli.cli.terminal import console
from omni_cli.cli.terminal.live_display import LiveDisplay, progress_mode
from omni_cli.report.tables import memory_lines
from omni_cli.report.units import count, seconds
from omni_cli.requests.outputs import MemoryPlanned, RequestResult, StageLoading, StageProgress

if TYPE_CHECKING:
    from rich.table import Table

    from omni_cli.requests.events import Event


# Reports of fast steps arrive together.
_MIN_RATED_S = 0.1
# Of longer sounds, a line tells each tenth that has been heard.
_LONG_SOUND_S = 60.0


class ProgressDisplay:
    """Shows events; this one only the warnings of loaded stages, as every display does.

    Between `hide` and `show`, other lines may be written to the terminal.
    """

    def handle(self, event: Event) -> None:
        print_stage_warnings(event)

    def show(self) -> None:
        pass

    def hide(self) -> None:
        pass


def print_stage_warnings(event: Event) -> None:
    """Print the differences between a loaded stage and its profile."""
    if isinstance(event, StageLoading) and event.info is not None:
        for warning in event.info.warnings:
            console.print_warning(warning)


def say_loading(event: Event, say: Callable[[str], None]) -> None:
    """Print the warnings of a stage that is loaded, and say that it is, or that its loading begins."""
    if isinstance(event, StageLoading):
        print_stage_warnings(event)
        say(f"stage {event.name} {_loading_state(event)}")


def _loading_state(event: StageLoading) -> str:
    return "loading" if event.info is None else f"ready in {seconds(event.info.load_s)}"


def choose_progress(
    stages: Sequence[tuple[str, str]], num_requests: int, stream: TextIO, *, quiet: bool, verbose: bool
) -> ProgressDisplay:
    """Return the display for `stream`; `stages` are (name, kind) in order."""
    match progress_mode(stream, quiet=quiet, verbose=verbose):
        case "live":
            return LiveProgress(StageBoard(stages, num_requests), stream)
        case "lines":
            return LineProgress(stream)
        case "few lines" | "none":
            return ProgressDisplay()


class LineProgress(ProgressDisplay):
    """One plain line per event."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._tenths: dict[str, int] = {}

    def handle(self, event: Event) -> None:
        super().handle(event)
        if isinstance(event, MemoryPlanned):
            self._write("\n".join(["memory, as planned:", *memory_lines(event.stages)]))
        elif isinstance(event, StageLoading):
            self._write(f"stage {event.name} ({event.kind}): {_loading_state(event)}")
        elif isinstance(event, StageProgress) and event.heard_s is not None:
            done_s, total_s = event.heard_s
            tenth = int(10 * done_s / total_s)
            if total_s >= _LONG_SOUND_S and self._tenths.get(event.request_id, 0) < tenth < 10:
                self._tenths[event.request_id] = tenth
                self._write(f"request {event.request_id}: {done_s:.0f} of {total_s:.0f} s heard")
        elif isinstance(event, RequestResult):
            self._write(f"request {event.request_id}: {'done' if event.error is None else 'failed'}")

    def _write(self, line: str) -> None:
        self._stream.write(line + "\n")
        self._stream.flush()


class StageRow(Struct):
    """State of one stage. `done` and `totals` are by request id, in units of `unit`."""

    name: str
    kind: str
    loading_since: float | None = None
    load_s: float | None = None
    unit: str = "token"
    done: dict[str, int] = {}
    totals: dict[str, int | None] = {}
    first: tuple[float, int] | None = None
    heard_s: dict[str, tuple[float, float]] = {}
    last_at: float = 0.0

    def state(self, now: float) -> str:
        if self.load_s is not None:
            return f"ready in {seconds(self.load_s)}"
        return "waiting" if self.loading_since is None else f"loading {seconds(now - self.loading_since)}"

    def work(self) -> str:
        """Format the work of all requests: `8/10 steps`, or `16 tokens`, whose total is only an upper limit.

        Of sounds that are transcribed it is `60/90 s heard`.
        """
        if not self.done:
            return ""
        if self.heard_s:
            done_s, total_s = (sum(part) for part in zip(*self.heard_s.values(), strict=True))
            return f"{done_s:.0f}/{total_s:.0f} s heard"
        done = sum(self.done.values())
        totals = list(self.totals.values())
        if self.unit == "token" or None in totals:
            return count(done, self.unit)
        return f"{done}/{count(sum(total for total in totals if total is not None), self.unit)}"

    def rate(self) -> str:
        """Format units per second from the first report to the last, unless they arrived together."""
        if self.first is None or self.last_at - self.first[0] < _MIN_RATED_S:
            return ""
        first_at, first_done = self.first
        return f"{(sum(self.done.values()) - first_done) / (self.last_at - first_at):.1f} {self.unit}s/s"


class StageBoard:
    """The state of all stages, derived from events."""

    def __init__(
        self, stages: Sequence[tuple[str, str]], num_requests: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.rows = {name: StageRow(name, kind) for name, kind in stages}
        self._num_requests = num_requests
        self._num_ended = 0
        self._clock = clock

    def handle(self, event: Event) -> None:
        now = self._clock()
        if isinstance(event, StageLoading):
            row = self.rows[event.name]
            if event.info is None:
                row.loading_since = now
            else:
                row.load_s = event.info.load_s
        elif isinstance(event, StageProgress):
            row = self.rows[event.stage]
            row.unit = event.unit
            row.done[event.request_id] = event.done
            row.totals[event.request_id] = event.total
            if event.heard_s is not None:
                row.heard_s[event.request_id] = event.heard_s
            row.last_at = now
            if row.first is None:
                row.first = (now, event.done)
        elif isinstance(event, RequestResult):
            self._num_ended += 1

    def cells(self) -> list[tuple[str, ...]]:
        """Return one row per stage (name, kind, state, work done, rate), and one for several requests."""
        now = self._clock()
        cells: list[tuple[str, ...]] = [
            (row.name, row.kind, row.state(now), row.work(), row.rate()) for row in self.rows.values()
        ]
        if self._num_requests > 1:
            cells.append(("requests", "", f"{self._num_ended}/{self._num_requests} done", "", ""))
        return cells


class LiveProgress(ProgressDisplay):
    """A table that is redrawn in place and cleared at the end."""

    def __init__(self, board: StageBoard, stream: TextIO) -> None:
        self._board = board
        self._display = LiveDisplay(stream, self._table, refreshes=True)

    def handle(self, event: Event) -> None:
        self._board.handle(event)
        super().handle(event)  # Rich writes lines on stderr above the table

    def show(self) -> None:
        self._display.show()

    def hide(self) -> None:
        self._display.hide()

    def _table(self) -> Table:
        from rich.table import Table

        table = Table.grid(padding=(0, 2), pad_edge=True)
        for style in ("bold", None, None, None, "dim"):
            table.add_column(style=style, no_wrap=True)
        for cells in self._board.cells():
            table.add_row(*cells)
        return table
