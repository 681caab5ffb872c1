"""Asynchronous copies against a device that is late: nobody reads early, nothing is used twice, every second counts.

The properties are run on broken copies too, and have to fail there.
"""

from __future__ import annotations

import gc
import threading
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.late_device import LateDevice

from omni_cli.backends.execution import copies
from omni_cli.backends.execution.copies import AsyncCopy, SyncCopy, make_output_copy, why_not_async
from omni_cli.backends.execution.host_buffers import HostBufferPool
from omni_cli.core.errors import OmniError

DTYPES = [torch.float32, torch.bfloat16, torch.uint8, torch.bool, torch.int64]


class Consumer:
    """Starts copies, takes some results, keeps and forgets others, and knows what each tensor must contain."""

    def __init__(self, copy: AsyncCopy, device: LateDevice) -> None:
        self.copy, self.device = copy, device
        self.pending: list[tuple[Any, torch.Tensor]] = []
        self.held: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.count = 0

    def start(self, size: int, dtype: torch.dtype) -> None:
        source, expected = self._source(size, dtype)
        self.pending.append((self.copy.start(source), expected))

    def start_reused(self, size: int, dtype: torch.dtype) -> None:
        """Copy from memory that the device overwrites immediately, as a CUDA graph does."""
        source, expected = self._source(size, dtype)
        self.pending.append((self.copy.start(source, reused=True), expected))
        source.zero_()

    def start_strided(self, size: int, dtype: torch.dtype) -> None:
        source, expected = self._source(2 * size, dtype)
        self.pending.append((self.copy.start(source[::2]), expected[::2]))

    def get(self, index: int) -> None:
        if self.pending:
            pending, expected = self.pending[index % len(self.pending)]
            self.held.append((pending.get(), expected))

    def keep_a_view(self, index: int) -> None:
        if self.held:
            host, expected = self.held.pop(index % len(self.held))
            self.held.append((host[-1:], expected[-1:]))

    def forget_copy(self, index: int) -> None:
        if self.pending:
            self.pending.pop(index % len(self.pending))

    def forget_tensor(self, index: int) -> None:
        if self.held:
            self.held.pop(index % len(self.held))

    def pass_time(self, seconds: int) -> None:
        self.device.pass_time(seconds)

    def check(self) -> None:
        for host, expected in self.held:
            assert torch.equal(host, expected), "a consumer holds something else than what was copied"
        assert not self.device.problems, self.device.problems[0]

    def _source(self, size: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        self.count += 1
        source = (torch.arange(size) + self.count).to(dtype)
        return source, source.clone()


def run(copy: AsyncCopy, device: LateDevice, steps: list[tuple]) -> Consumer:
    consumer = Consumer(copy, device)
    for name, *arguments in steps:
        getattr(consumer, name)(*arguments)
        consumer.check()
    device.pass_time(1e9)
    consumer.check()
    return consumer


sizes, dtypes, indices = st.integers(1, 3000), st.sampled_from(DTYPES), st.integers(0, 5)
steps = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["start", "start_reused", "start_strided"]), sizes, dtypes),
        st.tuples(st.sampled_from(["get", "keep_a_view", "forget_copy", "forget_tensor"]), indices),
        st.tuples(st.just("pass_time"), st.integers(1, 20_000)),
    ),
    max_size=40,
)


@settings(max_examples=200, deadline=None)
@given(steps=steps)
def test_consumers_get_the_copied_values_in_any_order(steps):
    device = LateDevice()
    copy = AsyncCopy(device)
    consumer = run(copy, device, steps)
    counters = copy.counters
    assert counters.copies == counters.pinned_copies == consumer.count
    # Copies that nobody waited for are counted as hidden when the next copy starts.
    copy.start(torch.zeros(1)).get()
    assert counters.copy_s == pytest.approx(counters.copy_exposed_s + counters.copy_hidden_s)
    assert counters.copy_s == pytest.approx(counters.copied_bytes)
    assert min(counters.as_dict().values()) >= 0


class ReadsEarly(AsyncCopy):
    def start(self, tensor, *, reused=False):
        pending = super().start(tensor, reused=reused)
        return SimpleNamespace(get=lambda: pending._host)


class LetsGoOfSources(AsyncCopy):
    def start(self, tensor, *, reused=False):
        pending = super().start(tensor, reused=reused)
        self._under_way.clear()
        return pending


class ClonesNothing(AsyncCopy):
    def start(self, tensor, *, reused=False):
        return super().start(tensor)


class LendsTwice(AsyncCopy):
    def __init__(self, backend):
        super().__init__(backend)
        buffer = backend.allocate(1 << 16)
        self._pool = SimpleNamespace(
            lend=lambda shape, dtype: buffer[: dtype.itemsize * torch.Size(shape).numel()].view(dtype).view(shape)
        )


FLOAT = torch.float32


@pytest.mark.parametrize(
    ("broken", "steps"),
    [
        (ReadsEarly, [("start", 8, FLOAT), ("get", 0)]),
        (LetsGoOfSources, [("start", 8, FLOAT), ("forget_copy", 0)]),
        (ClonesNothing, [("start_reused", 8, FLOAT), ("get", 0)]),
        (LendsTwice, [("start", 8, FLOAT), ("get", 0), ("start", 8, FLOAT), ("get", 1)]),
    ],
)
def test_broken_copies_are_caught(broken, steps):
    device = LateDevice()
    run(AsyncCopy(device), device, steps)
    device = LateDevice()
    with pytest.raises(AssertionError, match=r"something else than what was copied|freed before its copy was done"):
        run(broken(device), device, steps)


class PageableDevice(LateDevice):
    """Claims to allocate page-locked memory, and does not."""

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        return tensor.is_pinned()


