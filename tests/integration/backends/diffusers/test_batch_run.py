"""A batch whose images are copied to the host during the next request, on a device with slow copies."""

from __future__ import annotations

import numpy as np
import pytest
from support.late_device import LateDevice

from omni_cli.backends.diffusers.executor import DiffusersPipelineExecutor
from omni_cli.backends.diffusers.requests import DiffusionRequest
from omni_cli.backends.execution.copies import AsyncCopy
from omni_cli.checkpoints.resolve import resolve_model
from omni_cli.config.schema import DiffusionStageConfig
from omni_cli.core.errors import InputError

STEPS = 3
PICTURE_BYTES = 64 * 64 * 3 + 1


@pytest.fixture(scope="module")
def executor():
    stage = DiffusionStageConfig.create("image", num_inference_steps=STEPS, height=64, width=64)
    executor = DiffusersPipelineExecutor(stage, resolve_model("builtin:tiny-image"), "float32", "cpu")
    yield executor
    executor.shutdown()


@pytest.fixture
def device(executor):
    """A copy of an image takes one second of this device, and each step 0.6."""
    device, own = LateDevice(bytes_per_s=PICTURE_BYTES), executor._runner._output_copy
    executor._runner._output_copy = AsyncCopy(device)
    yield device
    executor._runner._output_copy = own


def run(executor, requests, device=None) -> tuple[list[str], dict]:
    """Events in order, such as "a1" for the first step of request a and "a!" for its output."""
    events, outputs = [], {}

    def on_step(request_id: str, done: int, total: int) -> None:
        events.append(f"{request_id}{done}")
        if device is not None:
            device.pass_time(0.6)

    def on_output(output) -> None:
        events.append(f"{output.request_id}!")
        outputs[output.request_id] = output

    made = executor.execute_model(tuple(requests), on_step, on_output)
    assert [output.request_id for output in made] == [request.request_id for request in requests]
    return events, outputs


def test_an_image_is_delivered_in_the_step_after_it_has_arrived_and_the_last_is_waited_for(executor, device):
    requests = [DiffusionRequest(name, "a cat", seed=seed) for seed, name in enumerate("abc")]
    events, outputs = run(executor, requests, device)
    assert events == ["a1", "a2", "a3", "b1", "b2", "a!", "b3", "c1", "c2", "b!", "c3", "c!"]
    assert not device.problems
    counters = executor._runner._output_copy.counters
    assert (counters.copies, counters.copied_bytes) == (3, 3 * PICTURE_BYTES)
    assert device.now == pytest.approx(3 * STEPS * 0.6 + 1), "the last copy alone was waited for"
    executor._runner._output_copy, late = executor._output_copy, executor._runner._output_copy
    _, expected = run(executor, requests)
    executor._runner._output_copy = late
    for name in "abc":
        np.testing.assert_array_equal(outputs[name].images[0], expected[name].images[0])
        times = outputs[name].times
        assert len(times.denoise_step_s) == STEPS and times.vae_decode_s > 0


def test_a_bad_image_fails_its_own_request_even_while_the_next_one_runs(executor, device):
    requests = [
        DiffusionRequest("a", "a cat"),
        # One step divides by zero.
        DiffusionRequest("b", "a cat", num_inference_steps=1),
        DiffusionRequest("c", "a cat"),
    ]
    events, outputs = run(executor, requests, device)
    assert events == ["a1", "a2", "a3", "b1", "a!", "c1", "c2", "b!", "c3", "c!"]
    assert outputs["b"].finish_reason == "error" and isinstance(outputs["b"].error, InputError)
    assert "NaN or infinite" in outputs["b"].error.message
    assert [outputs[name].finish_reason for name in "ac"] == ["stop", "stop"]


def test_an_abort_of_the_next_request_does_not_lose_the_one_under_way(executor, device):
    def on_step(request_id: str, done: int, total: int) -> None:
        if request_id == "b":
            executor.abort_requests(["a", "b"])

    requests = tuple(DiffusionRequest(name, "a cat") for name in "ab")
    first, second = executor.execute_model(requests, on_step)
    assert first.finish_reason == "stop" and first.images, "it was done when its abort came"
    assert second.finish_reason == "abort"


def test_a_kept_image_is_not_overwritten_by_later_ones(executor, device):
    kept = [run(executor, [DiffusionRequest("0", "a cat", seed=seed)], device)[1]["0"].images[0] for seed in range(3)]
    copies = [pixels.copy() for pixels in kept]
    run(executor, [DiffusionRequest("0", "a dog", seed=9)], device)
    for pixels, copy in zip(kept, copies, strict=True):
        np.testing.assert_array_equal(pixels, copy)
    assert not np.array_equal(kept[0], kept[1])
