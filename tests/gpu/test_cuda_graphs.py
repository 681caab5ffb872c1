"""Capture, replay, eviction and failure of CUDA graphs on the device itself."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from omni_cli.backends.execution.modes import GraphMode, make_execution_mode
from omni_cli.core.errors import StageError

MIB = 1 << 20


def graphed(module: torch.nn.Module, **options) -> Any:
    return make_execution_mode(module, "cudagraph", stage="image", device="cuda", **options)


class Layers(torch.nn.Module):
    """A few matrix products whose intermediates are as large as its input."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(256, 256, device="cuda") for _ in range(4))

    def forward(self, x, timestep):
        x = x * timestep
        for layer in self.layers:
            x = torch.nn.functional.gelu(layer(x))
        return x


def test_replays_equal_eager_calls_bit_for_bit_and_keep_their_outputs():
    module = Layers()
    inputs = [(torch.randn(64, 256, device="cuda"), torch.tensor(1.0 - step / 10, device="cuda")) for step in range(8)]
    with torch.no_grad():
        expected = [module(*one) for one in inputs]
        execution_mode = graphed(module)
        made = [module(*one) for one in inputs]
    assert all(torch.equal(a, b) for a, b in zip(made, expected, strict=True))
    counters = execution_mode.counters
    assert (counters.graphs_captured, counters.graph_replays, counters.eager_calls) == (1, 8, 0)
    assert counters.capture_s > 0 and counters.graph_pool_bytes >= 64 * 256 * 4
    execution_mode.close()


def test_a_tensor_on_the_host_is_copied_in_again_each_time():
    module = Layers()
    x = torch.randn(64, 256, device="cuda")
    with torch.no_grad():
        expected = [module(x, torch.tensor(float(step))) for step in range(4)]
        execution_mode = graphed(module)
        made = [module(x, torch.tensor(float(step))) for step in range(4)]
    assert all(torch.equal(a, b) for a, b in zip(made, expected, strict=True))
    assert execution_mode.counters.graphs_captured == 1
    execution_mode.close()


def test_graphs_that_share_the_pool_replay_in_any_order():
    module, time = Layers(), torch.tensor(0.5, device="cuda")
    inputs = [torch.randn(rows, 256, device="cuda") for rows in (4096, 32, 1024)]
    with torch.no_grad():
        expected = [module(x, time) for x in inputs]
        execution_mode = graphed(module)
        for order in ((0, 1, 2), (2, 1, 0), (1, 0, 2), (0, 0, 2)):
            for index in order:
                assert torch.equal(module(inputs[index], time), expected[index])
    assert execution_mode.counters.graphs_captured == 3
    execution_mode.close()


def test_eviction_bounds_the_pool_and_close_gives_everything_back(reserved):
    module, time = Layers(), torch.tensor(0.5, device="cuda")
    rows = [(8 + index) * 1024 for index in range(6)]

    def run(max_graphs: int) -> tuple[int, GraphMode]:
        execution_mode = graphed(module, max_graphs=max_graphs)
        with torch.no_grad():
            for count in rows:
                x = torch.randn(count, 256, device="cuda")
                for _ in range(2):
                    module(x, time)
        return execution_mode.counters.graph_pool_bytes, execution_mode

    before = reserved()
    few_bytes, few = run(2)
    assert (few.counters.graphs_captured, few.counters.graphs_evicted) == (6, 4)
    few.close()
    assert few.counters.graph_pool_bytes == 0
    # cuBLAS keeps a workspace for the stream of captures.
    assert reserved() - before <= 64 * MIB
    all_bytes, every = run(6)
    assert every.counters.graphs_evicted == 0
    every.close()
    assert few_bytes < 0.75 * all_bytes, "two graphs hold less than six"


