"""`omni bench`: measures latency and memory, compares variants, judges a gate."""

from __future__ import annotations

import sys
from dataclasses import replace

from omni_cli.cli.bench.options import BenchOptions
from omni_cli.cli.profile_choice import fetch_model
from omni_cli.core.errors import UsageError


def bench(options: BenchOptions) -> int:
    """Measure latency and memory of a model or a stage, compare variants, judge a gate.

    Variants run in processes of their own, interleaved iteration by iteration, until the interval of their ratio
    decides or the time is up. Exits with 0 (done, or the gate passed), 1 (regression), 3 (inconclusive), 4 (not
    comparable), 5 (outputs differ where they had to be equal) or 6 (a variant failed).
    """
    if options.vary and options.against:
        hint = "choose one of them"
        raise UsageError("`--vary` and `--against` cannot be combined", hint=hint)
    source, config, workload = options.read(options.stage)
    limits = options.limits(options.max_memory_regression)
    from omni_cli.measure.bench.quality import parse_weights

    weights = parse_weights(options.weights)
    from omni_cli.cli.bench.run import measure, read_spec
    from omni_cli.measure.bench.local import load_variant_config, local_plan, plan_variant_configs
    from omni_cli.measure.bench.workload import lengths_given_by

    variants = plan_variant_configs(tuple(options.vary or ()), config, workload, source)
    varied = [text for variant in variants for text in variant.overrides]
    workload = replace(workload, given_lengths=lengths_given_by([*source.overrides, *varied]))
    count = len(variants) + bool(options.against)
    if limits is not None and count == 1 and options.baseline is None:
        raise UsageError("a limit needs a baseline", hint="add `--against`, `--baseline` or `--vary`")
    if weights and count == 1:
        raise UsageError("`--quality` compares variants", hint="add `--against` or `--vary`")
    spec = read_spec(options, limits)
    budget_s = options.budget_s(count)
    options.check_files()
    for variant in variants:
        fetch_model(load_variant_config(source, variant), quiet=options.quiet)
    command = ("omni", *sys.argv[1:])
    with local_plan(
        source,
        workload,
        variants,
        against=options.against,
        command=command,
        verbose=options.verbose,
        keeps_outputs=options.output_json is not None,
    ) as plan:
        return measure(plan, spec, options, budget_s, weights)
