"""`omni bench`: measures latency and memory, compares variants, judges a gate."""

from __future__ import annotations

import sys
from dataclasses import replace

from omni_cli.cli.bench.options import (
    AgainstOption,
    BaselineOption,
    BatchSizeOption,
    InputLenOption,
    NumItersOption,
    NumItersWarmupOption,
    OutputJsonOption,
    OutputLenOption,
    StageOption,
    TimeBudgetOption,
    VaryOption,
)
from omni_cli.cli.bench.settings import BenchSettings, ReportFiles, read_budget
from omni_cli.cli.gate_options import (
    GateOption,
    IdenticalOutputsOption,
    JunitOption,
    MarkdownOption,
    MaxMemoryRegressionOption,
    MaxRegressionOption,
    MetricOption,
    need_numpy,
    read_limits,
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
from omni_cli.errors import UsageError


# Long: each option is a parameter of its own, as Typer reads them.
def bench(
    stage: StageOption = "all",
    vary: VaryOption = None,
    against: AgainstOption = None,
    baseline: BaselineOption = None,
    max_regression: MaxRegressionOption = None,
    max_memory_regression: MaxMemoryRegressionOption = None,
    metric: MetricOption = None,
    gate: GateOption = None,
    require_identical_outputs: IdenticalOutputsOption = False,
    num_iters: NumItersOption = None,
    num_iters_warmup: NumItersWarmupOption = 3,
    time_budget: TimeBudgetOption = None,
    batch_size: BatchSizeOption = 1,
    input_len: InputLenOption = 32,
    output_len: OutputLenOption = 32,
    output_json: OutputJsonOption = None,
    junit: JunitOption = None,
    markdown: MarkdownOption = None,
    profile: ProfileOption = None,
    model: ModelOption = None,
    set_: SetOption = None,
    seed: SeedOption = None,
    as_json: JsonOption = False,
    timeout: TimeoutOption = None,
    verbose: VerboseOption = False,
    quiet: QuietOption = False,
    trust_remote_code: TrustRemoteCodeOption = False,
) -> int:
    """Measure latency and memory of a model or a stage, compare variants, judge a gate.

    Variants run in processes of their own, interleaved iteration by iteration, until the interval of their ratio
    decides or the time is up. Exits with 0 (done, or the gate passed), 1 (regression), 3 (inconclusive), 4 (not
    comparable), 5 (outputs differ where they had to be equal) or 6 (a variant broke off).
    """
    if vary and against:
        hint = "one question at a time: choose one of them"
        raise UsageError("`--vary` and `--against` cannot be combined", hint=hint)
    from omni_cli.bench.profile_source import ProfileSource
    from omni_cli.bench.workload import Workload, lengths_given_by
    from omni_cli.config.bundled import find_profile

    path = find_profile(choose_profile(profile, model, quiet=quiet))
    source = ProfileSource(str(path.absolute()), tuple(set_ or ()), model, seed, trust_remote_code)
    config = source.load()
    workload = Workload(stage, batch_size, input_len, output_len)
    workload.measured(config)
    limits = read_limits(gate, max_regression, max_memory_regression, metric, require_identical_outputs)
    need_numpy("measuring")
    from omni_cli.bench.local import local_plan, plan_treatments
    from omni_cli.cli.bench.run import measure, read_question

    treatments = plan_treatments(tuple(vary or ()), config, workload, source)
    given = [*source.overrides, *(text for treatment in treatments for text in treatment.overrides)]
    workload = replace(workload, given_lengths=lengths_given_by(given))
    count = len(treatments) + bool(against)
    if limits is not None and count == 1 and baseline is None:
        raise UsageError("a limit needs a baseline", hint="add `--against`, `--baseline` or `--vary`")
    question = read_question(limits, metric, baseline)
    files = ReportFiles(output_json, junit, markdown)
    budget_s = read_budget(time_budget, num_iters, count)
    settings = BenchSettings(num_iters, num_iters_warmup, budget_s, timeout, files, as_json, verbose, quiet)
    files.check_writable()
    command = ("omni", *sys.argv[1:])
    with local_plan(source, workload, treatments, against=against, command=command, verbose=verbose) as plan:
        return measure(plan, question, settings)