def test_a_pool_is_recreated_after_its_last_graph_is_freed():
    module, time = Layers(), torch.tensor(0.5, device="cuda")
    execution_mode = graphed(module, max_graphs=1)
    with torch.no_grad():
        for rows in (16, 32, 16):
            x = torch.randn(rows, 256, device="cuda")
            assert torch.equal(module(x, time), module(x, time))
        execution_mode.forget()
        assert torch.equal(module(x, time), module(x, time))
    assert (execution_mode.counters.graphs_captured, execution_mode.counters.graphs_evicted) == (4, 2)
    execution_mode.close()


class Forgets(torch.nn.Module):
    """Caches a table on the device, as position embeddings are, and drops it on request."""

    def __init__(self) -> None:
        super().__init__()
        self.table = None

    def forward(self, x):
        if self.table is None:
            self.table = torch.full((1 << 20,), 3.0, device="cuda")
        return x + self.table


def test_tensors_that_a_graph_reads_outlive_the_models_cache():
    module = Forgets()
    execution_mode = graphed(module)
    x = torch.zeros(1 << 20, device="cuda")
    module(x)
    module.table = None
    garbage = [torch.full((1 << 20,), 7.0, device="cuda") for _ in range(16)]
    assert module(x).unique().tolist() == [3.0]
    assert execution_mode.counters.graphs_captured == 1
    del garbage
    execution_mode.close()


class Part(torch.nn.Module):
    def __init__(self, act) -> None:
        super().__init__()
        self.act = act

    def forward(self, x):
        return self.act(x * 2)


class Whole(torch.nn.Module):
    def __init__(self, act) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList([Part(lambda x: x + 1), Part(act)])

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


def synchronize(x):
    torch.cuda.synchronize()
    return x


def upload(x):
    return x + torch.arange(4.0).to("cuda")


def download(x):
    host = torch.empty(4)
    host.copy_(x)
    return x + host.to("cuda")


_WAITS = "not permitted when stream is capturing"
_COPIES = "Cannot copy between CPU and CUDA tensors"


def draw_on_the_host(x):
    return x + torch.rand(4).pin_memory().to("cuda", non_blocking=True)


def draw_with_own_generator(x):
    return x + torch.rand(4, device="cuda", generator=torch.Generator("cuda"))


@pytest.mark.parametrize(
    ("act", "reason"),
    [
        (lambda x: x * x.sum().item(), _WAITS),
        (lambda x: x[x > 0], _WAITS),
        (lambda x: x.cpu().cuda(), _COPIES),
        (lambda x: x + torch.randn_like(x), "draws random numbers"),
        (draw_on_the_host, "draws random numbers"),
        (draw_with_own_generator, "Generator"),
        (synchronize, _WAITS),
        (upload, _COPIES),
        (download, _COPIES),
    ],
    ids=[
        "item", "mask", "to host", "random", "random on the host", "own generator", "synchronize", "pageable upload",
        "pageable download",
    ],
)  # fmt: skip
def test_a_failed_capture_has_its_reason_and_leaves_the_process_usable(act, reason, reserved):
    x = torch.ones(4, device="cuda")
    good, broken = Whole(lambda x: x), Whole(act)
    working = graphed(good)
    torch.manual_seed(7)
    drawn = torch.randn(4, device="cuda")
    assert torch.equal(good(x), x * 4 + 2)
    before = reserved()
    failing = graphed(broken)
    for _ in range(3):
        with pytest.raises(StageError) as caught:
            broken(x)
        message = caught.value.message
        assert message.startswith("stage `image`: `execution: cudagraph` cannot capture Whole: ")
        assert reason in message
        assert caught.value.hint == "--set image.execution=eager"
    assert (len(failing.graphs), failing.counters.graphs_captured) == (0, 0)
    failing.close()

    # The other graphs, new captures, random numbers, plain work and the model itself, eagerly.
    assert torch.equal(good(x + 1), (x + 1) * 4 + 2)
    assert torch.equal(good(torch.ones(8, device="cuda")), torch.full((8,), 6.0, device="cuda"))
    torch.manual_seed(7)
    assert torch.equal(torch.randn(4, device="cuda"), drawn)
    assert broken(x).device.type == "cuda"
    torch.cuda.synchronize()
    working.close()
    assert reserved() - before <= 4 * MIB
