"""Setup of vLLM's ranks in separate processes; import `vllm_stage` first."""

from __future__ import annotations

import importlib.util
import os
import sys
from typing import TYPE_CHECKING

from vllm.platforms import current_platform

from omni_cli.errors import StageError
from omni_cli.vllm_integration.shared_memory import forget_message_queues

if TYPE_CHECKING:
    from vllm.v1.engine.llm_engine import LLMEngine


def prepare_ranks(num_ranks: int, stage: str) -> None:
    """Prepare this process before the engine is created. Raises `StageError` if there are fewer cores than ranks.

    On a CPU with fewer NUMA nodes than ranks, vLLM must be given each rank's cores; they are divided evenly unless
    `VLLM_CPU_OMP_THREADS_BIND` is set.
    """
    # A spawned process first reruns the main module, which must be the one with our imports and workarounds.
    sys.modules["__main__"].__spec__ = importlib.util.find_spec("omni_cli.engine.process.preload_vllm")
    if not current_platform.is_cpu() or "VLLM_CPU_OMP_THREADS_BIND" in os.environ:
        return
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < num_ranks:
        raise StageError(f"{num_ranks} ranks need as many cores, and there are {len(cores)}", stage=stage)
    share = len(cores) // num_ranks
    groups = [cores[rank * share : (rank + 1) * share] for rank in range(num_ranks)]
    os.environ["VLLM_CPU_OMP_THREADS_BIND"] = "|".join(",".join(map(str, group)) for group in groups)


def forget_shared_memory(engine: LLMEngine) -> None:
    """Unlink the shared memory of a running engine and its ranks, so that nothing remains if they are killed."""
    engine.collective_rpc("forget_message_queues")
    forget_message_queues()
