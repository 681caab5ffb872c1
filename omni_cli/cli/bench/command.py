"""`omni bench`: measures latency and memory, compares variants, judges a gate."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from omni_cli.cli.bench.options import (
    AgainstOption,
    BaselineOption,
    BatchSizeOption,
    InputLenOption,
    NumItersOption,
    NumItersWarmupOption,
    OutputJsonOption,
    OutputLenOption,
    SelfCheckOption,
    SmallerIsBetterOption,
    StageOption,
    TimeBudgetOption,
    VaryOption,
)
from omni_cli.cli.gate_options import (
    AllowDifferenceOption,
    GateOption,
    IdenticalOutputsOption,
    JunitOption,
    MarginOption,
    MarkdownOption,
    MaxMemoryRegressionOption,
    MaxRegressionOption,
    MetricOption,
    need_numpy,
    read_fraction,
    read_limits,
)
from omni_cli.cli.loadtest.options import (
    BenchApiKeyOption,
    ConcurrencyOption,
    EndpointOption,
    ExtraBodyOption,
    IgnoreEosOption,
    ModalitiesOption,
    NumRequestsOption,
    RequestRateOption,
    RequestTimeoutOption,
    ServerOptions,
    SloOption,
    TokenizerOption,
    UrlOption,
    check_given,
    without_key,
)
from omni_cli.cli.options import (
    JsonOption,
    ModelOption,
    ProfileOption,
    QuietOption,
    SeedOption,
    SetOption,
    TimeoutOption,
    TrustRemoteCodeOption,
    VerboseOption,
)
from omni_cli.cli.profile_choice import choose_profile
from omni_cli.errors import StageError, UsageError

# What follows is loaded when a run begins, so that `--help` and a wrong option are answered at once.
if TYPE_CHECKING:
    from omni_cli.bench.variants import Variant
    from omni_cli.bench.verdicts import Question
    from omni_cli.bench.workload import Workload
    from omni_cli.config.gate_file import GateLimits
    from omni_cli.config.schema import EngineConfig

DEFAULT_BUDGET_S = 60.0


@dataclass(frozen=True)
class Source:
    """The profile and what the command line puts over it; every variant loads it anew, with its own overrides."""

    profile: str
    overrides: tuple[str, ...]
    model: str | None
    seed: int | None
    trust_remote_code: bool

    def load(self, overrides: tuple[str, ...] = ()) -> EngineConfig:
        from omni_cli.config.loader import load_profile

        return load_profile(
            self.profile,
            overrides=(*self.overrides, *overrides),
            model=self.model,
            trust_remote_code=self.trust_remote_code,
            seed=self.seed,
        )


@dataclass(frozen=True)
class Files:
    """What to write beside the terminal."""

    record: Path | None = None
    junit: Path | None = None
    markdown: Path | None = None
    smaller_is_better: Path | None = None


@dataclass(frozen=True)
class Settings:
    """How a run is limited and shown."""

    num_iters: int | None
    num_iters_warmup: int
    time_budget_s: float | None
    timeout_s: float | None
    files: Files
    self_check: bool
    as_json: bool
    verbose: bool
    quiet: bool


# Long: each option is a parameter of its own, as Typer reads them.
def bench(
    context: typer.Context,
    stage: StageOption = "all",
    vary: VaryOption = None,
    against: AgainstOption = None,
    baseline: BaselineOption = None,
    max_regression: MaxRegressionOption = None,
    max_memory_regression: MaxMemoryRegressionOption = None,
    metric: MetricOption = None,
    gate: GateOption = None,
    require_identical_outputs: IdenticalOutputsOption = False,
    margin: MarginOption = "2%",
    allow_difference: AllowDifferenceOption = None,
    num_iters: NumItersOption = None,
    num_iters_warmup: NumItersWarmupOption = 3,
    time_budget: TimeBudgetOption = None,
    batch_size: BatchSizeOption = 1,
    input_len: InputLenOption = 32,
    output_len: OutputLenOption = 32,
    output_json: OutputJsonOption = None,
    junit: JunitOption = None,
    markdown: MarkdownOption = None,
    smaller_is_better: SmallerIsBetterOption = None,
    self_check: SelfCheckOption = False,
    profile: ProfileOption = None,
    model: ModelOption = None,
    set_: SetOption = None,
    seed: SeedOption = None,
    as_json: JsonOption = False,
    timeout: TimeoutOption = None,
    verbose: VerboseOption = False,
    quiet: QuietOption = False,
    trust_remote_code: TrustRemoteCodeOption = False,
    url: UrlOption = None,
    endpoint: EndpointOption = "chat",
    modalities: ModalitiesOption = "text",
    concurrency: ConcurrencyOption = None,
    request_rate: RequestRateOption = None,
    num_requests: NumRequestsOption = None,
    slo: SloOption = None,
    api_key: BenchApiKeyOption = None,
    request_timeout: RequestTimeoutOption = 600.0,
    tokenizer: TokenizerOption = None,
    ignore_eos: IgnoreEosOption = True,
    extra_body: ExtraBodyOption = None,
) -> int:
    """Measure latency and memory of a model, a stage or a running server, compare variants, judge a gate.

    Variants run in processes of their own and take turns, iteration by iteration, until the interval of their ratio
    decides or the time is up; servers do so window by window of requests. Exits with 0 (done, or the gate passed), 1
    (regression), 3 (inconclusive), 4 (not comparable), 5 (outputs differ where they had to be equal) or 6 (a variant
    broke off, or requests failed).
    """
    check_given(context, has_url=bool(url))
    _check_one_question(self_check=self_check, vary=vary, against=against, baseline=baseline)
    files = Files(output_json, junit, markdown, smaller_is_better)

    def settings(num_variants: int) -> Settings:
        budget_s = _budget(time_budget, num_iters, num_variants)
        return Settings(
            num_iters, num_iters_warmup, budget_s, timeout, files, self_check, as_json, verbose, quiet
        )  # fmt: skip

    def question(num_variants: int) -> Question:
        limits = read_limits(gate, max_regression, max_memory_regression, metric, require_identical_outputs)
        if limits is not None and not (num_variants > 1 or baseline or self_check):
            hint = f"add {'a second `--url`, ' if url else '`--against`, '}`--baseline` or `--vary`"
            raise UsageError("a limit needs something to compare with", hint=hint)
        need_numpy("measuring")
        return _question(limits, metric, margin, baseline, allow_difference)

    command = ("omni", *without_key(sys.argv[1:]))
    if url:
        from omni_cli.cli.loadtest.command import run_server_bench

        server = ServerOptions(
            urls=tuple(url), endpoint=endpoint, modalities=modalities, model=model, concurrency=concurrency,
            request_rate=request_rate, num_requests=num_requests, slos=tuple(slo or ()), api_key=api_key,
            request_timeout_s=request_timeout, tokenizer=tokenizer, ignore_eos=ignore_eos, extra_body=extra_body,
            input_len=input_len, output_len=output_len, seed=seed or 0, vary=tuple(vary or ()),
        )  # fmt: skip
        return run_server_bench(server, question, settings, command=command)
    from omni_cli.bench.workload import Workload, lengths_given_by
    from omni_cli.config.bundled import find_profile

    path = find_profile(choose_profile(profile, model, quiet=quiet))
    source = Source(str(path.absolute()), tuple(set_ or ()), model, seed, trust_remote_code)
    config = source.load()
    workload = Workload(stage, batch_size, input_len, output_len)
    workload.measured(config)
    variants = _variants(tuple(vary or ()), config, workload, source)
    given = [*source.overrides, *(text for variant in variants for text in variant.overrides)]
    workload = replace(workload, given_lengths=lengths_given_by(given))
    count = len(variants) + bool(against)
    asked, limited = question(count), settings(count)
    from omni_cli.cli.bench.run import run_bench

    return run_bench(source, workload, variants, asked, limited, against=against, command=command)


def _check_one_question(
    *, self_check: bool, vary: list[str] | None, against: str | None, baseline: Path | None
) -> None:
    """Raise `UsageError` for options that ask two things at once."""
    if self_check and (vary or against or baseline):
        message = "`--self-check` measures one variant against itself"
        raise UsageError(message, hint="leave `--vary`, `--against` and `--baseline` out")
    if vary and against:
        raise UsageError(
            "`--vary` and `--against` cannot be combined", hint="one question at a time: choose one of them"
        )


def _variants(vary: tuple[str, ...], config: EngineConfig, workload: Workload, source: Source) -> tuple[Variant, ...]:
    """What `--vary` asks for, or the profile as it is; every configuration checked before anything starts."""
    from omni_cli.bench.variants import Variant, check_distinct, parse_vary

    variants = parse_vary(vary, config, workload.stage) or (Variant(config.name),)
    configs = [_load(source, variant) for variant in variants]
    check_distinct(variants, configs)
    for variant, varied in zip(variants, configs, strict=True):
        _check_checkpoint(varied)
        _check_device(variant, varied)
    return variants


def _load(source: Source, variant: Variant) -> EngineConfig:
    """A variant's configuration; what is wrong with its settings is said of `--vary`, where they were written."""
    from omni_cli.config.diagnostics import InvalidProfileError

    try:
        return source.load(variant.overrides)
    except InvalidProfileError as error:
        varied = {f"--set {text}" for text in variant.overrides}
        named = []
        for item in error.diagnostics:
            if item.place.source.label in varied:
                written = replace(item.place.source, label=f"--vary {variant.name}")
                item = replace(item, place=replace(item.place, source=written))
            named.append(item)
        raise InvalidProfileError(named) from error


