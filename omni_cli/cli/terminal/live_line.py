"""Progress of a long run on stderr: one live line on a terminal, plain lines with `-v`, else nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, TextIO

from omni_cli.cli.terminal import console
from omni_cli.cli.terminal.live_display import LiveDisplay, ProgressMode, progress_mode

if TYPE_CHECKING:
    from rich.text import Text


class LiveLine:
    """Shows the latest text passed to `say`."""

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
