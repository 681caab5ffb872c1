"""`omni loadtest --find-max-rate`: the highest request rate at which a server meets its SLO."""

from __future__ import annotations

import asyncio
import math
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from omni_cli.cli.bench.run import BenchProgress
from omni_cli.cli.loadtest.options import LoadtestOptions, without_key
from omni_cli.cli.terminal import console
from omni_cli.cli.terminal.stop_signals import run_until_stopped
from omni_cli.core.errors import ExitCode, OmniError
from omni_cli.measure.bench.benchmark import Benchmark, Plan
from omni_cli.measure.bench.schedule import RunLimits
from omni_cli.measure.bench.slo import COLUMNS, parse_slos
from omni_cli.measure.bench.variant_process import VariantError
from omni_cli.records.metrics import get_unit
from omni_cli.records.record_file import save_record, with_digest
from omni_cli.report.bench_view import request_text, slo_text
from omni_cli.report.shared_parts import workload_title
from omni_cli.report.tables import align
from omni_cli.report.units import quantity
from omni_cli.stats.blocks import request_values
from omni_cli.stats.saturation import (
    MIN_WINDOWS,
    RATE_ALPHA,
    AttainmentSpec,
    RateSearch,
    RateTrial,
    requests_needed,
)

_FIRST, _LOWEST, _GROWTH = 4.0, 0.25, 4.0  # of the outline, in requests per second
_ONE_WINDOW = RunLimits(1, 0, None)


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


@dataclass(frozen=True)
class RateFinder:
    """Finds the highest rate; `size(rate)` is the number of requests of a window, and `alone` plans requests one after
    the other."""

    plan: Callable[[float], AbstractContextManager[Plan]]
    alone: Callable[[], AbstractContextManager[Plan]]
    size: Callable[[float], int]
    options: LoadtestOptions
    target: float
    began_s: float = field(default_factory=time.monotonic)

    def run(self, first: float | None) -> ExitCode:
        """Try rates until the highest one is enclosed, and report.

        Raises `OmniError` if no rate was measured, and if not even requests one after the other meet the SLO.
        """
        options = self.options
        self._check_alone()
        warmup = 1 if first is None else options.num_iters_warmup  # the outline has warmed up the server
        search = RateSearch(self._outline() if first is None else first)
        record = MaxRateRecord(command=("omni", *without_key(sys.argv[1:])), attainment=self.target)
        stopped: OmniError | None = None
        while stopped is None and (rate := search.next_rate()) is not None:
            limits = self._limits(rate, 1 if search.trials else warmup)
            try:
                with self.plan(rate) as planned:
                    trial, stopped = self._try(planned, rate, limits)
                    source = planned.builder.record()
                if trial.reason is not None:
                    with self.plan(rate):  # asks the server: if it has ended, the rate is not the reason
                        pass
            except OmniError as error:
                if not search.trials:
                    raise
                stopped = error  # the server is gone: the rates so far are shown
                break
            if stopped is not None and not search.trials and not trial.windows:
                raise stopped
            search = RateSearch(search.first, (*search.trials, trial))
            (low, high), rates = search.bounds, search.trials
            found = {"environment": source.environment, "workload": source.workload}
            record = msgspec.structs.replace(record, **found, low=low, high=high, rates=rates)
            if options.output_json is not None:
                save_record(record, options.output_json)
        if options.as_json:
            console.print_json(with_digest(record))
        else:
            console.print_text(_text(record))
        ended = stopped or _failure(record)
        if ended is not None:
            console.print_error(ended, verbose=options.verbose)
        return ExitCode.OK if ended is None else ended.exit_code

    def _check_alone(self) -> None:
        """Raise `OmniError` if requests that have the server to themselves are not answered, or not within the SLO."""
        with self.alone() as planned:
            trial, stopped = self._try(planned, 0.0)
            (variant,) = planned.builder.record().variants
        if stopped is not None:
            raise stopped
        if trial.reason is not None:
            raise OmniError(trial.reason, hint="correct the requests: `--model`, `--endpoint`, `--extra-body`")
        if trial.attainment == 0:
            missed = [
                f"{metric} {'takes' if get_unit(name) == 's' else 'is'} {quantity(name, least)} or more"
                for metric, limit in parse_slos(tuple(self.options.slo or ()), tuple(COLUMNS)).items()
                for name in [COLUMNS[metric]]
                if (least := min(request_values(variant, name), default=0.0)) > limit
            ]
            reason = ", ".join(missed) or "none of them meets all limits"
            raise OmniError(
                f"no rate can be within the SLO: of requests that are sent one after the other, {reason}",
                hint="relax `--slo`",
                exit_code=ExitCode.INCONCLUSIVE,
            )

    def _outline(self) -> float:
        """Return a rate near the highest, from one window each of rates that grow, or fall, until the answer changes.

        Raises `OmniError` for an early end, and if the server answers none of the first requests.
        """
        rate, grows = _FIRST, None
        while True:
            with self.plan(rate) as planned:
                trial, stopped = self._try(planned, rate)
            if stopped is not None:
                raise stopped
            if grows is None and trial.reason is not None:
                raise OmniError(trial.reason, hint="correct the requests, or begin with a lower rate: `--request-rate`")
            is_met = trial.attainment is not None and trial.attainment >= self.target
            grows = is_met if grows is None else grows
            step = _GROWTH if grows else 1 / _GROWTH
            if is_met != grows or rate <= _LOWEST:
                return rate / math.sqrt(step)
            rate *= step

    def _limits(self, rate: float, warmup: int) -> RunLimits:
        """Plan as many windows as have the requests that decide, within the time budget if one is given."""
        size, options = self.size(rate), self.options
        window_s = size / rate
        windows = math.ceil(requests_needed(self.target) / size)
        if options.time_budget is not None:
            windows = min(windows, int(options.time_budget / window_s))
        windows = max(windows, MIN_WINDOWS)
        time_s = None if options.num_iters is not None else windows * window_s
        return RunLimits(options.num_iters, warmup, time_s, RATE_ALPHA, windows)

    def _try(self, plan: Plan, rate: float, limits: RunLimits = _ONE_WINDOW) -> tuple[RateTrial, OmniError | None]:
        """Measure one rate; also return the reason for an early end. A server that answers nothing misses it."""
        spec, options = AttainmentSpec(target=self.target), self.options
        progress = BenchProgress(sys.stderr, spec, quiet=options.quiet, verbose=options.verbose)
        benchmark = Benchmark(plan, spec, limits, progress)
        progress.begins(f"{rate:.4g} requests per second" if rate else "requests one after the other", limits)
        waited_s = time.monotonic() - self.began_s
        work, stopped = asyncio.run(run_until_stopped(benchmark.run(), options.timeout, waited_s))
        progress.end()
        trial = spec.judge(plan.builder.record(), rate)
        failure = None if stopped is not None else work.exception()
        if failure is None:
            return trial, stopped
        if not isinstance(failure, VariantError):
            raise failure
        return msgspec.structs.replace(trial, verdict="missed", reason=failure.message), None