def _check_device(variant: Variant, config: EngineConfig) -> None:
    """What this machine cannot do shows before any process is started. Raises `StageError`."""
    from omni_cli.engine.devices import check_devices, has_cuda_device

    check_devices(config)
    if has_cuda_device():
        return
    from omni_cli.execution.copies import why_not_async

    for stage in config.stages:
        if stage.output_copy == "async" and "output_copy" in variant.varied_keys(stage.name):
            raise StageError(f"variant `{variant.name}` cannot take effect: {why_not_async('cpu')}", stage=stage.name)


def _check_checkpoint(config: EngineConfig) -> None:
    """What is wrong with a checkpoint that is there shows before any process is started."""
    from omni_cli.checkpoints.resolve import is_built, resolve_model
    from omni_cli.engine.checkpoint_fit import check_fit

    model = resolve_model(config.model) if is_built(config.model) else config.model
    if Path(model).is_dir():
        check_fit(config, model)


def _question(
    limits: GateLimits | None,
    metrics: list[str] | None,
    margin: str,
    baseline: Path | None,
    allowed: list[str] | None,
) -> Question:
    from omni_cli.bench.verdicts import Question
    from omni_cli.record import load_record

    return Question(
        limits=limits,
        metrics=None if not metrics else tuple(metrics),
        margin=read_fraction("--margin", margin),
        baseline=None if baseline is None else load_record(baseline),
        allowed=tuple(allowed or ()),
    )


def _budget(given: float | None, num_iters: int | None, num_variants: int) -> float | None:
    """Seconds for measuring; None where a number of iterations was asked for and no time."""
    if given is not None:
        if not (math.isfinite(given) and given > 0):
            raise UsageError("invalid value for `--time-budget`: expected a number of seconds greater than 0")
        return given
    if num_iters is not None:
        return None
    return DEFAULT_BUDGET_S * max(num_variants - 1, 1)
