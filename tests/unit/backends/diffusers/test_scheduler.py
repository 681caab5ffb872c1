from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omni_cli.backends.diffusers.batch_run import DiffusionScheduler
from omni_cli.backends.diffusers.requests import DiffusionRequest, batch_key


def request(request_id: str, **values) -> DiffusionRequest:
    return DiffusionRequest(request_id, "a cat", **{"height": 64, "width": 64, "num_inference_steps": 4, **values})


def ids(batch: Sequence[DiffusionRequest] | None) -> list[str]:
    assert batch is not None
    return [r.request_id for r in batch]


def test_only_equal_calls_share_a_batch():
    scheduler = DiffusionScheduler(max_num_seqs=8)
    different = {
        "height": {"height": 32},
        "width": {"width": 32},
        "steps": {"num_inference_steps": 5},
        "guidance": {"guidance_scale": 2.0},
        "negative": {"negative_prompt": ""},
        "call": {"call": {"true_cfg_scale": 2.0}},
        "adapter": {"lora": "style"},
    }
    scheduler.add_request(request("plain"))
    for name, values in different.items():
        scheduler.add_request(request(name, **values))
    scheduler.add_request(request("seed", seed=7))
    batches = []
    while (batch := scheduler.schedule()) is not None:
        batches.append(ids(batch))
    assert batches == [["plain", "seed"], *[[name] for name in different]]


def test_order_of_call_arguments_and_prompts_do_not_split_a_batch():
    first = request("0", call={"a": 1, "b": [1.0, 2.0]}, negative_prompt="x")
    second = request("1", call={"b": [1.0, 2.0], "a": 1}, negative_prompt="y", seed=3)
    assert batch_key(first) == batch_key(second)


@pytest.mark.parametrize(("a", "b"), [(1, True), ("1", 1), ([1], 1), (None, 0), ({1: 2}, {"1": 2})])
def test_call_values_of_unlike_types_do_not_share_a_batch(a, b):
    assert batch_key(request("0", call={"x": a})) != batch_key(request("1", call={"x": b}))


def test_a_value_without_a_key_is_a_type_error():
    with pytest.raises(TypeError, match="object"):
        batch_key(request("0", call={"x": object()}))


def test_max_num_seqs_bounds_a_batch_and_the_rest_keeps_its_order():
    scheduler = DiffusionScheduler(max_num_seqs=2)
    for name in "abcde":
        scheduler.add_request(request(name))
    assert [ids(scheduler.schedule()) for _ in range(3)] == [["a", "b"], ["c", "d"], ["e"]]
    assert scheduler.schedule() is None


def test_a_request_that_is_dropped_is_in_no_batch():
    scheduler = DiffusionScheduler(max_num_seqs=2)
    for name in "abc":
        scheduler.add_request(request(name))
    assert ids(scheduler.schedule()) == ["a", "b"]
    scheduler.finish_requests(["c", "b", "never seen"])
    assert not scheduler.has_unfinished_requests()
    assert scheduler.schedule() is None


SIZES = st.sampled_from([32, 64, 96])
OPERATIONS = st.lists(
    st.one_of(st.tuples(st.just("add"), SIZES), st.just("run"), st.tuples(st.just("abort"), st.integers(0, 60))),
    max_size=60,
)


@given(OPERATIONS, st.integers(1, 4))
def test_every_batch_contains_the_oldest_request_and_is_as_full_as_possible(operations, max_num_seqs):
    scheduler = DiffusionScheduler(max_num_seqs)
    waiting: dict[str, DiffusionRequest] = {}  # the model: arrival order
    served: list[str] = []
    count = 0
    for operation in [*operations, *["run"] * 61]:
        if operation == "run":
            batch = scheduler.schedule()
            if not waiting:
                assert batch is None
                continue
            oldest = next(iter(waiting.values()))
            fitting = [name for name, r in waiting.items() if r.height == oldest.height]
            assert ids(batch) == fitting[:max_num_seqs]
            for name in ids(batch):
                del waiting[name]
                served.append(name)
        elif operation[0] == "add":
            new = request(str(count), height=operation[1])
            count += 1
            waiting[new.request_id] = new
            scheduler.add_request(new)
        else:
            name = str(operation[1])
            scheduler.finish_requests([name])
            waiting.pop(name, None)
    assert not waiting and not scheduler.has_unfinished_requests()
    assert len(served) == len(set(served))


def test_from_arguments_keeps_further_arguments_in_call():
    made = DiffusionRequest.from_arguments("0", "a cat", 3, {"height": 64, "true_cfg_scale": 2.0})
    assert (made.height, made.width, made.seed, dict(made.call)) == (64, None, 3, {"true_cfg_scale": 2.0})


def test_neither_scheduler_nor_executor_module_imports_torch():
    code = (
        "import sys, omni_cli.backends.diffusers.batch_run, omni_cli.backends.diffusers.executor\n"
        "print([name for name in ('torch', 'diffusers', 'transformers', 'vllm') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
