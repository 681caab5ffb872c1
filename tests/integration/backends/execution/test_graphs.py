"""The graph manager against a backend that needs no GPU: keys, buffers, eviction, accounting, failures."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import pytest
import torch
from support.fake_graphs import FakeBackend

from omni_cli.backends.execution.counters import ExecutionCounters
from omni_cli.backends.execution.graphs import GraphManager
from omni_cli.core.errors import StageError

CPU = torch.device("cpu")


class Scale(torch.nn.Module):
    """`x` times `factor` plus a bias that is not an argument; counts how often it ran."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = torch.nn.Parameter(torch.ones(1))
        self.runs = 0

    def forward(self, x, factor=None, branch="cond", extra=None, return_dict=False):
        self.runs += 1
        out = x * (1 if factor is None else factor) + self.bias
        if extra is not None:
            out = out + extra["more"][0]
        return {"sample": out} if return_dict else (out,)


def manager(module=None, backend=None, **options):
    module = Scale() if module is None else module
    counters = ExecutionCounters()
    return GraphManager(
        module, FakeBackend() if backend is None else backend, stage="image", device=CPU, counters=counters, **options
    ), counters


def test_a_second_call_replays_with_the_new_contents():
    module = Scale()
    graphs, counters = manager(module)
    x = torch.arange(4.0)
    first = graphs(x, factor=torch.tensor(2.0))[0]
    runs = module.runs
    second = graphs(x + 1, factor=torch.tensor(3.0))[0]
    assert torch.equal(first, x * 2 + 1)
    assert torch.equal(second, (x + 1) * 3 + 1)
    assert module.runs == runs + 1, "the fake runs it to replay it, and nobody else does"
    assert (counters.graphs_captured, counters.graph_replays, counters.eager_calls) == (1, 2, 0)
    assert counters.capture_s > 0


def test_only_the_first_capture_is_rehearsed():
    graphs, _ = manager()
    with torch.no_grad():
        graphs(torch.ones(2))
        assert graphs._module.runs == 5, "two runs before, the rehearsal, the recording, and the fake's replay"
        graphs(torch.ones(3))
        assert graphs._module.runs == 8, "one before, the recording, and the fake's replay"


def test_outputs_are_not_overwritten():
    graphs, _ = manager()
    first = graphs(torch.zeros(2))[0]
    graphs(torch.ones(2))
    assert first.tolist() == [1, 1]


def test_without_clones_the_next_replay_overwrites_outputs():
    graphs, _ = manager(clone_outputs=False)
    first = graphs(torch.zeros(2))[0]
    assert graphs(torch.ones(2))[0] is first
    assert first.tolist() == [2, 2]


def test_everything_stays_in_order_on_a_device_that_is_late():
    backend = FakeBackend(late=True)
    graphs, _ = manager(backend=backend)
    results = [graphs(torch.full((2,), float(value)))[0] for value in range(5)]
    assert backend.queue, "nothing of this may need the device to be done"
    backend.finish()
    assert [result.tolist() for result in results] == [[value + 1.0] * 2 for value in range(5)]


Pair = namedtuple("Pair", "more rest")


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ((torch.zeros(2),), (torch.zeros(3),)),
        ((torch.zeros(2),), (torch.zeros(2, dtype=torch.float64),)),
        ((torch.zeros(2, 3),), (torch.zeros(3, 2).t(),)),
        ((torch.zeros(2), 2), (torch.zeros(2), 3)),
        ((torch.zeros(2), 1), (torch.zeros(2), True)),
        ((torch.zeros(2), 0.0), (torch.zeros(2), -0.0)),
        ((torch.zeros(2), None, "cond"), (torch.zeros(2), None, "uncond")),
        ((torch.zeros(2), None, "cond", {"more": [1.0]}), (torch.zeros(2), None, "cond", {"more": (1.0,)})),
        ((torch.zeros(2), None, "cond", None, False), (torch.zeros(2), None, "cond", None, True)),
    ],
    ids=["shape", "dtype", "strides", "number", "type", "sign of zero", "branch", "container", "return_dict"],
)
def test_calls_that_differ_in_more_than_contents_have_graphs_of_their_own(first, second):
    graphs, counters = manager()
    plain = Scale()
    for call in (first, second, first, second):
        assert str(graphs(*call)) == str(plain(*call)).replace(", grad_fn=<AddBackward0>", "")
    assert (counters.graphs_captured, counters.graph_replays) == (2, 4)


