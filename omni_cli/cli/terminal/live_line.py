"""Progress of a long run on stderr: one live line on a terminal, plain lines with `-v`, else nothing."""

from __future__ import annotations

import os
import shutil
from typing import TextIO

from omni_cli.cli.terminal import console

_CLEAR = "\r\x1b[K"


class LiveLine:
    def __init__(self, stream: TextIO, *, quiet: bool, verbose: bool) -> None:
        self._stream = stream
        # With the libraries' logs on the same terminal, a line that is written over would be torn apart.
        self._is_live = not quiet and not verbose and stream.isatty() and os.environ.get("TERM") != "dumb"
        self._is_plain = not quiet and verbose

    @property
    def is_shown(self) -> bool:
        """Whether anything that is said can be seen."""
        return self._is_live or self._is_plain

    def say(self, text: str) -> None:
        if self._is_live:
            width = shutil.get_terminal_size().columns - 1
            self._stream.write(_CLEAR + text[:width])
            self._stream.flush()
        elif self._is_plain:
            console.print_note(text)

    def hide(self) -> None:
        """Take the live line away, so that others can be written."""
        if self._is_live:
            self._stream.write(_CLEAR)
            self._stream.flush()
