"""Progress on stderr: a live display, which Rich redraws in place and clears at the end, or plain lines."""

from __future__ import annotations

import os
import termios
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from typing import TYPE_CHECKING, Any, TextIO

from omni_cli.cli.terminal import console

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live
    from rich.text import Text

REFRESH_PER_SECOND = 8
# The terminal whose echo is off, with its settings before.
_saved_settings: tuple[int, list[Any]] | None = None
_LOCAL_FLAGS = 3


class ProgressMode(Enum):
    """The format of progress."""

    LIVE = "live"
    LINES = "lines"
    NONE = "none"


def progress_mode(stream: TextIO, *, quiet: bool, verbose: bool) -> ProgressMode:
    """Return the format for `stream`. With `verbose`, libraries log to the terminal, which breaks a live display."""
    if quiet:
        return ProgressMode.NONE
    if verbose:
        return ProgressMode.LINES
    return ProgressMode.LIVE if stream.isatty() and os.environ.get("TERM") != "dumb" else ProgressMode.NONE


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
            hide_keys(self._stream)
            self._live.start()
        if not self._refreshes:
            self._live.refresh()

    @property
    def is_shown(self) -> bool:
        return self._live is not None

    def hide(self) -> None:
        """Clear the display, so that other lines can be written."""
        if self._live is not None:
            self._live.stop()
            self._live = None
            show_keys()


class LiveLine:
    """Shows the latest text passed to `say`: as one live line, as plain lines with `-v`, or not at all."""

    def __init__(self, stream: TextIO, *, quiet: bool, verbose: bool) -> None:
        self._mode = progress_mode(stream, quiet=quiet, verbose=verbose)
        # Redrawn only for new text: a thread that redraws would disturb the measurement.
        self._display = LiveDisplay(stream, self._line, refreshes=False)
        self._text = ""

    @property
    def is_shown(self) -> bool:
        """True if `say` has any effect."""
        return self._mode is not ProgressMode.NONE

    def say(self, text: str) -> None:
        self._text = text
        match self._mode:
            case ProgressMode.LIVE:
                self._display.show()
            case ProgressMode.LINES:
                console.print_note(text)

    def hide(self) -> None:
        """Clear the live line, so that other lines can be written."""
        self._display.hide()

    def _line(self) -> Text:
        from rich.text import Text

        return Text(self._text, no_wrap=True, overflow="crop")


def hide_keys(stream: TextIO) -> None:
    """Stop the echo of the terminal that `stream` is, if it is one and this process is in its foreground.

    Keys typed while a live display is shown are not written into it, and the shell gets them later.
    """
    global _saved_settings
    # Such a stream has no descriptor, or is no terminal, or the terminal has gone.
    with suppress(OSError, ValueError, termios.error):
        descriptor = stream.fileno()
        before = termios.tcgetattr(descriptor)
        if _saved_settings is None and _may_change(descriptor):
            silent = [*before]
            silent[_LOCAL_FLAGS] &= ~termios.ECHO
            _saved_settings = descriptor, before
            termios.tcsetattr(descriptor, termios.TCSADRAIN, silent)


def show_keys() -> None:
    """Give the terminal its settings back, if `hide_keys` changed them."""
    global _saved_settings
    if _saved_settings is not None:
        (descriptor, before), _saved_settings = _saved_settings, None
        with suppress(OSError, termios.error):
            if _may_change(descriptor):
                termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def _may_change(descriptor: int) -> bool:
    """False in the background, where changing the terminal would stop this process."""
    try:
        return os.tcgetpgrp(descriptor) == os.getpgrp()
    except OSError:  # not the terminal that controls this process
        return True