def test_graphs_share_the_memory_of_their_inputs():
    graphs, counters = manager()
    large, small = torch.arange(6.0).view(2, 3).t(), torch.arange(4.0)
    for _ in range(2):
        assert graphs(large)[0].tolist() == (large + 1).tolist()
        assert graphs(small)[0].tolist() == (small + 1).tolist()
    outputs = large.nbytes + small.nbytes
    assert counters.graphs_captured == 2 and counters.graph_pool_bytes == large.nbytes + outputs


def test_tensors_inside_containers_are_contents():
    graphs, counters = manager()
    for value in (1.0, 2.0):
        (out,) = graphs(torch.zeros(1), extra={"more": [torch.tensor(value), 7]})
        assert out.item() == value + 1
    assert counters.graphs_captured == 1


def test_the_least_recently_used_graph_is_freed_first():
    backend = FakeBackend()
    graphs, counters = manager(backend=backend, max_graphs=2)
    a, b, c = torch.zeros(1), torch.zeros(1000), torch.zeros(10)
    for x in (a, b, a):
        graphs(x)
    assert counters.graph_pool_bytes == 2 * (a.nbytes + b.nbytes)
    graphs(c)  # in the place of b
    assert (len(graphs), len(backend.graphs), counters.graphs_evicted) == (2, 2, 1)
    assert counters.graph_pool_bytes == (a.nbytes + b.nbytes) + (a.nbytes + c.nbytes), "c is in b's memory"
    graphs(a)
    assert counters.graphs_captured == 3, "a was used after b and is still there"
    graphs(b)
    assert (counters.graphs_captured, counters.graphs_evicted) == (4, 2)


def test_clear_gives_all_back_and_the_next_call_captures_again():
    module = Scale()
    backend = FakeBackend()
    graphs, counters = manager(module, backend)
    graphs(torch.zeros(2))
    graphs.clear()
    assert (len(graphs), backend.graphs, backend.trims, counters.graph_pool_bytes) == (0, [], 1, 0)
    module.bias.data = torch.full((1,), 5.0)  # what moving a model does
    assert graphs(torch.zeros(2))[0].tolist() == [5, 5]
    assert counters.graphs_captured == 2


def test_a_number_that_changes_in_every_call_is_named():
    graphs, counters = manager(max_graphs=3)
    for step in range(3):
        graphs(torch.zeros(2), factor=1 - step / 10)
    with pytest.raises(StageError) as caught:
        graphs(torch.zeros(2), factor=0.7)
    assert "`factor` (0.8, then 0.7)" in caught.value.message
    assert caught.value.hint == "--set image.execution=eager"
    assert counters.graphs_captured == 3


def test_many_keys_are_no_error_while_their_graphs_are_replayed():
    graphs, counters = manager(max_graphs=2)
    for size in range(1, 9):
        graphs(torch.zeros(size))
        graphs(torch.ones(size))
    assert (counters.graphs_captured, counters.graphs_evicted) == (8, 6)


def test_an_argument_that_has_no_key_is_named():
    graphs, _ = manager()
    with pytest.raises(
        StageError, match=r"cannot capture Scale: it is called with `extra\['more'\]\[0\]`, a Generator, which"
    ):
        graphs(torch.zeros(2), extra={"more": [torch.Generator()]})


class Part(torch.nn.Module):
    def __init__(self, act) -> None:
        super().__init__()
        self.act = act

    def forward(self, x):
        return self.act(x)


class Whole(torch.nn.Module):
    """A good part, then one that calls `act`."""

    def __init__(self, act) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList([Part(lambda x: x + 1), Part(act)])

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


def add_in_place(x):
    return x.add_(1)


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize(
    ("act", "reason"),
    [
        (lambda x: x + torch.randn_like(x), "draws random numbers"),
        (lambda x: torch.dropout(x, 0.5, True), "draws random numbers"),
        (lambda x: x + torch.ones(3), "RuntimeError: The size of tensor a"),
    ],
    ids=["random", "dropout", "wrong shape"],
)
def test_a_module_that_cannot_be_captured_is_an_error_with_the_reason(act, reason, inference):
    graphs, counters = manager(Whole(act))
    with torch.inference_mode(inference), pytest.raises(StageError) as caught:
        graphs(torch.ones(2))
    assert caught.value.message.startswith(f"stage `image`: `execution: cudagraph` cannot capture Whole: {reason}")
    assert caught.value.hint == "--set image.execution=eager" and caught.value.details
    assert (len(graphs), counters.graphs_captured, counters.graph_replays) == (0, 0, 0)


