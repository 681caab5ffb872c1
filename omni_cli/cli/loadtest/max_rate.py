"""`omni loadtest --find-max-rate`: the highest request rate at which a server meets its SLO."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Literal

import msgspec

from omni_cli.bench.benchmark import Benchmark, Plan
from omni_cli.bench.harness import RunLimits
from omni_cli.bench.variant_process import VariantError
from omni_cli.cli.bench.progress import BenchProgress
from omni_cli.cli.loadtest.options import LoadtestOptions, without_key
from omni_cli.cli.terminal import console
from omni_cli.cli.terminal.stop_signals import run_until_stopped
from omni_cli.errors import ExitCode, OmniError
from omni_cli.record_file import with_digest, write_document
from omni_cli.report.bench_server import request_text, server_title, slo_text
from omni_cli.report.tables import aligned
from omni_cli.stats.saturation import MIN_WINDOWS, RATE_ALPHA, AttainmentQuestion, RateSearch, RateTrial

FIRST_RATE, WINDOW_S = 1.0, 4.0

RatePlan = Callable[[float], AbstractContextManager[Plan]]


class MaxRateRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The document: the highest rate lies between `low`, the highest that was met, and `high`, the lowest missed."""

    schema: Literal["omni.max-rate/1"] = "omni.max-rate/1"
    command: tuple[str, ...]
    environment: dict[str, object] = {}
    workload: dict[str, object] = {}
    attainment: float
    low: float | None = None
    high: float | None = None
    rates: tuple[RateTrial, ...] = ()
    digest: str | None = None


def find_max_rate(plan: RatePlan, options: LoadtestOptions, target: float, first: float) -> ExitCode:
    """Try rates until the highest one is enclosed, and report. Raises `OmniError` if none was measured."""
    command = ("omni", *without_key(sys.argv[1:]))
    search, record = RateSearch(first), MaxRateRecord(command=command, attainment=target)
    began_s = time.monotonic()
    stopped: OmniError | None = None
    while stopped is None and (rate := search.next_rate()) is not None:
        left_s = None if options.timeout is None else max(options.timeout - (time.monotonic() - began_s), 0.001)
        try:
            with plan(rate) as made:
                trial, stopped = _try(made, rate, target, options, left_s)
                source = made.builder.record()
            if trial.reason is not None:
                with plan(rate):  # asks the server: if it has ended, the rate is not the reason
                    pass
        except OmniError as error:
            if not search.trials:
                raise
            stopped = error  # the server is gone: the rates so far are shown
            break
        if stopped is not None and not search.trials and not trial.windows:
            raise stopped
        search = RateSearch(search.first, (*search.trials, trial))
        low, high = search.bounds
        record = msgspec.structs.replace(
            record, environment=source.environment, workload=source.workload, low=low, high=high, rates=search.trials
        )
        if options.output_json is not None:
            write_document(with_digest(record), options.output_json)
    if options.as_json:
        console.print_json(with_digest(record))
    else:
        console.print_text(_text(record))
    ended = stopped or _failure(record)
    if ended is not None:
        console.print_error(ended, verbose=options.verbose)
    return ExitCode.OK if ended is None else ended.exit_code


def _try(
    plan: Plan, rate: float, target: float, options: LoadtestOptions, timeout_s: float | None
) -> tuple[RateTrial, OmniError | None]:
    """Measure one rate; the second value is the reason for an early end. A server that answers nothing misses it."""
    question = AttainmentQuestion(target=target)
    progress = BenchProgress(sys.stderr, question, quiet=options.quiet, verbose=options.verbose)
    limits = RunLimits(options.num_iters, options.num_iters_warmup, options.budget_s(1), RATE_ALPHA, MIN_WINDOWS)
    benchmark = Benchmark(plan, question, limits, progress)

    async def run() -> tuple[OmniError | None, BaseException | None]:
        work, stopped = await run_until_stopped(benchmark.run(), timeout_s)
        return stopped, None if stopped is not None else work.exception()

    stopped, failure = asyncio.run(run())
    progress.hide()
    trial = question.judged(plan.builder.record(), rate)
    if failure is None:
        return trial, stopped
    if not isinstance(failure, VariantError):
        raise failure
    return msgspec.structs.replace(trial, verdict="missed", reason=failure.message), None


def _text(record: MaxRateRecord) -> str:
    workload = record.workload
    heads = [server_title(workload), request_text(workload), slo_text(workload), f"for {record.attainment:.4g} of them"]
    rows = [("rate", "within SLO [interval]", "goodput", "windows", "verdict")]
    for trial in record.rates:
        within = "-" if trial.attainment is None else f"{trial.attainment:.1%}"
        if trial.ci95 is not None:
            within += f" [{trial.ci95[0]:.1%}, {trial.ci95[1]:.1%}]"
        goodput = "-" if trial.goodput_per_second is None else f"{trial.goodput_per_second:.4g}/s"
        rows.append((f"{trial.rate:.4g}/s", within, goodput, str(len(trial.windows)), trial.verdict))
    lines = [", ".join(heads), *aligned(rows, right=frozenset({0, 2, 3}))]
    if record.low is not None and record.high is not None:
        lines += ["", f"The highest rate is between {record.low:.4g} and {record.high:.4g} requests per second"]
    return "\n".join(lines)


class _NoRateError(OmniError):
    exit_code = ExitCode.INCONCLUSIVE


def _failure(record: MaxRateRecord) -> OmniError | None:
    reasons = [trial.reason for trial in record.rates if trial.reason is not None]
    if record.low is None:
        lowest = min(trial.rate for trial in record.rates)
        message = f"no rate down to {lowest:.4g} requests per second is surely within the SLO"
        return _NoRateError(": ".join([message, *reasons[:1]]), hint="relax `--slo`, or raise `--time-budget`")
    if record.high is None:
        hint = "begin with a higher one: `--request-rate`, or make windows longer: `--num-requests`"
        return _NoRateError("no rate that was tried exceeds the SLO", hint=hint)
    return None
