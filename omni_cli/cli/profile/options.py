"""The options of `omni profile`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from omni_cli.cli.bench.options import WorkloadOptions
from omni_cli.cli.options import OutputDirOption, OverwriteOption, TimeoutOption, option

# Fewer than eight give the overhead of profiling without its uncertainty.
DEFAULT_NUM_ITERS = 8


@dataclass(frozen=True, kw_only=True)
class ProfilingOptions(WorkloadOptions):
    """Options of `omni profile`: the workload to record, and the folder to write to."""

    stage: Annotated[
        str, option("--stage", "NAME|ar|diffusion|all", "The stages to profile: one, all of a kind, or all.")
    ] = "all"
    num_iters: Annotated[
        int, option("--num-iters", "N", "Profiled iterations, and as many unprofiled ones.", min=1)
    ] = DEFAULT_NUM_ITERS
    num_iters_warmup: Annotated[
        int, option("--num-iters-warmup", "N", "Warm-up iterations, which are not counted.", min=0)
    ] = 2
    output_dir: OutputDirOption = Path("out/profile")
    overwrite: OverwriteOption = False
    timeout: TimeoutOption = None
