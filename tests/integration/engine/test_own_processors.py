"""OpenMP's threads are kept off the main thread's processor, and may use it again afterwards."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from omni_cli.engine.process.own_processors import OwnProcessors, openmp_threads

ALL = os.sched_getaffinity(0)
FIRST = {min(ALL)}
pytestmark = pytest.mark.skipif(len(ALL) < 2, reason="needs two processors")


def allowed() -> dict[int, set[int]]:
    return {int(path.name): os.sched_getaffinity(int(path.name)) for path in Path("/proc/self/task").iterdir()}


def start_threads(count: int) -> None:
    torch.set_num_threads(count)
    torch.ones(1 << 22).exp_()


@pytest.fixture
def pool() -> Iterator[set[int]]:
    """OpenMP's threads beside this one, which stays on one processor, so that the test knows which."""
    before = torch.get_num_threads()
    start_threads(before + 1)
    threads = set(openmp_threads())
    assert threads
    os.sched_setaffinity(0, FIRST)
    yield threads
    os.sched_setaffinity(0, ALL)
    torch.set_num_threads(before)


def test_threads_are_kept_off_and_given_back(pool):
    processors = OwnProcessors()
    done = threading.Event()
    other = threading.Thread(target=done.wait)
    other.start()
    try:
        for _ in range(2):
            processors.keep_off()
            now = allowed()
            assert all(now[thread] == ALL - FIRST for thread in pool)
            assert now[other.native_id] == FIRST  # as this thread, which started it
            processors.keep_off()
            assert allowed() == now
            processors.give_back()
            assert all(allowed()[thread] == ALL for thread in pool)
    finally:
        done.set()
        other.join()


def test_a_thread_with_one_processor_keeps_it(pool):
    processors = OwnProcessors()
    bound, *others = pool
    os.sched_setaffinity(bound, FIRST)
    try:
        processors.keep_off()
        assert allowed()[bound] == FIRST and all(allowed()[thread] == ALL - FIRST for thread in others)
        processors.give_back()
        assert allowed()[bound] == FIRST
    finally:
        os.sched_setaffinity(bound, ALL)


def test_threads_that_started_since_are_kept_off_too(pool):
    processors = OwnProcessors()
    processors.keep_off()
    processors.give_back()
    os.sched_setaffinity(0, ALL)  # which they inherit
    start_threads(len(pool) + 3)
    os.sched_setaffinity(0, FIRST)
    processors.keep_off()
    now = allowed()
    assert len(openmp_threads()) > len(pool) and all(now[thread] == ALL - FIRST for thread in openmp_threads())
    processors.give_back()