def test_dropout_that_is_off_and_indices_that_are_numbers_are_fine():
    graphs, _ = manager(Whole(lambda x: torch.dropout(x, 0.5, False)[torch.tensor([1, 0])]))
    assert graphs(torch.tensor([1.0, 2.0])).tolist() == [3, 2]


def test_an_argument_that_the_forward_writes_into_is_named():
    graphs, _ = manager(Part(add_in_place))
    message = r"(?m)cannot capture Part: writes into its argument `x`$"
    with torch.inference_mode(), pytest.raises(StageError, match=message):
        graphs(torch.ones(2))


@torch.inference_mode()
def test_an_argument_that_a_module_may_overwrite_has_the_calls_values_each_time():
    module = Part(add_in_place)
    module.overwritten = frozenset({"x"})
    graphs, _ = manager(module)
    given = torch.ones(2)
    assert [graphs(given).tolist() for _ in range(3)] == [[2, 2]] * 3
    assert given.tolist() == [1, 1]


def test_an_output_with_hidden_tensors_is_rejected():
    graphs, _ = manager(Part(lambda x: {"sample": {x}}))
    with pytest.raises(StageError, match="cannot capture Part: returns a set, whose tensors"):
        graphs(torch.ones(2))


def test_a_failed_capture_leaves_the_other_graphs_working():
    backend = FakeBackend()
    graphs, counters = manager(backend=backend)
    graphs(torch.zeros(2))
    backend.fail = RuntimeError("CUDA error: operation not permitted when stream is capturing\nmore")
    with pytest.raises(StageError, match=r"cannot capture Scale: RuntimeError: CUDA error: operation not permitted"):
        graphs(torch.zeros(3))
    backend.fail = None
    assert graphs(torch.ones(2))[0].tolist() == [2, 2]
    assert graphs(torch.ones(3))[0].tolist() == [2, 2, 2]
    assert counters.graphs_captured == 2


class Remembers(torch.nn.Module):
    """Like position embeddings that a model caches per size, and may drop."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: dict[Any, torch.Tensor] = {}

    def forward(self, x):
        if x.shape not in self.kept:
            self.kept[x.shape] = torch.full(x.shape, 3.0)
        return x + self.kept[x.shape]


def test_a_graph_keeps_cached_tensors_of_the_model_alive():
    module = Remembers()
    graphs, _ = manager(module)
    graphs(torch.zeros(2))
    cached = module.kept[torch.Size([2])].untyped_storage()._cdata
    (captured,) = graphs._graphs.values()
    assert cached in [storage._cdata for storage in captured.external]
    assert len(captured.external) == 2, "what came in and what was cached, and nothing that was made on the way"


def test_graphs_captured_outside_of_inference_mode_replay_inside_and_back():
    graphs, counters = manager()
    graphs(torch.zeros(2))
    with torch.inference_mode():
        assert graphs(torch.ones(2))[0].tolist() == [2, 2]
        graphs(torch.zeros(3))
    assert graphs(torch.ones(3))[0].tolist() == [2, 2, 2]
    assert counters.graphs_captured == 2


def test_an_operation_runs_as_the_devices_own_kernel_also_if_it_has_parts():
    # As `_fused_rms_norm` on CUDA: its parts are more kernels, and round otherwise.
    library = torch.library.Library("watched", "DEF")
    library.define("norm(Tensor x) -> Tensor")
    library.impl("norm", lambda x: x * 2, "CompositeImplicitAutograd")
    library.impl("norm", lambda x: x * 3, "CPU")

    class Norm(torch.nn.Module):
        def forward(self, x):
            return torch.ops.watched.norm(x)

    x = torch.ones(2)
    with torch.no_grad():
        expected = Norm()(x)
    assert expected.tolist() == [3, 3]
    backend = FakeBackend()
    graphs, _ = manager(Norm(), backend)
    assert torch.equal(graphs(x), expected)
