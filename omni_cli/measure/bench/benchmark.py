"""Run a benchmark: the harness measures, the record on the disk is kept current, and statistics judge it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from pathlib import Path

from omni_cli.core.energy import EnergyMeter, open_meter
from omni_cli.measure.bench.checks import Free, read_free
from omni_cli.measure.bench.checks import warnings as setting_warnings
from omni_cli.measure.bench.harness import Harness, State, Watcher
from omni_cli.measure.bench.record_builder import RecordBuilder
from omni_cli.measure.bench.schedule import RunLimits
from omni_cli.measure.bench.variant_process import VariantRunner
from omni_cli.records.record_file import save_record
from omni_cli.stats.blocks import metric_names
from omni_cli.stats.gate import check_limits, check_metrics
from omni_cli.stats.verdicts import BenchmarkReport, ComparisonSpec


@dataclass(frozen=True)
class Plan:
    """The variants to measure: `launch(index)` makes the runner of one, just before it is loaded.

    `is_local`: they run on this machine, whose counters of energy are theirs.
    """

    builder: RecordBuilder
    launch: Callable[[int], VariantRunner]
    is_local: bool = True


@dataclass
class Benchmark:
    """One measurement, whose events `watcher` receives."""

    plan: Plan
    spec: ComparisonSpec
    limits: RunLimits
    watcher: Watcher
    _: KW_ONLY
    record_file: Path | None = None
    read_free: Callable[[], Free] = read_free
    open_meter: Callable[[], EnergyMeter] = open_meter

    def __post_init__(self) -> None:
        self._builder = self.plan.builder
        # A save that an interrupt left running in its thread must not overwrite a later one.
        self._saving = threading.Lock()
        self._is_running = True

    async def run(self) -> None:
        """Measure, and keep the samples in any case. Raises `VariantError` if a variant failed."""
        meter = self.open_meter() if self.plan.is_local else None
        try:
            await Harness(
                self._builder,
                launch=self.plan.launch,
                limits=self.limits,
                decided=self.spec.without_model_based().is_decided,
                watcher=self.watcher,
                block_done=self._block_done,
                read_free=self.read_free,
                meter=meter,
                both_orders=True,
            ).run()
            self._builder.check()
        finally:
            if meter is not None:
                meter.close()
            with self._saving:
                self._is_running = False

    def report(self) -> BenchmarkReport:
        """Compute the verdicts, and write them to the record on the disk."""
        report = self.spec.report(self._builder.record())
        if self.record_file is not None:
            save_record(report.complete_record(), self.record_file)
        return report

    def setting_warnings(self) -> list[str]:
        """Return warnings about ineffective settings other than the compared ones."""
        measured = self._builder.measured
        texts = [text for item in measured for text in setting_warnings(item.variant_config, item.stages)]
        return list(dict.fromkeys(texts))

    def _block_done(self, state: State) -> None:
        with self._saving:
            if self.record_file is not None and self._is_running:
                save_record(state.record, self.record_file)
        if state.blocks == 1:  # so that a typo fails early
            check_limits(self.spec.limits, [state.record])
            known = [name for variant in state.record.variants for name in metric_names(variant)]
            check_metrics(self.spec.metrics or (), known)
        self.watcher.block_done(state)
