"""Progress on stderr: a live display, which Rich redraws in place and clears at the end, or plain lines, which without
a terminal are few."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, TextIO

from omni_cli.cli.terminal import console
from omni_cli.report.units import duration

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live
    from rich.text import Text

REFRESH_PER_SECOND = 8
EVERY_S = 30.0
"""Seconds from line to line without a terminal: often enough to see that a job lives, and few lines in its log."""


def progress_mode(stream: TextIO, *, quiet: bool, verbose: bool) -> Literal["live", "lines", "few lines", "none"]:
    """Return the format for `stream`. With `verbose`, libraries log to the terminal, which breaks a live display."""
    if quiet:
        return "none"
    if verbose:
        return "lines"
    return "live" if stream.isatty() and os.environ.get("TERM") != "dumb" else "few lines"


class LiveDisplay:
    """Draws what `render` returns: several times per second with `refreshes`, else at each `show`."""

    def __init__(self, stream: TextIO, render: Callable[[], RenderableType], *, refreshes: bool) -> None:
        self._stream = stream
        self._render = render
        self._refreshes = refreshes
        self._live: Live | None = None

    def show(self) -> None:
        """Draw the display, or redraw it."""
        if self._live is None:
            from rich.console import Console
            from rich.live import Live

            # Lines on stderr go above the display. stdout carries data, which Rich must not touch.
            self._live = Live(
                get_renderable=self._render,
                console=Console(file=self._stream, highlight=False),
                auto_refresh=self._refreshes,
                refresh_per_second=REFRESH_PER_SECOND,
                transient=True,
                redirect_stdout=False,
                redirect_stderr=True,
            )
            self._live.start()
        if not self._refreshes:
            self._live.refresh()

    def hide(self) -> None:
        """Clear the display, so that other lines can be written."""
        if self._live is not None:
            self._live.stop()
            self._live = None


class LiveLine:
    """Shows the latest text passed to `say`: as one live line, as plain lines with `-v`, or not at all.

    Without a terminal, it writes the first one, each `step`, and the latest every `EVERY_S` seconds, after the time so
    far: `[1.5 min] block 6/166   30 s left at most`.
    """

    def __init__(self, stream: TextIO, *, quiet: bool, verbose: bool) -> None:
        self._mode = progress_mode(stream, quiet=quiet, verbose=verbose)
        # Redrawn only for new text: a thread that redraws would disturb the measurement.
        self._display = LiveDisplay(stream, self._line, refreshes=False)
        self._latest: Callable[[], str] = str
        self._text = ""
        self._began_s = time.monotonic()
        self._ended: threading.Event | None = None

    def say(self, text: str | Callable[[], str]) -> None:
        """Show a text; one that is computed costs nothing where it is not shown."""
        self._latest = text if callable(text) else lambda: text
        match self._mode:
            case "live":
                self._text = self._latest()
                self._display.show()
            case "lines":
                console.print_note(self._latest())
            case "few lines" if self._ended is None:
                self._write()
                self._ended = threading.Event()
                threading.Thread(target=self._repeat, args=(self._ended,), daemon=True).start()

    def step(self, text: str) -> None:
        """Show a text that has a line of its own where lines are few."""
        is_first = self._ended is None
        self.say(text)
        if self._mode == "few lines" and not is_first:
            self._write()

    def hide(self) -> None:
        """Clear the live line, so that other lines can be written."""
        self._display.hide()

    def end(self) -> None:
        """Clear the live line, and write no more lines."""
        self.hide()
        if self._ended is not None:
            self._ended.set()

    def _repeat(self, ended: threading.Event) -> None:
        while not ended.wait(EVERY_S):
            self._write()

    def _write(self) -> None:
        console.print_note(f"[{duration(time.monotonic() - self._began_s)}] {self._latest()}")

    def _line(self) -> Text:
        from rich.text import Text

        return Text(self._text, no_wrap=True, overflow="crop")
