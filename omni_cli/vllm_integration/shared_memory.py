"""Unlinks the memory that a stage's ranks share as soon as all of them have it.

It stays until the last of them ends. vLLM unlinks it at an orderly end only: a killed stage would leave it behind, and
so would ranks on Ray, which always are.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from weakref import WeakSet

from vllm.distributed import get_pp_group, get_tp_group
from vllm.distributed.device_communicators import shm_broadcast

_created: WeakSet[shm_broadcast.ShmRingBuffer] = WeakSet()


class RecordedRingBuffer(shm_broadcast.ShmRingBuffer):
    """vLLM's, noted by the process that creates it."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)
        if self.is_creator:
            _created.add(self)


# vLLM's message queues look the class up by this name. A rank's own queue is held by its main loop alone, so there is
# no hook that leads to it.
shm_broadcast.ShmRingBuffer = RecordedRingBuffer


def forget_message_queues() -> None:
    """Unlink the queues between engine and ranks that this process or, before a fork, its parent has created.

    Call it once the engine is loaded.
    """
    for buffer in _created:
        # A forked rank has its parent's as well; each of them comes here, and the first one is enough.
        with contextlib.suppress(FileNotFoundError):
            buffer.shared_memory.unlink()
        # Or it would be unlinked again.
        buffer.is_creator = False


def forget_cpu_channels() -> None:
    """Unlink the channels by which ranks on a CPU exchange tensors; call it once they have been set up."""
    for group in (get_tp_group(), get_pp_group()):
        channel = getattr(group.device_communicator, "dist_module", None)
        name: str | None = getattr(channel, "group_name", None)
        if name is not None:
            for rank in range(group.world_size):
                Path("/dev/shm", f"{name.lstrip('/')}_{rank}").unlink(missing_ok=True)
