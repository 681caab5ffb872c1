"""How the diffusion runner picks a model's method, and what it takes for one tensor a request."""

from __future__ import annotations

import pytest
import torch
from support.late_device import LateDevice
from torch import nn

from omni_cli.execution.copies import AsyncCopy, SyncCopy
from omni_cli.worker.diffusion_entry import diffusion_entry, one_tensor_per_request, start_together


class Samples(nn.Module):
    def sample(self, inputs):
        return "sample"

    def forward(self, inputs):
        return "forward"

    def diffuse(self, inputs):
        return "diffuse"


class Forwards(nn.Module):
    def forward(self, inputs):
        return "forward"

    def diffuse(self, inputs):
        return "diffuse"


class Diffuses(nn.Module):
    def diffuse(self, inputs):
        return "diffuse"


class Nothing(nn.Module):
    pass


@pytest.mark.parametrize(("model", "name"), [(Samples, "sample"), (Forwards, "forward"), (Diffuses, "diffuse")])
def test_first_method_in_the_documented_order(model, name):
    assert diffusion_entry(model())([]) == name


def test_a_model_without_any_is_refused():
    with pytest.raises(TypeError, match="Nothing has none of sample, forward, diffuse"):
        diffusion_entry(Nothing())


IDS = ["a", "b"]
ROWS = torch.tensor([[1.0, 2.0], [3.0, 4.0]])


@pytest.mark.parametrize(
    "result",
    [ROWS, [ROWS[0], ROWS[1]], (ROWS[0], ROWS[1]), {"b": ROWS[1], "a": ROWS[0]}],
    ids=["tensor", "list", "tuple", "dict"],
)
def test_tensor_list_and_dict_are_one_tensor_a_request(result):
    pairs = one_tensor_per_request(result, IDS)
    assert list(pairs) == IDS
    assert torch.equal(pairs["a"], ROWS[0]) and torch.equal(pairs["b"], ROWS[1])


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (ROWS[:1], "1 tensors for 2 requests"),
        ([ROWS[0]], "1 tensors for 2 requests"),
        ({"a": ROWS[0]}, "answered 1 of 2 requests; missing: b"),
        ({"a": ROWS[0], "b": ROWS[1], "c": ROWS[1]}, "answered 3 of 2 requests"),
        ([ROWS[0], None], "request b: the model returned NoneType"),
        ("text", "not str"),
    ],
)
def test_wrong_results_are_named(result, message):
    with pytest.raises(ValueError, match=message):
        one_tensor_per_request(result, IDS)


@pytest.mark.parametrize("shapes", [[(7,)], [(7,), (3,), (12,)], [(2, 3), (), (0,), (4,)]])
def test_one_transfer_brings_every_request_its_tensor(shapes):
    tensors = {str(i): torch.randn(shape) for i, shape in enumerate(shapes)}
    for copy in (AsyncCopy(LateDevice()), SyncCopy()):
        arrived = start_together(tensors, copy)()
        assert list(arrived) == list(tensors)
        assert all(torch.equal(arrived[name], tensor) for name, tensor in tensors.items())
        assert copy.counters.copies == (copy.mode == "async")


def test_tensors_of_different_types_do_not_become_one():
    with pytest.raises(ValueError, match=r"different types: torch\.float32, torch\.int64"):
        start_together({"a": torch.ones(2), "b": torch.ones(2, dtype=torch.int64)}, SyncCopy())
