"""Memory that a stage's ranks share: its names are taken off as soon as all of them have it.

It stays until the last of them ends. vLLM takes the names off at an orderly end only: what is killed would leave it
behind, and so would ranks on Ray, which always are.
"""

from __future__ import annotations

import contextlib
import gc
from pathlib import Path

from vllm.distributed import get_pp_group, get_tp_group
from vllm.distributed.device_communicators.shm_broadcast import ShmRingBuffer


def forget_message_queues() -> None:
    """Those by which the engine talks to its ranks and that this process or, before a fork, its parent has made.

    Call it once the engine is there.
    """
    # vLLM hides what there is after loading from the garbage collector, and from a search.
    was_frozen = gc.get_freeze_count() > 0
    gc.unfreeze()
    objects = gc.get_objects()
    if was_frozen:
        gc.freeze()
    for buffer in objects:
        # Not `isinstance`, which asks proxies, also those of things that are no more.
        if type(buffer) is ShmRingBuffer and buffer.is_creator:
            # A forked rank has what its parent has made as well; each of them comes here, and the first one is enough.
            with contextlib.suppress(FileNotFoundError):
                buffer.shared_memory.unlink()
            # Or it would be unlinked again.
            buffer.is_creator = False


def forget_cpu_channels() -> None:
    """Those by which ranks on a CPU exchange tensors; call it once they have been set up."""
    for group in (get_tp_group(), get_pp_group()):
        channel = getattr(group.device_communicator, "dist_module", None)
        name: str | None = getattr(channel, "group_name", None)
        if name is not None:
            for rank in range(group.world_size):
                Path("/dev/shm", f"{name.lstrip('/')}_{rank}").unlink(missing_ok=True)
