"""The options of `omni profile`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from omni_cli.cli.bench.options import WorkloadOptions
from omni_cli.cli.options import OutputDirOption, OverwriteOption, TimeoutOption, option

# Fewer than eight give the overhead of profiling without its uncertainty.
DEFAULT_NUM_ITERS = 8


@dataclass(frozen=True, kw_only=True)
class ProfilingOptions(WorkloadOptions):
    """Options of `omni profile`: the workload to record, and the folder to write to."""

    stage: str = option(
        "--stage NAME|ar|diffusion|all", "The stages to profile: one, all of a kind, or all.", default="all"
    )
    num_iters: int = option(
        "--num-iters N", "Profiled iterations, and as many unprofiled ones.", default=DEFAULT_NUM_ITERS, min=1
    )
    num_iters_warmup: int = option(
        "--num-iters-warmup N", "Warm-up iterations, which are not counted.", default=2, min=0
    )
    output_dir: OutputDirOption = Path("out/profile")
    overwrite: OverwriteOption = False
    timeout: TimeoutOption = None
