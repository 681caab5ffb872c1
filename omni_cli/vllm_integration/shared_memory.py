"""Unlink the memory that a stage's ranks share as soon as all of them have mapped it.

The system frees it when the last rank ends. vLLM unlinks it only at an orderly end: a killed stage would leave it
behind, and so would ranks on Ray, which are always killed.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from weakref import WeakSet

from vllm.distributed import get_pp_group, get_tp_group
from vllm.distributed.device_communicators import shm_broadcast

_created: WeakSet[shm_broadcast.ShmRingBuffer] = WeakSet()


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
