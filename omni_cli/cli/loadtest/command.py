"""`omni loadtest`: measures running OpenAI-compatible servers."""

from __future__ import annotations

import sys

from omni_cli.cli.bench.options import BaselineOption, OutputJsonOption, TimeBudgetOption
from omni_cli.cli.bench.settings import BenchSettings, ReportFiles, read_budget
from omni_cli.cli.gate_options import (
    DEFAULT_MARGIN,
    AllowDifferenceOption,
    GateOption,
    IdenticalOutputsOption,
    JunitOption,
    MarginOption,
    MarkdownOption,
    MaxRegressionOption,
    MetricOption,
    need_numpy,
    read_limits,
)
from omni_cli.cli.loadtest.options import (
    AnswerLenOption,
    ApiKeyOption,
    ConcurrencyOption,
    EndpointOption,
    ExtraBodyOption,
    IgnoreEosOption,
    LoadVaryOption,
    ModalitiesOption,
    NumRequestsOption,
    NumWarmupWindowsOption,
    NumWindowsOption,
    PromptLenOption,
    RequestRateOption,
    RequestSeedOption,
    RequestTimeoutOption,
    ServerModelOption,
    SloOption,
    TokenizerOption,
    UrlArgument,
    without_key,
)
from omni_cli.cli.options import JsonOption, QuietOption, TimeoutOption, VerboseOption
from omni_cli.errors import UsageError


# Long: each option is a parameter of its own, as Typer reads them.
def loadtest(
    url: UrlArgument,
    endpoint: EndpointOption = "chat",
    modalities: ModalitiesOption = "text",
    concurrency: ConcurrencyOption = None,
    request_rate: RequestRateOption = None,
    vary: LoadVaryOption = None,
    num_requests: NumRequestsOption = None,
    slo: SloOption = None,
    baseline: BaselineOption = None,
    max_regression: MaxRegressionOption = None,
    metric: MetricOption = None,
    gate: GateOption = None,
    require_identical_outputs: IdenticalOutputsOption = False,
    margin: MarginOption = DEFAULT_MARGIN,
    allow_difference: AllowDifferenceOption = None,
    num_iters: NumWindowsOption = None,
    num_iters_warmup: NumWarmupWindowsOption = 3,
    time_budget: TimeBudgetOption = None,
    input_len: PromptLenOption = 32,
    output_len: AnswerLenOption = 32,
    tokenizer: TokenizerOption = None,
    ignore_eos: IgnoreEosOption = True,
    extra_body: ExtraBodyOption = None,
    model: ServerModelOption = None,
    api_key: ApiKeyOption = None,
    request_timeout: RequestTimeoutOption = 600.0,
    seed: RequestSeedOption = 0,
    output_json: OutputJsonOption = None,
    junit: JunitOption = None,
    markdown: MarkdownOption = None,
    as_json: JsonOption = False,
    timeout: TimeoutOption = None,
    verbose: VerboseOption = False,
    quiet: QuietOption = False,
) -> int:
    """Measure running OpenAI-compatible servers, compare servers or loads, judge a gate.

    Requests are sent in windows, interleaved between the servers, until the interval of their ratio decides or the
    time is up. Exits with 0 (done, or the gate passed), 1 (regression), 3 (inconclusive), 4 (not comparable), 5
    (outputs differ where they had to be equal) or 6 (requests failed).
    """
    limits = read_limits(gate, max_regression, None, metric, require_identical_outputs)
    need_numpy("measuring")
    from omni_cli.cli.bench.run import measure, read_question
    from omni_cli.cli.loadtest.reading import (
        check_counts,
        read_endpoint,
        read_extra_body,
        read_tokenizer,
        read_traffics,
    )
    from omni_cli.loadtest.plan import server_plan
    from omni_cli.loadtest.slo import parse_slos
    from omni_cli.loadtest.target import parse_url
    from omni_cli.loadtest.workload import ServerWorkload

    urls = [parse_url(text) for text in url]
    traffics = read_traffics(vary, concurrency, request_rate, seed)
    called = read_endpoint(endpoint, modalities, output_len, ignore_eos=ignore_eos)
    workload = ServerWorkload(
        endpoint=called,
        # The same work for all variants.
        num_requests=num_requests or max(traffic.default_requests for traffic in traffics),
        input_len=input_len,
        output_len=output_len if called.name == "chat" else None,
        seed=seed,
        load=traffics[0].settings if len(traffics) == 1 else {},
        slos=parse_slos(tuple(slo or ()), called.metrics),
        tokenizer=read_tokenizer(tokenizer),
        extra_body=read_extra_body(extra_body),
    )
    count = check_counts(urls, traffics, workload.num_requests)
    if limits is not None and count == 1 and baseline is None:
        raise UsageError("a limit needs a baseline", hint="add a second URL, `--baseline` or `--vary`")
    question = read_question(limits, metric, baseline, margin=margin, allowed=allow_difference)
    files = ReportFiles(output_json, junit, markdown)
    budget_s = read_budget(time_budget, num_iters, count)
    settings = BenchSettings(num_iters, num_iters_warmup, budget_s, timeout, files, as_json, verbose, quiet)
    files.check_writable()
    command = ("omni", *without_key(sys.argv[1:]))
    with server_plan(
        urls, traffics, workload, model=model, api_key=api_key, request_timeout_s=request_timeout, command=command
    ) as plan:
        return measure(plan, question, settings)
