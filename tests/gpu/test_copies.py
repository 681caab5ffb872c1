"""Output copies on a CUDA device: what arrives and when, and what the device does meanwhile. Needs torch alone."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
import torch

from omni_cli.backends.execution.copies import AsyncCopy, CudaBackend, make_output_copy
from omni_cli.core.errors import OmniError

DEVICE = "cuda:0"
MIB = 1 << 20


def busy(seconds: float) -> None:
    """Queue about so much work on the current stream: at least, on a device of up to 2 GHz."""
    torch.cuda._sleep(int(seconds * 2e9))


def wall(work: Callable[[], object]) -> float:
    torch.cuda.synchronize()
    began_s = time.perf_counter()
    work()
    torch.cuda.synchronize()
    return time.perf_counter() - began_s


def random_bytes(size: int) -> torch.Tensor:
    return torch.randint(0, 256, (size,), dtype=torch.uint8, device=DEVICE)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint8, torch.bool, torch.int64])
@pytest.mark.parametrize("shape", [(), (0, 8), (3, 5), (1024, 1025)])
def test_both_modes_bring_the_same_to_the_host(dtype, shape):
    tensor = torch.randint(0, 2, shape, device=DEVICE).to(dtype)
    for mode in ("sync", "async"):
        copy = make_output_copy(mode, DEVICE)
        assert copy.mode == mode
        for source in (tensor, tensor.T if tensor.dim() == 2 else tensor):
            host = copy.start(source).get()
            assert host.device.type == "cpu" and host.dtype == dtype and torch.equal(host, source.cpu())


def test_every_destination_is_pinned_and_used_again():
    copy = make_output_copy("async", DEVICE)
    places = set()
    for _ in range(50):
        host = copy.start(random_bytes(MIB)).get()
        assert host.is_pinned()
        places.add(host.data_ptr())
    counters = copy.counters
    assert counters.pinned_copies == counters.copies == 50 and counters.copied_bytes == 50 * MIB
    assert len(places) <= 3


def test_a_pageable_destination_is_caught():
    class Pageable(CudaBackend):
        def allocate(self, num_bytes):
            return torch.empty(num_bytes, dtype=torch.uint8)

    with pytest.raises(OmniError, match="pageable"):
        AsyncCopy(Pageable(DEVICE)).start(random_bytes(MIB))


def test_nothing_is_read_before_the_device_has_got_there():
    copy = make_output_copy("async", DEVICE)
    copy.start(random_bytes(MIB)).get()
    source = torch.zeros(MIB, dtype=torch.uint8, device=DEVICE)
    busy(0.2)
    source.fill_(7)
    began_s = time.perf_counter()
    pending = copy.start(source)
    assert time.perf_counter() - began_s < 0.1, "start waited for the device"
    assert not pending.ready()
    assert torch.all(pending.get() == 7)
    assert copy.counters.copy_blocked_s > 0.05
    assert copy.counters.copy_exposed_s < 0.05, "waiting for the source was taken for waiting for the copy"


@pytest.mark.parametrize("size", [MIB, 256 * MIB])
def test_memory_that_a_graph_overwrites_arrives_unchanged(size):
    static = random_bytes(size)
    output = torch.empty_like(static)
    graph = torch.cuda.CUDAGraph()
    output.copy_(static)
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        torch.add(static, 1, out=output)
    copies = {mode: make_output_copy(mode, DEVICE) for mode in ("sync", "async")}
    for step in range(5):
        expected = None
        for copy in copies.values():
            static.fill_(step)
            graph.replay()
            pending = copy.start(output, reused=True)
            for other in range(100, 110):
                static.fill_(other)
                graph.replay()
            host = pending.get()
            assert torch.all(host == step + 1)
            assert expected is None or torch.equal(host, expected)
            expected = host


def test_a_source_that_everybody_else_has_let_go_of_lives_until_it_is_copied():
    copy = make_output_copy("async", DEVICE)
    for value in range(20):
        source = torch.full((64 * MIB,), value, dtype=torch.uint8, device=DEVICE)
        pending = copy.start(source)
        del source
        for _ in range(4):
            torch.full((64 * MIB,), 255, dtype=torch.uint8, device=DEVICE)
        assert torch.all(pending.get() == value)


def test_a_copy_beside_other_work_costs_no_time(capsys):
    copy, plain = make_output_copy("async", DEVICE), make_output_copy("sync", DEVICE)
    source = random_bytes(256 * MIB)
    left, right = (torch.randn(8192, 8192, device=DEVICE, dtype=torch.bfloat16) for _ in range(2))

    def work() -> None:
        for _ in range(40):
            left @ right

    def beside() -> None:
        pending = copy.start(source)
        work()
        torch.cuda.current_stream().synchronize()
        pending.get()

    def before() -> None:
        plain.start(source).get()
        work()

    for warm in (work, beside, before):
        warm()
    torch.cuda.synchronize()
    began = copy.counters.as_dict()
    times = {run.__name__: min(wall(run) for _ in range(5)) for run in (work, beside, before)}
    spent = {name: value - began[name] for name, value in copy.counters.as_dict().items()}
    with capsys.disabled():
        print({name: f"{seconds * 1e3:.2f} ms" for name, seconds in times.items()}, spent)  # noqa: T201
    assert spent["copy_hidden_s"] >= 0.95 * spent["copy_s"] > 0
    assert times["beside"] - times["work"] < 0.5 * (times["before"] - times["work"])


def test_bandwidth_beside_a_raw_copy(capsys):
    """Printed and not asserted: a test is no place for a rate."""
    source = random_bytes(1024 * MIB)
    host = torch.empty(1024 * MIB, dtype=torch.uint8, pin_memory=True)
    raw_s = min(wall(lambda: host.copy_(source, non_blocking=True)) for _ in range(5))
    rates = {"raw": source.nbytes / raw_s}
    for mode in ("async", "sync"):
        copy = make_output_copy(mode, DEVICE)
        for _ in range(5):
            copy.start(source).get()
        rates[mode] = copy.counters.copied_bytes / copy.counters.copy_s
    with capsys.disabled():
        print({name: f"{rate / 1e9:.1f} GB/s" for name, rate in rates.items()})  # noqa: T201
    assert all(rate > 0 for rate in rates.values())
