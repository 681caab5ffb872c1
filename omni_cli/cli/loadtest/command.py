"""`omni loadtest`: measures running OpenAI-compatible servers."""

from __future__ import annotations

import math
import sys
from functools import partial
from typing import TYPE_CHECKING

from msgspec.structs import replace

from omni_cli.cli.loadtest.options import DEFAULT_LEN, MAX_REQUESTS, LoadtestOptions, without_key
from omni_cli.cli.options import reach, read_fraction
from omni_cli.cli.terminal import console
from omni_cli.core.errors import UsageError
from omni_cli.stats.estimate import MIN_BLOCKS

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from omni_cli.measure.bench.benchmark import Plan
    from omni_cli.measure.loadtest.observations import Canaries
    from omni_cli.measure.loadtest.traffic import Traffic
    from omni_cli.measure.loadtest.workload import ServerWorkload


def loadtest(options: LoadtestOptions) -> int:
    """Measure running OpenAI-compatible servers, compare servers or loads, judge a gate.

    Requests are sent in windows, interleaved between the servers, until the interval of their ratio decides or the
    time is up. Exits with 0 (done, or the gate passed), 1 (regression), 3 (inconclusive), 4 (not comparable), 5
    (outputs differ where they had to be equal) or 6 (requests failed).
    """
    limits = options.limits()
    from omni_cli.cli.bench.run import measure, read_spec
    from omni_cli.cli.loadtest.reading import check_counts
    from omni_cli.measure.bench.quality import start_word_judge
    from omni_cli.measure.loadtest.plan import server_plan
    from omni_cli.openai_api.client import parse_url

    urls = [parse_url(text) for text in options.url]
    traffics, workload = _load(options)
    count = check_counts(urls, traffics, workload.num_requests)
    if limits is not None and count == 1 and options.baseline is None:
        raise UsageError("a limit needs a baseline", hint="add a second URL, `--baseline` or `--vary`")
    spec, margin = read_spec(options, limits), read_fraction("--margin", options.margin)
    spec = replace(spec, margin=margin, allowed=tuple(options.allow_difference or ()), strict=options.strict)
    budget_s = options.budget_s(count)
    options.check_files()
    plan_of = partial(
        server_plan,
        urls,
        model=options.model,
        api_key=options.api_key,
        request_timeout_s=options.request_timeout,
        canaries=_choose_canaries(workload, options),
        reads_energy=options.find_max_rate is None,
        command=("omni", *without_key(sys.argv[1:])),
    )
    reach(urls, options)
    with start_word_judge(workload.recogniser) as judge:
        if options.find_max_rate is not None:
            return _find_max_rate(options, traffics[0], workload, partial(plan_of, judge=judge))
        with plan_of(traffics, workload, judge=judge) as plan:
            return measure(plan, spec, options, budget_s)


def _load(options: LoadtestOptions) -> tuple[list[Traffic], ServerWorkload]:
    """Return the loads to measure and the requests of a window. Raises `OmniError`."""
    from omni_cli.cli.loadtest.reading import (
        check_speech,
        find_recogniser,
        read_endpoint,
        read_extra_body,
        read_requests_file,
        read_tokenizer,
        read_traffics,
    )
    from omni_cli.measure.bench.slo import OF_WORDS, parse_slos
    from omni_cli.measure.loadtest.workload import ServerWorkload

    output_len = options.output_len or DEFAULT_LEN
    called = read_endpoint(options.endpoint, options.modalities, output_len, ignore_eos=options.ignore_eos)
    if called.sends_speech:
        check_speech(options)
    dataset = read_requests_file(options)
    trace = None if dataset is None else dataset.arrivals_s
    traffics = read_traffics(options.vary, options.concurrency, options.request_rate, options.seed, trace)
    for note in () if dataset is None else dataset.notes:
        console.print_warning(note)
    return traffics, ServerWorkload(
        endpoint=called,
        # The same work for all variants.
        num_requests=options.num_requests or max(traffic.default_requests for traffic in traffics),
        input_len=options.input_len or DEFAULT_LEN,
        output_len=output_len if called.name == "chat" else None,
        seed=options.seed,
        load=traffics[0].settings if len(traffics) == 1 else {},
        slos=parse_slos(tuple(options.slo or ()), (*called.metrics, *(OF_WORDS if called.has_words else ()))),
        tokenizer=read_tokenizer(options.tokenizer),
        extra_body=read_extra_body(options.extra_body),
        dataset=dataset,
        sample_rate=options.sample_rate,
        recogniser=find_recogniser(options, called, dataset),
    )


def _choose_canaries(workload: ServerWorkload, options: LoadtestOptions) -> Canaries | None:
    """Return those that show caches which matter: between servers and runs, or where prompts of a file repeat."""
    if workload.endpoint.name != "chat" or options.find_max_rate is not None:
        return None
    if len(options.url) > 1 or options.baseline is not None:
        return "own"
    if workload.dataset is None or all(item.prompt is None for item in workload.dataset.requests):
        return None
    windows = options.num_iters_warmup + (options.num_iters or MIN_BLOCKS)
    return "new" if len(workload.dataset.requests) < windows * (workload.num_requests or 1) else None


def _find_max_rate(
    options: LoadtestOptions,
    traffic: Traffic,
    workload: ServerWorkload,
    plan_of: Callable[[list[Traffic], ServerWorkload], AbstractContextManager[Plan]],
) -> int:
    from omni_cli.cli.loadtest.max_rate import RateFinder
    from omni_cli.cli.loadtest.reading import check_max_rate
    from omni_cli.measure.loadtest.traffic import MIN_REQUESTS, ClosedLoop, OpenLoop
    from omni_cli.measure.loadtest.window import get_window
    from omni_cli.stats.saturation import MIN_WINDOWS

    target = check_max_rate(options)
    first, trace = (traffic.rate, traffic.trace) if isinstance(traffic, OpenLoop) else (None, None)
    # Windows of equal length: a short burst would pass at any rate.
    window_s = min(get_window(workload.slos), (options.budget_s(1) or math.inf) / MIN_WINDOWS)
    if options.num_requests:
        window_s = options.num_requests / (first or 1.0)

    def size(rate: float) -> int:
        return len(trace) if trace else min(max(math.ceil(rate * window_s), MIN_REQUESTS), MAX_REQUESTS)

    def plan(rate: float) -> AbstractContextManager[Plan]:
        own = OpenLoop(rate, options.seed, trace)
        return plan_of([own], replace(workload, num_requests=size(rate), load={}))

    def alone() -> AbstractContextManager[Plan]:
        return plan_of([ClosedLoop(1)], replace(workload, num_requests=MIN_REQUESTS, load={}))

    return RateFinder(plan, alone, size, options, target).run(first)
