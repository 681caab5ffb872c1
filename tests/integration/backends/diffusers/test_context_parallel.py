"""A stage whose ranks share each image: two processes on the CPU, with the output of one."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import DiffusionPipeline
from diffusers.models import QwenImageTransformer2DModel
from support.omni_process import GONE_WITHIN_S, OmniProcess

from omni_cli.backends.diffusers.execution import choose_device
from omni_cli.backends.diffusers.parallel import check_attention, check_denoisers
from omni_cli.checkpoints.resolve import resolve_model
from omni_cli.config.schema import DiffusionStageConfig
from omni_cli.core.errors import StageError, UsageError
from omni_cli.requests.contents import CallFile, Media
from omni_cli.requests.events import Event
from omni_cli.requests.outputs import GenerateRequest, ImageOutput, StageProgress

pytestmark = pytest.mark.skipif(torch.cuda.device_count() == 1, reason="two ranks need two CUDA devices, or none")
ULYSSES = ("image.context_parallel.ulysses_degree=2", "image.context_parallel.ulysses_anything=true")


@pytest.fixture(scope="module")
def tiny_image_path() -> str:
    return resolve_model("builtin:tiny-image")


@pytest.fixture(scope="module")
def engine(start_engine: Any) -> Any:
    return start_engine("tiny-image", *ULYSSES)


def image_of(events: list[Event]) -> np.ndarray:
    (image,) = [output for output in events[-1].outputs if isinstance(output, ImageOutput)]
    return image.pixels


def ranks_of(engine: Any) -> list[int]:
    """Process ids: the stage's process, then those of its other ranks."""
    stage = engine.llm._clients["image"]._process.pid
    others = Path(f"/proc/{stage}/task/{stage}/children").read_text().split()
    return [stage, *map(int, others)]


def wait_until_gone(pids: list[int]) -> None:
    deadline = time.monotonic() + GONE_WITHIN_S
    while left := [pid for pid in pids if Path(f"/proc/{pid}").exists()]:
        assert time.monotonic() < deadline, left
        time.sleep(0.05)


def test_two_ranks_make_the_image_of_plain_diffusers(engine, tiny_image_path):
    pipeline = DiffusionPipeline.from_pretrained(tiny_image_path).to("cuda" if torch.cuda.is_available() else "cpu")
    pipeline.set_progress_bar_config(disable=True)
    stage = engine.config.stage("image")
    call = {"num_inference_steps": stage.num_inference_steps, "height": 64, "width": 64, **stage.call}
    requests = [GenerateRequest(str(seed), "a red cat" * seed, seed=seed) for seed in (1, 2)]
    for request, events in zip(requests, engine.events(requests), strict=True):
        generator = torch.Generator("cpu").manual_seed(request.seed)
        plain = np.asarray(pipeline(request.prompt, generator=generator, **call).images[0]).astype(int)
        # Each rank adds up its own tokens: 6.6e-7 of [0, 1] were measured, which may round to the next of 256 values.
        assert np.abs(image_of(events) - plain).max() <= 1
        (trace,) = events[-1].stages
        assert trace.effective["context_parallel"]["ulysses_degree"] == 2
        assert trace.effective["attention_backend"] == "native"
    assert len(ranks_of(engine)) == 2


def test_two_ranks_make_the_same_image_after_a_sleep(engine: Any) -> None:
    request = GenerateRequest("0", "a red cat", seed=1)
    (before,) = engine.events([request])
    engine._call(engine.llm.sleep(1))
    assert engine._call(engine.llm.wake_up())
    (after,) = engine.events([request])
    assert np.array_equal(image_of(before), image_of(after))
    with pytest.raises(UsageError, match="level 2 drops weights, which stage `image`, of several ranks"):
        engine.llm.check_sleep(2)


def test_the_files_of_a_request_reach_both_ranks(engine, tiny_image_path):
    pipeline = DiffusionPipeline.from_pretrained(tiny_image_path).to("cuda" if torch.cuda.is_available() else "cpu")
    pipeline.set_progress_bar_config(disable=True)
    stage = engine.config.stage("image")
    call = {"num_inference_steps": stage.num_inference_steps, "height": 64, "width": 64, **stage.call}
    shape = (1, 16, pipeline.transformer.config.in_channels)
    latents = np.random.default_rng(0).standard_normal(shape, np.float32)
    files = {"latents": CallFile("tensor", latents)}
    (events,) = engine.events([GenerateRequest("latents", "a red cat", media=Media(call_files=files))])
    plain = pipeline("a red cat", latents=torch.from_numpy(latents).to(pipeline.device), **call).images[0]
    assert np.abs(image_of(events) - np.asarray(plain).astype(int)).max() <= 1