def test_a_pageable_destination_is_an_error_and_no_slow_copy():
    copy = AsyncCopy(PageableDevice())
    with pytest.raises(OmniError, match="pageable") as caught:
        copy.start(torch.ones(4))
    assert "output_copy=sync" in caught.value.hint
    assert copy.counters.copies == copy.counters.pinned_copies == 0


@pytest.fixture
def device(monkeypatch) -> LateDevice:
    """The host uses the device's clock."""
    device = LateDevice()
    monkeypatch.setattr(copies, "time", SimpleNamespace(perf_counter=lambda: device.now))
    return device


def counted(copy: AsyncCopy) -> tuple[float, float, float, float]:
    counters = copy.counters
    return counters.copy_s, counters.copy_exposed_s, counters.copy_hidden_s, counters.copy_blocked_s


def test_a_copy_that_is_done_before_get_is_hidden(device):
    copy = AsyncCopy(device)
    pending = copy.start(torch.zeros(100, dtype=torch.uint8))
    assert not pending.ready()
    device.pass_time(100)
    assert pending.ready()
    pending.get()
    assert counted(copy) == (100, 0, 100, 0)


def test_a_copy_that_is_waited_for_is_exposed_as_far_as_it_is(device):
    copy = AsyncCopy(device)
    pending = copy.start(torch.zeros(100, dtype=torch.uint8))
    device.pass_time(70)
    pending.get()
    pending.get()
    assert counted(copy) == (100, 30, 70, 30)


def test_waiting_for_the_source_blocks_and_exposes_nothing(device):
    device.compute(500)
    copy = AsyncCopy(device)
    copy.start(torch.zeros(100, dtype=torch.uint8)).get()
    assert counted(copy) == (100, 100, 0, 600)


def test_waiting_while_the_device_works_exposes_nothing(device):
    copy = AsyncCopy(device)
    pending = copy.start(torch.zeros(100, dtype=torch.uint8))
    device.compute(500)
    pending.get()
    assert counted(copy) == (100, 0, 100, 100)


def test_a_start_that_blocks_is_noticed(device):
    """Like a copy to pageable memory, or one that waits for the device."""
    queue = device.copy

    def blocks(source, destination):
        device.pass_time(240)
        return queue(source, destination)

    device.copy = blocks
    copy = AsyncCopy(device)
    copy.start(torch.zeros(1, dtype=torch.uint8))
    assert copy.counters.copy_blocked_s == 240


def test_a_copy_without_a_waiter_is_counted_and_released(device):
    copy = AsyncCopy(device)
    copy.start(torch.zeros(100, dtype=torch.uint8))
    device.pass_time(100)
    copy.start(torch.zeros(1, dtype=torch.uint8))
    assert counted(copy) == (100, 0, 100, 0)
    assert len(copy._under_way) == 1


def test_a_consumer_in_another_thread():
    device = LateDevice()
    copy = AsyncCopy(device)
    pending = [copy.start(torch.full((64,), i)) for i in range(100)]
    values: list[int] = []

    def consume() -> None:
        values.extend(int(one.get()[0]) for one in pending)

    thread = threading.Thread(target=consume)
    thread.start()
    thread.join()
    assert values == list(range(100))


def test_buffers_are_used_again_and_only_so_many_are_kept():
    device = LateDevice()
    copy = AsyncCopy(device)
    for _ in range(50):
        copy.start(torch.zeros(5000)).get()
    assert len(device.buffers) <= 2
    pool = HostBufferPool(device.allocate, max_idle_bytes=3 * 4096)
    lent = [pool.lend((4096,), torch.uint8) for _ in range(10)]
    assert len({tensor.data_ptr() for tensor in lent}) == 10
    del lent
    gc.collect()
    pool.lend((4096,), torch.uint8)
    assert pool.idle_bytes == 2 * 4096 and pool.allocated_buffers == 10


def test_a_numpy_array_keeps_its_buffer():
    device = LateDevice()
    pool = HostBufferPool(device.allocate)
    first = pool.lend((16,), torch.float32)
    array, place = first[4:].numpy(), first.data_ptr()
    del first
    second = pool.lend((16,), torch.float32)
    assert second.data_ptr() != place
    del array
    assert pool.lend((16,), torch.float32).data_ptr() == place


@pytest.mark.parametrize("shape", [(), (0,), (0, 4), (3, 5)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_shapes_and_types_arrive(shape, dtype):
    tensor = torch.ones(shape, dtype=dtype)
    for copy in (AsyncCopy(LateDevice()), SyncCopy()):
        host = copy.start(tensor).get()
        assert host.shape == tensor.shape and host.dtype == dtype and torch.equal(host, tensor)


def test_on_a_cpu_async_is_sync_with_a_reason():
    copy = make_output_copy("async", "cpu")
    assert copy.mode == "sync"
    assert why_not_async("cpu") == (
        "`output_copy: async` needs a CUDA device: on a CPU the outputs are in host memory already"
    )
    assert why_not_async("cuda:1") is None


def test_on_a_cpu_only_reused_memory_is_copied_and_counted():
    copy = make_output_copy("sync", "cpu")
    tensor = torch.ones(4)
    assert copy.start(tensor).get().data_ptr() == tensor.data_ptr()
    assert copy.counters.copies == 0
    host = copy.start(tensor, reused=True).get()
    tensor.zero_()
    assert torch.equal(host, torch.ones(4))
    assert (copy.counters.copies, copy.counters.copied_bytes, copy.counters.pinned_copies) == (1, 16, 0)
    assert copy.counters.copy_exposed_s == copy.counters.copy_s > 0
    assert copy.counters.copy_blocked_s >= copy.counters.copy_s
