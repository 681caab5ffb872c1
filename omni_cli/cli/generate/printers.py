"""Terminal output during a run: one class per format."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any
from unicodedata import category

from omni_cli.cli.terminal import console
from omni_cli.cli.terminal.progress import ProgressDisplay
from omni_cli.core.errors import OmniError
from omni_cli.report.generate_results import RequestRecord, WrittenOutput, cut_text, file_line, loaded_lines
from omni_cli.requests.outputs import StageInfo, TextOutput


class Printer:
    """Receives events in order; this one is for `--json`: it shows only notes and failures, on stderr, at once."""

    def __init__(self, progress: ProgressDisplay, *, verbose: bool, noted: Collection[str] = ()) -> None:
        """`noted` are notes that need no more be shown."""
        self._progress = progress
        self._verbose = verbose
        # What is noted on one request is not repeated for others.
        self._noted = set(noted)

    def on_loaded(self, stages: Sequence[StageInfo]) -> None:
        pass

    def text(self, text: str) -> None:
        """Take the next piece of an answer."""

    def output(self, written: WrittenOutput) -> None:
        pass

    def on_ended(self, record: RequestRecord) -> None:
        new_notes = [note for note in record.notes if note not in self._noted]
        self._noted.update(new_notes)
        if not new_notes and record.error is None:
            return
        self._progress.hide()
        for note in new_notes:
            console.print_warning(note if record.place is None else f"{record.place}: {note}")
        if (error := record.error) is not None:
            shown = error
            if record.place is not None:  # FILE:LINE, as compilers do
                shown = OmniError(f"{record.place}: {error.message}", hint=error.hint)
                shown.__cause__, shown.details = error, error.details
            console.print_error(shown, verbose=self._verbose)
        self._progress.show()

    def close(self) -> None:
        self._progress.hide()


class BlockPrinter(Printer):
    """For several requests: each under its name, when it ends. `sampling` is what a single one asks for."""

    sampling: Mapping[str, Any] = MappingProxyType({})
    _blocks = 0

    def __init__(self, progress: ProgressDisplay, *, verbose: bool, quiet: bool, noted: Collection[str] = ()) -> None:
        super().__init__(progress, verbose=verbose, noted=noted)
        self._quiet = quiet

    def on_loaded(self, stages: Sequence[StageInfo]) -> None:
        if not self._quiet:
            self._progress.hide()
            console.print_note("\n".join(loaded_lines(stages, self.sampling)))
            self._progress.show()

    def on_ended(self, record: RequestRecord) -> None:
        if record.outputs:
            lines = [f"[{record.request_id}]", *(_line(written) for written in record.outputs)]
            self._progress.hide()
            console.print_text(("\n" if self._blocks else "") + "\n".join(lines))
            console.flush()
            if not self._quiet and (cut := cut_text(record)) is not None:
                console.print_note(f"[{record.request_id}] {cut}")
            self._blocks += 1
            self._progress.show()
        super().on_ended(record)


class StreamPrinter(BlockPrinter):
    """For a single request: its text while it is generated, then each file once it is written."""

    _streamed = ""
    _line_open = False

    def text(self, text: str) -> None:
        if not text:
            return
        self._progress.hide()
        console.print_part(on_terminal(text))
        self._streamed += text
        self._line_open = not text.endswith("\n")

    def output(self, written: WrittenOutput) -> None:
        if isinstance(written.output, TextOutput):
            # The text has been streamed, except for a last piece that may have been held back.
            whole = written.output.text
            rest = whole.removeprefix(self._streamed)
            if rest == whole and self._streamed:
                self._end_line()
            self.text(rest)
            self._end_line(even_if_empty=not whole)
        else:
            self._progress.hide()
            self._end_line()
            console.print_text(file_line(written))
        console.flush()
        self._progress.show()

    def on_ended(self, record: RequestRecord) -> None:
        self._progress.hide()
        self._end_line()
        console.flush()
        Printer.on_ended(self, record)

    def close(self) -> None:
        super().close()
        self._end_line()

    def _end_line(self, *, even_if_empty: bool = False) -> None:
        if self._line_open or even_if_empty:
            console.print_part("\n")
        self._line_open = False


def on_terminal(text: str) -> str:
    """Return text unchanged for a pipe; for a terminal, without control characters."""
    if not sys.stdout.isatty():
        return text
    return "".join(
        char.encode("unicode_escape").decode() if category(char) == "Cc" and char not in "\n\t" else char
        for char in text
    )


def _line(written: WrittenOutput) -> str:
    if isinstance(written.output, TextOutput):
        return on_terminal(written.output.text)
    return file_line(written)