def _text(record: MaxRateRecord) -> str:
    workload = record.workload
    heads = [
        workload_title(workload),
        request_text(workload),
        slo_text(workload),
        f"for {record.attainment:.4g} of them",
    ]
    rows = [("rate", "within SLO [interval]", "goodput", "windows", "verdict")]
    for trial in record.rates:
        within = "-" if trial.attainment is None else f"{trial.attainment:.1%}"
        if trial.ci95 is not None:
            within += f" [{trial.ci95[0]:.1%}, {trial.ci95[1]:.1%}]"
        goodput = "-" if trial.goodput_per_second is None else f"{trial.goodput_per_second:.4g}/s"
        rows.append((f"{trial.rate:.4g}/s", within, goodput, str(len(trial.windows)), trial.verdict))
    lines = [", ".join(heads), *align(rows, right=frozenset({0, 2, 3}))]
    if record.low is not None and record.high is not None:
        lines += ["", f"The highest rate is between {record.low:.4g} and {record.high:.4g} requests per second"]
    return "\n".join(lines)


def _failure(record: MaxRateRecord) -> OmniError | None:
    reasons = [trial.reason for trial in record.rates if trial.reason is not None]
    if record.low is None:
        lowest = min(trial.rate for trial in record.rates)
        message = f"no rate down to {lowest:.4g} requests per second is surely within the SLO"
        message, hint = ": ".join([message, *reasons[:1]]), "relax `--slo`, or raise `--time-budget`"
        return OmniError(message, hint=hint, exit_code=ExitCode.INCONCLUSIVE)
    if record.high is None:
        hint = "begin with a higher one: `--request-rate`, or make windows longer: `--num-requests`"
        return OmniError("no rate that was tried exceeds the SLO", hint=hint, exit_code=ExitCode.INCONCLUSIVE)
    return None
