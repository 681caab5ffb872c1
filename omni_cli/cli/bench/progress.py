"""Progress of `omni bench`."""

from __future__ import annotations

from typing import TYPE_CHECKING, TextIO

from omni_cli.cli.terminal import console
from omni_cli.cli.terminal.live_display import LiveLine
from omni_cli.metrics import E2E
from omni_cli.report.bench_units import quantity, ratio
from omni_cli.report.units import seconds

if TYPE_CHECKING:
    from omni_cli.bench.harness import State
    from omni_cli.bench.protocol import Loading
    from omni_cli.stats.verdicts import ComparisonSpec


class BenchProgress:
    """Reports each phase, and after each block the estimate so far."""

    def __init__(self, stream: TextIO, spec: ComparisonSpec, *, quiet: bool, verbose: bool) -> None:
        self._line = LiveLine(stream, quiet=quiet, verbose=verbose)
        self._spec = spec

    def loading(self, variant: str, event: Loading) -> None:
        state = "loading" if event.load_s is None else f"ready in {seconds(event.load_s)}"
        self._line.say(f"{variant}: stage {event.stage} {state}")

    def warming_up(self, variant: str) -> None:
        self._line.say(f"{variant}: warming up")

    def falling_back(self, reason: str) -> None:
        self.hide()
        console.print_warning(
            f"the variants do not fit into memory together ({reason}): they are loaded alternately",
            hint="this is slower, and the interval includes the noise between loads; free memory to load all of them",
        )

    def block_done(self, state: State) -> None:
        if not self._line.is_shown:
            return
        left = max(0.0, state.planned_s - state.elapsed_s)
        self._line.say(
            f"block {state.blocks}/{state.planned_blocks}   {self._known(state)}   {left:.0f} s left at most"
        )

    def hide(self) -> None:
        """Clear the live line, so that other lines can be written."""
        self._line.hide()

    def _known(self, state: State) -> str:
        """The ratio of the end-to-end times with its interval, or the median of a single variant."""
        report = self._spec.report(state.record)
        comparisons = [item for result in report.results for item in result.comparisons if item.metric == E2E]
        if comparisons:
            return "   ".join(f"{item.b} / {item.a} {ratio(item.ratio, item.ci95)}" for item in comparisons[:2])
        summary = report.summaries[state.record.variants[0].name][E2E]
        return f"median {quantity(E2E, summary.median)}"