def test_an_aborted_request_ends_on_both_ranks(engine):
    (before,) = engine.events([GenerateRequest("before", "a blue dog", seed=7)])

    async def abort() -> None:
        steps = engine.llm.generate(GenerateRequest("long", "a cat", diffusion={"num_inference_steps": 500}))
        async for event in steps:
            if isinstance(event, StageProgress):
                break
        await steps.aclose()

    engine._call(abort())
    (after,) = engine.events([GenerateRequest("after", "a blue dog", seed=7)])
    np.testing.assert_array_equal(image_of(after), image_of(before))


def test_a_rank_that_dies_ends_the_stage_with_one_error_and_none_is_left(engine):
    stage, other = ranks_of(engine)
    os.kill(other, signal.SIGKILL)
    deadline = time.monotonic() + GONE_WITHIN_S
    while "image" not in engine.llm.failed_stages:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    failed = engine.run(GenerateRequest("0", "a cat"))
    assert failed.error.message == "stage `image`: rank 1 was killed (SIGKILL)"
    engine._call(engine.llm.restart("image"))
    wait_until_gone([stage, other])
    assert engine.run(GenerateRequest("1", "a cat")).error is None
    stage, other = ranks_of(engine)
    os.kill(stage, signal.SIGKILL)
    wait_until_gone([other])


@pytest.mark.nightly
def test_a_killed_command_leaves_no_rank(tmp_path):
    settings = [word for setting in ULYSSES for word in ("--set", setting)]
    steps = ("--num-inference-steps", "1000", "-q")
    process = OmniProcess(tmp_path, "generate", "-p", "tiny-image", *settings, *steps, "a cat", warm=True)
    # Resource tracker, fork server, the stage and its other rank.
    process.wait_for(lambda: len(process.others()) >= 4)
    process.popen.kill()
    assert not [left for left in process.end().leftovers if left.startswith("process")]


def test_tokens_that_cannot_be_divided_fail_alone(start_engine):
    engine = start_engine("tiny-image", "image.context_parallel.ulysses_degree=2")
    # 9 and 16 tokens of an image.
    sizes = [{"height": side, "width": side} for side in (48, 64)]
    results = [engine.run(GenerateRequest("0", "a red cat", diffusion=size)) for size in sizes]
    assert [result.error is None for result in results] == [False, True]
    assert "the number of tokens is not a multiple" in results[0].error.message
    assert "`--set image.context_parallel.ulysses_anything=true`" in results[0].error.hint


def refusal(*models: Any, **keys: Any) -> UsageError:
    with pytest.raises(UsageError) as raised:
        check_denoisers(DiffusionStageConfig.create("image", **keys), models)
    return raised.value


def test_what_cannot_be_shared_is_refused(tiny_image_path):
    qwen = QwenImageTransformer2DModel.from_pretrained(Path(tiny_image_path) / "transformer")
    error = refusal(qwen, context_parallel={"ulysses_degree": 3})
    assert "`ulysses_degree: 3` does not divide the 2 attention heads" in error.message
    with pytest.raises(UsageError) as raised:
        check_attention(DiffusionStageConfig.create("image", attention_backend="nativ"))
    assert (raised.value.message, raised.value.hint) == (
        "stage `image`: diffusers has no attention backend `nativ`", "did you mean `native`?"
    )  # fmt: skip
    assert "need a pipeline with a transformer" in refusal(context_parallel={"ulysses_degree": 2}).message


def test_what_diffusers_refuses_to_share_is_refused_in_its_words(start_engine: Any) -> None:
    with pytest.raises(UsageError, match="'_native_efficient' which does not support") as raised:
        start_engine("tiny-image", *ULYSSES, "image.attention_backend=_native_efficient")
    assert "--replicas N" in str(raised.value.hint)


@pytest.mark.skipif(torch.cuda.is_available(), reason="for a machine without the devices")
def test_ranks_run_on_the_devices_that_are_named_and_nowhere_else():
    stage = DiffusionStageConfig.create("image", context_parallel={"ulysses_degree": 2})
    assert choose_device(stage, 1) == choose_device(stage.model_copy(update={"devices": "cpu,cpu"}), 1) == "cpu"
    with pytest.raises(StageError, match="needs 2 devices, and 0 are visible"):
        choose_device(stage.model_copy(update={"devices": "0,1"}), 0)
