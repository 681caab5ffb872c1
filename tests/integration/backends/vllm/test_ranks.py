"""Unlinking the memory that ranks share."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest
from vllm.distributed.device_communicators.shm_broadcast import MessageQueue

from omni_cli.backends.vllm.workers import forget_message_queues


@pytest.mark.parametrize("num_children", [0, 2])
def test_each_process_may_unlink_memory_from_before_a_fork(num_children):
    """vLLM forks its ranks where CUDA has not been started; they have the engine's own queue as well."""
    buffer = MessageQueue(n_reader=2, n_local_reader=2, max_chunk_bytes=64, max_chunks=2).buffer
    file = Path("/dev/shm", buffer.shared_memory.name)
    assert file.exists()
    forks = multiprocessing.get_context("fork")
    children = [forks.Process(target=forget_message_queues) for _ in range(num_children)]
    for child in children:
        child.start()
    for child in children:
        child.join(60)
    assert [child.exitcode for child in children] == [0] * num_children
    forget_message_queues()
    assert not file.exists()
    assert not buffer.is_creator, "it would be unlinked again"
