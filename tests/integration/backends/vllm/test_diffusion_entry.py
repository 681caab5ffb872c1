"""The diffusion runner's split of a model's result into one tensor per request."""

from __future__ import annotations

import pytest
import torch
from support.late_device import LateDevice

from omni_cli.backends.execution.copies import AsyncCopy, SyncCopy
from omni_cli.backends.vllm.diffusion_runner import one_tensor_per_request, start_together
from omni_cli.backends.vllm.outputs import NoOutput

IDS = ["a", "b"]
ROWS = torch.tensor([[1.0, 2.0], [3.0, 4.0]])


@pytest.mark.parametrize(
    "result",
    [ROWS, [ROWS[0], ROWS[1]], (ROWS[0], ROWS[1]), {"b": ROWS[1], "a": ROWS[0]}],
    ids=["tensor", "list", "tuple", "dict"],
)
def test_tensor_list_and_dict_are_one_tensor_per_request(result):
    pairs = one_tensor_per_request(result, IDS)
    assert list(pairs) == IDS
    assert torch.equal(pairs["a"], ROWS[0]) and torch.equal(pairs["b"], ROWS[1])


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (ROWS[:1], ["1 tensors for 2 requests"] * 2),
        ([ROWS[0]], ["1 tensors for 2 requests"] * 2),
        ([*ROWS, ROWS[0]], ["3 tensors for 2 requests"] * 2),
        (torch.tensor(1.0), ["0 tensors for 2 requests"] * 2),
        ({"a": ROWS[0]}, [ROWS[0], "nothing for it"]),
        ({"b": ROWS[0], "c": ROWS[1]}, ["nothing for it, but something for c, not in the batch", ROWS[0]]),
        ({}, ["nothing for it"] * 2),
        ([ROWS[0], None], [ROWS[0], "returned NoneType, not a tensor"]),
        ({"a": "text", "b": ROWS[1]}, ["returned str, not a tensor", ROWS[1]]),
        ("text", ["not str"] * 2),
        (None, ["not NoneType"] * 2),
    ],
)
def test_an_invalid_tensor_fails_its_own_request(result, expected):
    outputs = one_tensor_per_request(result, IDS)
    assert list(outputs) == IDS
    for output, wanted in zip(outputs.values(), expected, strict=True):
        if isinstance(wanted, str):
            assert isinstance(output, NoOutput) and wanted in output.reason
        else:
            assert torch.equal(output, wanted)


def test_a_tensor_for_an_unknown_request_is_logged(caplog):
    outputs = one_tensor_per_request({"a": ROWS[0], "b": ROWS[1], "c": ROWS[1]}, IDS)
    assert torch.equal(outputs["a"], ROWS[0]) and torch.equal(outputs["b"], ROWS[1])
    assert "requests that are not in the batch: c" in caplog.text


@pytest.mark.parametrize("shapes", [[(7,)], [(7,), (3,), (12,)], [(2, 3), (), (0,), (4,)]])
def test_one_transfer_copies_all_requests_tensors(shapes):
    tensors = {str(i): torch.randn(shape) for i, shape in enumerate(shapes)}
    for copy in (AsyncCopy(LateDevice()), SyncCopy()):
        arrived = start_together(tensors, copy)()
        assert list(arrived) == list(tensors)
        assert all(torch.equal(arrived[name], tensor) for name, tensor in tensors.items())
        assert copy.counters.copies == (copy.mode == "async")


def test_tensors_of_different_types_travel_apart():
    tensors = {"a": torch.ones(2), "b": torch.ones(3, dtype=torch.int64), "c": torch.zeros(1)}
    copy = AsyncCopy(LateDevice())
    arrived = start_together(tensors, copy)()
    assert all(
        torch.equal(arrived[name], tensor) and arrived[name].dtype == tensor.dtype for name, tensor in tensors.items()
    )
    assert copy.counters.copies == 2


def test_nothing_is_sent_where_nothing_was_made():
    copy = AsyncCopy(LateDevice())
    assert start_together({}, copy)() == {} and copy.counters.copies == 0
