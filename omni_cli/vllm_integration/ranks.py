"""vLLM's ranks in separate processes: their setup, and the memory that they share.

Shared memory is unlinked as soon as all ranks have mapped it: the system frees it when the last of them ends. vLLM
unlinks it only at an orderly end: a killed stage would leave it behind, and so would ranks on Ray, which are always
killed.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakSet

from vllm.distributed import get_pp_group, get_tp_group
from vllm.distributed.device_communicators import shm_broadcast
from vllm.platforms import current_platform

from omni_cli.errors import StageError

if TYPE_CHECKING:
    from vllm.v1.engine.llm_engine import LLMEngine

_created: WeakSet[shm_broadcast.ShmRingBuffer] = WeakSet()


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


class RecordedRingBuffer(shm_broadcast.ShmRingBuffer):
    """vLLM's ring buffer, recorded by the process that creates it."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)
        if self.is_creator:
            _created.add(self)


# vLLM's message queues look the class up by this name. Only a rank's main loop holds its queue, so no hook reaches it.
shm_broadcast.ShmRingBuffer = RecordedRingBuffer


def forget_message_queues() -> None:
    """Unlink the queues between engine and ranks that this process, or its parent before a fork, created.

    Call it once the engine is loaded.
    """
    for buffer in _created:
        # A forked rank also has its parent's queues; the first process to get here unlinks them.
        with contextlib.suppress(FileNotFoundError):
            buffer.shared_memory.unlink()
        # Or it would be unlinked again.
        buffer.is_creator = False


def forget_cpu_channels() -> None:
    """Unlink the channels over which ranks on a CPU exchange tensors, once they are set up."""
    for group in (get_tp_group(), get_pp_group()):
        channel = getattr(group.device_communicator, "dist_module", None)
        name: str | None = getattr(channel, "group_name", None)
        if name is not None:
            for rank in range(group.world_size):
                Path("/dev/shm", f"{name.lstrip('/')}_{rank}").unlink(missing_ok=True)
