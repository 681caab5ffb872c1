"""Progress of `omni bench` on stderr: one live line on a terminal, plain lines with `-v`, else nothing."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING, TextIO

from omni_cli.cli import console
from omni_cli.record import E2E
from omni_cli.report.bench_units import quantity, ratio
from omni_cli.report.units import seconds

if TYPE_CHECKING:
    from omni_cli.bench.harness import State
    from omni_cli.bench.protocol import Loading
    from omni_cli.bench.verdicts import Question

_CLEAR = "\r\x1b[K"


class BenchProgress:
    """Says what is going on, and after each block what is known by now."""

    def __init__(self, stream: TextIO, question: Question, *, quiet: bool, verbose: bool) -> None:
        self._stream = stream
        self._question = question
        # With the libraries' logs on the same terminal, a line that is written over would be torn apart.
        self._is_live = not quiet and not verbose and stream.isatty() and os.environ.get("TERM") != "dumb"
        self._is_plain = not quiet and verbose
        self._quiet = quiet

    def loading(self, variant: str, event: Loading) -> None:
        state = "loading" if event.load_s is None else f"ready in {seconds(event.load_s)}"
        self._say(f"{variant}: stage {event.stage} {state}")

    def warming_up(self, variant: str) -> None:
        self._say(f"{variant}: warming up")

    def falling_back(self, reason: str) -> None:
        self.hide()
        console.print_warning(
            f"the variants do not fit into memory together ({reason}): they are loaded in turns",
            hint="slower, and noise between loads is in the interval; free memory to let them take turns",
        )

    def block_done(self, state: State) -> None:
        if not (self._is_live or self._is_plain):
            return
        left = max(0.0, state.planned_s - state.elapsed_s)
        self._say(f"block {state.blocks}/{state.planned_blocks}   {self._known(state)}   {left:.0f} s left at most")

    def hide(self) -> None:
        """Take the live line away, so that others can be written."""
        if self._is_live:
            self._stream.write(_CLEAR)
            self._stream.flush()

    def _known(self, state: State) -> str:
        """The ratio of the end-to-end times with its interval, or the median of a single variant."""
        from omni_cli.bench.verdicts import summaries_of

        comparisons = [
            item
            for findings in self._question.answer(state.record).findings
            for item in findings.comparisons
            if item.metric == E2E
        ]
        if comparisons:
            return "   ".join(f"{item.b} / {item.a} {ratio(item.ratio, item.ci95)}" for item in comparisons[:2])
        median = next(s.median for s in summaries_of(state.record.variants[0]) if s.metric == E2E)
        return f"median {quantity(E2E, median)}"

    def _say(self, text: str) -> None:
        if self._is_live:
            width = shutil.get_terminal_size().columns - 1
            self._stream.write(_CLEAR + text[:width])
            self._stream.flush()
        elif self._is_plain:
            console.print_note(text)
