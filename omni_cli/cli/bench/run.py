"""One run of `omni bench` or `omni loadtest`: measures until it is done or stopped, then reports."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from omni_cli.bench.benchmark import Benchmark, Plan
from omni_cli.bench.harness import RunLimits
from omni_cli.bench.variant_process import VariantError
from omni_cli.cli.bench.options import MeasureOptions
from omni_cli.cli.bench.progress import BenchProgress
from omni_cli.cli.bench.report import failure_of, show_report
from omni_cli.cli.gate_options import DEFAULT_MARGIN, read_fraction, refuse_failed
from omni_cli.cli.terminal import console
from omni_cli.cli.terminal.stop_signals import run_until_stopped
from omni_cli.config.gate_limits import GateLimits
from omni_cli.errors import ExitCode, OmniError
from omni_cli.record import load_record
from omni_cli.report.bench_notes import not_comparable
from omni_cli.stats.estimate import MIN_BLOCKS
from omni_cli.stats.verdicts import ComparisonSpec


class NotComparableError(OmniError):
    exit_code = ExitCode.NOT_COMPARABLE


def read_spec(
    options: MeasureOptions,
    limits: GateLimits | None,
    *,
    margin: str = DEFAULT_MARGIN,
    allowed: Sequence[str] | None = None,
) -> ComparisonSpec:
    """Read the comparisons from the options. Raises `OmniError` for a baseline that failed or is no complete record."""
    baseline = None if options.baseline is None else load_record(options.baseline)
    if options.baseline and baseline:
        refuse_failed(baseline, options.baseline)
    return ComparisonSpec(
        limits=limits,
        metrics=tuple(options.metric) if options.metric else None,
        margin=read_fraction("--margin", margin),
        baseline=baseline,
        allowed=tuple(allowed or ()),
    )


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
        raise NotComparableError(note.message, hint=note.hint)
    progress = BenchProgress(sys.stderr, spec.without_model_based(), quiet=options.quiet, verbose=options.verbose)
    num_warmup = options.num_iters_warmup
    judges = spec.limits is not None and bool(spec.limits.quality)
    if (judges or weights) and options.num_iters is not None:
        # Each iteration has new prompts and seeds; warm-ups are not timed, but their outputs are compared.
        num_requests = plan.builder.record().workload["batch_size"]
        num_warmup = max(num_warmup, -(-MIN_BLOCKS // num_requests) - options.num_iters)
    limits = RunLimits(options.num_iters, num_warmup, time_budget_s)
    benchmark = Benchmark(plan, spec, limits, progress, record_file=options.output_json)
    stopped = asyncio.run(_run(benchmark, options.timeout))
    progress.hide()
    if stopped is not None and not benchmark.has_samples:
        raise stopped
    if weights and stopped is None:
        try:
            benchmark.add_model_based(weights)
        except OmniError as error:
            stopped = error
    return _report(benchmark, options, stopped)


async def _run(benchmark: Benchmark, timeout_s: float | None) -> OmniError | None:
    """Run the measurement; return the reason for an early end, if any."""
    work, stopped = await run_until_stopped(benchmark.run(), timeout_s)
    if stopped is not None:
        return stopped
    failure = work.exception()
    if failure is not None and not isinstance(failure, VariantError):
        raise failure
    return failure


def _report(benchmark: Benchmark, options: MeasureOptions, stopped: OmniError | None) -> ExitCode:
    report = benchmark.report()
    show_report(report, options)
    for text in benchmark.setting_warnings():
        console.print_warning(text)
    error = stopped or failure_of(report)
    if error is not None:
        console.print_note("")
        console.print_error(error, verbose=options.verbose)
    return report.exit_code if stopped is None else stopped.exit_code
