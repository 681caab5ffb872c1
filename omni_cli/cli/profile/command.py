"""`omni profile`: records where time and memory go in one stage or all."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from omni_cli.bench.profile_source import ProfileSource
from omni_cli.cli.bench.options import BatchSizeOption, InputLenOption, OutputLenOption
from omni_cli.cli.gate_options import need_numpy
from omni_cli.cli.options import (
    JsonOption,
    ModelOption,
    OutputDirOption,
    ProfileOption,
    QuietOption,
    SeedOption,
    SetOption,
    TimeoutOption,
    TrustRemoteCodeOption,
    VerboseOption,
)
from omni_cli.cli.profile_choice import choose_profile
from omni_cli.errors import ExitCode

DEFAULT_OUTPUT_DIR = Path("out/profile")
# Fewer than eight say how much slower profiling makes a request, but not how sure that is.
DEFAULT_NUM_ITERS = 8

StageOption = Annotated[
    str,
    typer.Option("--stage", metavar="NAME|ar|diffusion|all", help="What to profile: a stage, all of a kind, or all."),
]
NumItersOption = Annotated[
    int, typer.Option("--num-iters", metavar="N", min=1, help="Profiled iterations, and as many unprofiled ones.")
]
NumItersWarmupOption = Annotated[
    int, typer.Option("--num-iters-warmup", metavar="N", min=0, help="Iterations before, that are not counted.")
]


def profile(
    stage: StageOption = "all",
    num_iters: NumItersOption = DEFAULT_NUM_ITERS,
    num_iters_warmup: NumItersWarmupOption = 2,
    batch_size: BatchSizeOption = 1,
    input_len: InputLenOption = 32,
    output_len: OutputLenOption = 32,
    output_dir: OutputDirOption = DEFAULT_OUTPUT_DIR,
    profile: ProfileOption = None,
    model: ModelOption = None,
    set_: SetOption = None,
    seed: SeedOption = None,
    as_json: JsonOption = False,
    timeout: TimeoutOption = None,
    verbose: VerboseOption = False,
    quiet: QuietOption = False,
    trust_remote_code: TrustRemoteCodeOption = False,
) -> ExitCode:
    """Record where time and memory go in a model or a stage.

    Writes a trace that opens in Perfetto and a record, and reports findings: how busy the device was, the slowest
    operators, copies, steps unlike the others, memory by phase, and how near the machine's limits each stage comes.
    Profiled and unprofiled iterations alternate, so that it also reports how much slower profiling makes them.
    """
    from omni_cli.bench.workload import Workload, lengths_given_by
    from omni_cli.config.bundled import find_profile
    from omni_cli.engine.devices import check_devices

    path = find_profile(choose_profile(profile, model, quiet=quiet))
    source = ProfileSource(str(path.absolute()), tuple(set_ or ()), model, seed, trust_remote_code)
    config = source.load()
    workload = Workload(stage, batch_size, input_len, output_len)
    workload.measured(config)
    workload = replace(workload, given_lengths=lengths_given_by(source.overrides))
    check_devices(config)
    need_numpy("profiling")
    from omni_cli.cli.profile.run import ProfileSettings, run_profile

    settings = ProfileSettings(num_iters, num_iters_warmup, output_dir, timeout, as_json, verbose, quiet)
    return run_profile(config, workload, settings, command=("omni", *sys.argv[1:]))
