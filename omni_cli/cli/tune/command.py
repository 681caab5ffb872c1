"""`omni tune`: searches the settings of a profile for the best one."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from omni_cli.cli.options import check_model_based, read_fraction, read_quality
from omni_cli.cli.profile_choice import fetch_model
from omni_cli.cli.tune.options import OBJECTIVES, TuneOptions
from omni_cli.core.errors import ExitCode, UsageError
from omni_cli.core.files import scratch_folder
from omni_cli.core.machine import count_usable_cores


def tune(options: TuneOptions) -> ExitCode:
    """Search settings for the fastest one that keeps limits on memory, quality and latency.

    Settings race: all run interleaved, each is started several times, and those that cannot be the best drop out.
    The search ends when, with 95 % probability, no setting is better than the answer by more than `--margin`.
    `--output-dir` gets the answer as a profile (`profile.yaml`), and the record (`tune.json`), from which the same
    command continues after an interrupt. Exits with 0 (found), 2 (usage), 3 (inconclusive) or 6 (no setting runs).
    """
    margin = read_fraction("--margin", options.margin)
    if margin == 0:
        message = "invalid value for `--margin`: no number of starts proves equality"
        raise UsageError(message, hint="use 2%, for example")
    if options.objective == "goodput" and not options.slo:
        raise UsageError("`--objective goodput` needs limits", hint="for example `--slo ttft:200ms`")
    command = ("omni", *sys.argv[1:])
    if options.url is not None:
        from omni_cli.cli.tune.run import search, server_search

        return search(server_search(options, margin), options, command)
    for name in ("endpoint", "wait"):
        if getattr(options, name) is not None:
            raise UsageError(f"`--{name}` is for a running server", hint="add `--url`, or omit it")
    return _search_profile(options, margin, command)


def _search_profile(options: TuneOptions, margin: float, command: tuple[str, ...]) -> ExitCode:
    from omni_cli.engine.describing import get_capabilities
    from omni_cli.measure.bench.tuning import plan_space
    from omni_cli.measure.bench.workload import measured_stages

    source, config, workload = options.read(options.stage)
    quality = tuple(read_quality(text) for text in options.quality or ())
    check_model_based(quality, ())
    max_memory_bytes = options.max_memory_bytes()
    kinds = [stage.kind for stage in measured_stages(config, workload.stage)]
    modalities = get_capabilities(config).modalities if "diffusion" in kinds else ()
    workload = replace(workload, slo=_read_slo(options, kinds, modalities))
    if options.objective == "tokens_per_second" and kinds != ["ar"]:
        raise UsageError(
            "`--objective tokens_per_second` is for a single AR stage",
            hint="name one with `--stage`, or use `--objective e2e`",
        )
    if options.objective == "images_per_second" and "image" not in modalities:
        raise UsageError(
            f"these stages of `{config.name}` make no images, so that `images_per_second` cannot be the objective",
            hint="choose another profile, or use `--objective e2e`",
        )
    space = plan_space(options.search or (), config, workload, source, count_usable_cores())
    from omni_cli.cli.tune.run import SettingsSearch, search, write_profile
    from omni_cli.measure.bench.local import local_plan
    from omni_cli.measure.bench.tuning import TuneLimits

    limits = TuneLimits(max_memory_bytes, quality, bool(workload.slo) and options.objective != "goodput")
    fetch_model(config, quiet=options.quiet)
    with scratch_folder("omni-tune-") as folder:
        # The inputs of a stage in the middle of the chain are the same for all settings.
        plan = partial(
            local_plan, source, workload, against=None, command=(), verbose=options.verbose, inputs=folder / "inputs"
        )
        wanted = SettingsSearch(
            workload.describe(source.load()),
            space,
            OBJECTIVES[options.objective],
            margin,
            limits,
            lambda variants: plan(tuple(variants)),
            partial(write_profile, source),
        )
        return search(wanted, options, command)


def _read_slo(options: TuneOptions, kinds: Sequence[str], modalities: Sequence[str]) -> tuple[tuple[str, float], ...]:
    from omni_cli.measure.bench.slo import OF_AUDIO, OF_TEXT, parse_slos, row_limits

    of_tokens = OF_TEXT if "ar" in kinds else ()
    of_audio = OF_AUDIO if "audio" in modalities else ()
    slos = parse_slos(tuple(options.slo or ()), (*of_tokens, "e2e", *of_audio))
    return tuple(row_limits(slos).items())
