"""Execution modes of whole pipelines on the device, through the executor: the same images, counted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from omni_cli.backends.diffusers.executor import DiffusersPipelineExecutor
from omni_cli.backends.diffusers.requests import DiffusionOutput, DiffusionRequest
from omni_cli.config.schema import DiffusionStageConfig

STEPS = 4
REQUESTS = {
    "qwen_image": [{}, {"negative_prompt": "blurry and grey", "true_cfg_scale": 3.0}, {"height": 32, "width": 96}],
    "stable_diffusion": [{}, {"negative_prompt": "blurry", "guidance_scale": 4.0, "eta": 0.7}, {"height": 32}],
}


def start(folder, **settings) -> DiffusersPipelineExecutor:
    stage = DiffusionStageConfig.create("image", num_inference_steps=STEPS, height=64, width=64, **settings)
    return DiffusersPipelineExecutor(stage, str(folder), "float32", "cuda")


def run(executor, *requests: DiffusionRequest) -> list[DiffusionOutput]:
    outputs = list(executor.execute_model(requests))
    for output in outputs:
        if output.error is not None:
            raise output.error
    return outputs


def predictions(executor, module, request: DiffusionRequest) -> tuple[np.ndarray, list[torch.Tensor]]:
    """The image and all that the denoiser has predicted for it."""
    seen = []
    hook = module.register_forward_hook(
        lambda _module, _args, output: seen.append((output[0] if isinstance(output, tuple) else output.sample).clone())
    )
    (output,) = run(executor, request)
    hook.remove()
    return output.images[0], seen


@pytest.mark.parametrize("model", REQUESTS)
def test_cudagraph_equals_eager_bit_for_bit(folders, model):
    made = {}
    for execution in ("eager", "cudagraph"):
        executor = start(folders[model], execution=execution)
        executor.compile_or_warm_up_model()
        pipeline = executor.pipeline
        module = getattr(pipeline, "transformer", None) or pipeline.unet
        made[execution] = [
            predictions(executor, module, DiffusionRequest.from_arguments(str(seed), "a red cat", seed, arguments))
            for arguments in REQUESTS[model]
            for seed in (1, 2)
        ]
        counters, calls = executor.execution_counters, sum(len(seen) for _, seen in made[execution])
        assert executor.effective["execution"] == execution
        if execution == "eager":
            assert (counters["eager_calls"], counters["graph_replays"]) == (calls, 0)
        else:
            warm_up = counters["graph_replays"] - calls
            assert counters["eager_calls"] == 0 and 2 <= warm_up <= 4
            assert 2 <= counters["graphs_captured"] <= 6 and counters["graph_pool_bytes"] > 0
        executor.shutdown()
    for (eager, eager_seen), (graph, graph_seen) in zip(made["eager"], made["cudagraph"], strict=True):
        np.testing.assert_array_equal(graph, eager)
        assert all(torch.equal(a, b) for a, b in zip(graph_seen, eager_seen, strict=True))
        assert eager.std() > 5, "a flat image would equal anything"


@pytest.mark.parametrize("execution", ["eager", "compile", "cudagraph", "compile_cudagraph"])
@pytest.mark.parametrize("model", REQUESTS)
def test_an_image_does_not_depend_on_sizes_in_between(folders, model, execution):
    executor = start(folders[model], execution=execution)
    executor.compile_or_warm_up_model()
    module = getattr(executor.pipeline, "transformer", None) or executor.pipeline.unet

    def made(prompt: str, **size: Any) -> list[torch.Tensor]:
        return predictions(executor, module, DiffusionRequest("0", prompt, seed=1, **size))[1]

    first = made("a red cat")
    warm = executor.execution_counters["compiled_graphs"]
    other = made("a lighthouse at dusk, in heavy rain", height=32, width=96)
    assert executor.execution_counters["compiled_graphs"] == warm, "nothing is compiled for a size of its own"
    for again, before in (
        (made("a red cat"), first),
        (made("a lighthouse at dusk, in heavy rain", height=32, width=96), other),
    ):
        assert all(torch.equal(a, b) for a, b in zip(again, before, strict=True))
    executor.shutdown()


def test_graphs_that_nobody_asked_for_end_with_a_failed_capture(folders):
    """Reading a number on the host, which no graph can hold, is planted after the stage has chosen graphs."""
    executor = start(folders["qwen_image"])
    executor.compile_or_warm_up_model()
    assert executor.effective["execution"] == "compile_cudagraph", executor.effective
    (before,) = run(executor, DiffusionRequest("before", "a red cat", seed=1))

    def read_on_host(_module, args):
        args[0].sum().item()

    hook = executor.pipeline.transformer.norm_out.register_forward_pre_hook(read_on_host)
    other_size = {"height": 32, "width": 96}
    run(executor, DiffusionRequest.from_arguments("fails", "a red cat", 1, other_size))
    hook.remove()
    assert executor.effective["execution"] == "compile"
    assert "captur" in executor.effective["execution_reason"]
    (after,) = run(executor, DiffusionRequest("after", "a red cat", seed=1))
    assert np.abs(after.images[0].astype(int) - before.images[0].astype(int)).max() <= 12
    executor.shutdown()


@pytest.mark.parametrize("level", [1, 2])
def test_graphs_do_not_outlive_the_weights_that_they_read(folders, level):
    executor = start(folders["qwen_image"], execution="cudagraph")
    request = DiffusionRequest("0", "a cat", seed=9)
    (before,) = run(executor, request)
    executor.sleep(level)
    assert executor.execution_counters.get("graph_pool_bytes", 0) == 0
    occupied = [torch.full((1 << 20,), float("nan"), device="cuda") for _ in range(64)]
    executor.wake_up()
    (after,) = run(executor, request)
    np.testing.assert_array_equal(after.images[0], before.images[0])
    del occupied
    executor.shutdown()


def test_async_copies_bring_the_same_images_in_order_and_pinned(folders):
    requests = [DiffusionRequest(str(seed), "a cat", seed=seed) for seed in range(4)]
    made = {}
    for output_copy in ("sync", "async"):
        executor = start(folders["qwen_image"], output_copy=output_copy)
        ready: list[DiffusionOutput] = []
        executor.execute_model(tuple(requests), on_output=ready.append)
        assert [output.request_id for output in ready] == ["0", "1", "2", "3"]
        made[output_copy] = run(executor, *requests)
        counters = executor.execution_counters
        assert executor.effective["output_copy"] == output_copy
        assert counters["copies"] == 8 and counters["copied_bytes"] == 8 * (64 * 64 * 3 + 1)
        assert counters["pinned_copies"] == (8 if output_copy == "async" else 0)
        assert all(output.times.vae_decode_s > 0 for output in made[output_copy])
        executor.shutdown()
    for one, other in zip(made["sync"], made["async"], strict=True):
        np.testing.assert_array_equal(one.images[0], other.images[0])
