"""One run of `omni bench` or `omni loadtest`: measures until it is done or stopped, then reports."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, TextIO

from msgspec.structs import replace

from omni_cli.cli.bench.options import MeasureOptions
from omni_cli.cli.options import refuse_failed, show_notes, write_report
from omni_cli.cli.terminal import console
from omni_cli.cli.terminal.live_display import LiveLine
from omni_cli.cli.terminal.stop_signals import run_until_stopped
from omni_cli.config.gate_limits import GateLimits
from omni_cli.core.errors import ExitCode, OmniError
from omni_cli.measure.bench.benchmark import Benchmark, Plan
from omni_cli.measure.bench.schedule import RunLimits
from omni_cli.measure.bench.variant_process import VariantError
from omni_cli.measure.loadtest.plan import hint_on
from omni_cli.records.metrics import E2E
from omni_cli.records.record import get_failures, load_record
from omni_cli.records.record_file import with_digest
from omni_cli.report.bench_view import LABELS, bench_view
from omni_cli.report.comparison_view import comparison_view
from omni_cli.report.comparison_words import get_failure, not_comparable
from omni_cli.report.disturbance_words import disturbance_warnings
from omni_cli.report.renderers import to_junit, to_markdown, to_text
from omni_cli.report.shared_parts import short_title
from omni_cli.report.units import count, duration, quantity, ratio, seconds
from omni_cli.report.view import View
from omni_cli.stats.estimate import MIN_BLOCKS
from omni_cli.stats.gate import check_names
from omni_cli.stats.verdicts import BenchmarkReport, ComparisonSpec

if TYPE_CHECKING:
    from omni_cli.measure.bench.harness import State
    from omni_cli.measure.bench.protocol import Loading


def read_spec(options: MeasureOptions, limits: GateLimits | None) -> ComparisonSpec:
    """Read the comparisons from the options. Raises `OmniError` for a baseline that failed or is no complete record."""
    check_names(options.metric or ())
    baseline = None if options.baseline is None else load_record(options.baseline)
    if options.baseline and baseline:
        refuse_failed(baseline, options.baseline)
    return ComparisonSpec(limits, tuple(options.metric) if options.metric else None, baseline=baseline)


def measure(
    plan: Plan,
    spec: ComparisonSpec,
    options: MeasureOptions,
    time_budget_s: float | None,
    weights: Mapping[str, Path] = MappingProxyType({}),
) -> ExitCode:
    """Measure and report; `weights` are those of models that measure outputs. Raises `OmniError` if nothing ran."""
    mismatches = spec.mismatches(plan.builder.record())
    if mismatches:
        note = not_comparable(mismatches)
        raise OmniError(note.message, hint=note.hint, exit_code=ExitCode.NOT_COMPARABLE)
    progress = BenchProgress(sys.stderr, spec.without_model_based(), quiet=options.quiet, verbose=options.verbose)
    num_warmup = options.num_iters_warmup
    judges = spec.limits is not None and bool(spec.limits.quality)
    if (judges or weights) and options.num_iters is not None:
        # Each iteration has new prompts and seeds; warm-ups are not timed, but their outputs are compared.
        workload = plan.builder.record().workload
        num_requests = workload.get("batch_size") or workload["num_requests"]
        num_warmup = max(num_warmup, -(-MIN_BLOCKS // num_requests) - options.num_iters)
    limits = RunLimits(options.num_iters, num_warmup, time_budget_s)
    benchmark = Benchmark(plan, spec, limits, progress, record_file=options.output_json)
    names = [item.variant_config.name for item in plan.builder.measured]
    progress.begins(f"{short_title(plan.builder.record().workload)}: {', '.join(names)}", limits)
    work, stopped = asyncio.run(run_until_stopped(benchmark.run(), options.timeout))
    progress.end()
    if stopped is None and (failure := work.exception()) is not None:
        if not isinstance(failure, VariantError):
            raise failure
        stopped = failure
    if stopped is not None and not plan.builder.has_samples:
        raise stopped
    if weights and stopped is None:
        try:
            plan.builder.add_model_based(weights)
        except OmniError as error:
            stopped = error
    return _report(benchmark, options, stopped)


def _report(benchmark: Benchmark, options: MeasureOptions, stopped: OmniError | None) -> ExitCode:
    report = benchmark.report()
    _show_report(report, options)
    for text in benchmark.setting_warnings():
        console.print_warning(text)
    error = stopped or _get_failure(report)
    if error is not None:
        console.print_note("")
        console.print_error(error, verbose=options.verbose)
    return report.exit_code if stopped is None else stopped.exit_code


def _show_report(report: BenchmarkReport, options: MeasureOptions) -> None:
    """Print the document or the tables, write the files, print the warnings."""
    view = bench_view(report, max(options.num_iters_warmup, 1))
    if options.as_json:
        console.print_json(with_digest(report.complete_record()))
    else:
        console.print_text(_text(view, options))
    _write_files(report, view, options)
    show_notes(view)


def _get_failure(report: BenchmarkReport) -> OmniError | None:
    """Return the sentence for an exit code other than 0."""
    if report.exit_code == ExitCode.OK:
        return None
    broken = [f"variant `{v.name}`: {v.failure}" for v in report.record.variants if v.failure]
    if broken:
        failures = get_failures(sample for variant in report.record.variants for sample in variant.samples)
        return OmniError("the measurement cannot be trusted: " + "; ".join(broken), hint=hint_on(failures))
    note = get_failure(next(item for item in report.results if item.exit_code == report.exit_code))
    return OmniError(note.message, hint=note.hint)


def _text(view: View, options: MeasureOptions) -> str:
    saved = "" if options.output_json is None else f"Saved {options.output_json}"
    return to_text(replace(view, closing="\n\n".join(filter(None, [saved, view.closing]))))  # the answer comes last


def _write_files(report: BenchmarkReport, view: View, options: MeasureOptions) -> None:
    notes = disturbance_warnings(report.disturbances, report.record)
    views = [comparison_view(result, LABELS, notes) for result in report.results]
    name = f"omni bench {short_title(report.record.workload)}"
    if options.markdown is not None:
        texts = [*map(to_markdown, views)] or [f"```\n{_text(view, options)}\n```\n"]
        write_report(options.markdown, "\n".join(texts))
    if options.junit is not None and views:
        # One suite a file: that of the gate, where there are two.
        gated = next((number for number, item in enumerate(report.results) if item.gate is not None), 0)
        write_report(options.junit, to_junit(views[gated], name))


class BenchProgress:
    """Reports each phase, and after each block the estimate so far."""

    def __init__(self, stream: TextIO, spec: ComparisonSpec, *, quiet: bool, verbose: bool) -> None:
        self._line = LiveLine(stream, quiet=quiet, verbose=verbose)
        self._spec = spec
        self._where = ""

    def begins(self, what: str, limits: RunLimits) -> None:
        """Report the start: what is measured, how often, and how long."""
        most = [] if limits.num_iters is None else [f"{count(limits.num_iters, 'iteration')} of each"]
        most += [] if limits.time_budget_s is None else [f"at most {duration(limits.time_budget_s)} of measuring"]
        self._line.step(", ".join([what, *most]))

    def loading(self, variant: str, event: Loading) -> None:
        state = "loading" if event.load_s is None else f"ready in {seconds(event.load_s)}"
        self._line.say(f"{self._where}{variant}: stage {event.stage} {state}")

    def warming_up(self, variant: str) -> None:
        self._line.step(f"{self._where}{variant}: ready, warming up")

    def falling_back(self, reason: str) -> None:
        self.hide()
        console.print_warning(
            f"the variants do not fit into memory together ({reason}): they are loaded alternately",
            hint="this is slower, and the interval includes the noise between loads; free memory to load all of them",
        )

    def block_done(self, state: State) -> None:
        done = f"{self._where}block {state.blocks}/{state.planned_blocks}"
        self._line.say(lambda: f"{done}   {self._format_estimate(state)}   {duration(state.left_s)} left at most")

    def hide(self) -> None:
        """Clear the live line, so that other lines can be written."""
        self._line.hide()

    def end(self) -> None:
        """Show nothing more."""
        self._line.end()

    def _format_estimate(self, state: State) -> str:
        """The ratio of the end-to-end times with its interval, or the median of a single variant."""
        report = self._spec.report(state.record)
        comparisons = [item for result in report.results for item in result.comparisons if item.metric == E2E]
        if comparisons:
            return "   ".join(f"{item.b} / {item.a} {ratio(item.ratio, item.ci95)}" for item in comparisons[:2])
        summary = report.summaries[state.record.variants[0].name][E2E]
        return f"median {quantity(E2E, summary.median)}"
