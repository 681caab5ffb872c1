"""Memory keys of a stage on a pipeline: each is in effect, and outputs equal those of diffusers' own switch."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import (
    AutoencoderKL,
    AutoencoderKLTemporalDecoder,
    AutoencoderOobleck,
    DiffusionPipeline,
)
from support.answers import answer_of
from support.omni_process import run_omni

from omni_cli.backends.diffusers import executor as executor_module
from omni_cli.backends.diffusers.executor import DiffusersPipelineExecutor
from omni_cli.backends.diffusers.memory import PipelineMemory
from omni_cli.backends.diffusers.requests import DiffusionRequest
from omni_cli.checkpoints.tiny_pipelines import tiny_image
from omni_cli.config.schema import DiffusionStageConfig
from omni_cli.core.errors import StageError

TILES = {
    "tile_sample_min_height": 32,
    "tile_sample_min_width": 32,
    "tile_sample_stride_height": 24,
    "tile_sample_stride_width": 24,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoint") / "tiny-image"
    tiny_image(folder, 0)
    return folder


def start(folder: Path, **keys: Any) -> DiffusersPipelineExecutor:
    stage = DiffusionStageConfig.create("image", num_inference_steps=2, height=64, width=64, **keys)
    return DiffusersPipelineExecutor(stage, str(folder), "float32", "cpu")


def make(executor: DiffusersPipelineExecutor, *prompts: str) -> list[np.ndarray]:
    requests = tuple(DiffusionRequest(str(i), prompt, seed=5 + i) for i, prompt in enumerate(prompts or ["a red cat"]))
    outputs = executor.execute_model(requests)
    assert [output.error for output in outputs] == [None] * len(requests)
    return [output.images[0] for output in outputs]


def plain(pipeline: DiffusionPipeline, *prompts: str) -> list[np.ndarray]:
    pipeline.set_progress_bar_config(disable=True)
    prompts = prompts or ("a red cat",)
    generators = [torch.Generator("cpu").manual_seed(5 + i) for i in range(len(prompts))]
    call = {"num_inference_steps": 2, "height": 64, "width": 64}
    return [np.asarray(image) for image in pipeline(list(prompts), generator=generators, **call).images]


@pytest.fixture(scope="module")
def expected(folder) -> np.ndarray:
    return plain(DiffusionPipeline.from_pretrained(folder))[0]


@pytest.mark.parametrize(
    ("keys", "left"),
    [
        ({"offload": "model"}, {}),
        ({"offload": "group"}, {"exclude_modules": ["vae"]}),
        ({"offload": "group", "offload_type": "leaf_level"}, {"exclude_modules": []}),
        ({"offload": "group", "exclude_modules": ["text_encoder"]}, {"exclude_modules": ["text_encoder", "vae"]}),
    ],
    ids=["model", "blocks", "layers", "named"],
)
def test_an_offloaded_pipeline_makes_the_same_image_again_and_after_sleep(folder, expected, monkeypatch, keys, left):
    """The CPU is the device: the hooks that move weights run as they do on a GPU, which users need for it.

    The autoencoder names no blocks to diffusers, which would leave parts of it on the host while it decodes.
    """
    with pytest.raises(StageError, match=r"`offload: \w+` moves weights between a GPU and the host"):
        start(folder, **keys)
    monkeypatch.setattr(executor_module, "check_accelerator", lambda *_: None)
    executor = start(folder, **keys)
    np.testing.assert_array_equal(make(executor)[0], expected)
    np.testing.assert_array_equal(make(executor)[0], expected)
    assert executor.effective == {**executor.effective, "offload": keys["offload"], **left}
    assert executor.execution_counters["eager_calls"] == 4
    executor.sleep()
    executor.wake_up()
    np.testing.assert_array_equal(make(executor)[0], expected)
    assert executor.effective == {**executor.effective, "offload": keys["offload"], **left}
    executor.shutdown()


@pytest.mark.parametrize(
    ("vae", "left"),
    [
        (AutoencoderKL(block_out_channels=(32,)), []),
        (AutoencoderOobleck(encoder_hidden_size=4, decoder_channels=4), ["vae"]),
    ],
    ids=["names-blocks", "refuses"],
)
def test_only_autoencoders_that_diffusers_cannot_move_in_groups_stay_on_the_device(folder, vae, left):
    pipeline = DiffusionPipeline.from_pretrained(folder)
    pipeline.register_modules(vae=vae)
    memory = PipelineMemory(pipeline, DiffusionStageConfig.create("image", offload="group"), "cpu")
    assert memory.effective["exclude_modules"] == left


def test_single_layers_are_moved_on_a_gpu_only(folder):
    """accelerate's hooks for single layers do not run on a CPU, in plain diffusers either."""
    with pytest.raises(
        StageError, match="`offload: sequential` moves weights between a GPU and the host, and the stage"
    ):
        start(folder, offload="sequential")


@pytest.mark.nightly
def test_later_videos_need_no_more_memory_than_the_first(tmp_path):
    """The peak of the stage's process, whose allocator returns what is freed: else that would be most of the peak."""
    peaks = []
    for count in (1, 20):
        folder = tmp_path / str(count)
        folder.mkdir()
        (folder / "requests.jsonl").write_text("".join(f'{{"prompt": "a cat", "seed": {i}}}\n' for i in range(count)))
        sizes = ("--set", "video.height=96", "--set", "video.width=96", "--set", "video.num_inference_steps=2")
        command = (
            "generate",
            "-p",
            "tiny-video",
            *sizes,
            "--requests",
            "requests.jsonl",
            "--json",
            "--output-dir",
            "out",
        )
        ended = run_omni(folder, *command, environment={"MALLOC_TRIM_THRESHOLD_": "65536"})
        assert ended.code == 0, ended.err
        peaks.append(ended.document["stages"][0]["peak_memory_bytes"]["host"])
    # Kept frames would add 1.8 MiB each, as floats. Of requests one by one the second added 7 MiB, and no other any.
    assert peaks[1] - peaks[0] < 24 * 2**20, [peak >> 10 for peak in peaks]


def test_a_call_that_fails_leaves_no_model_on_the_device(folder, expected, monkeypatch):
    monkeypatch.setattr(executor_module, "check_accelerator", lambda *_: None)
    executor = start(folder, offload="model")
    freed = []
    free = executor.pipeline.maybe_free_model_hooks
    monkeypatch.setattr(executor.pipeline, "maybe_free_model_hooks", lambda: (freed.append(1), free()))
    scheduler = executor.pipeline.scheduler
    monkeypatch.setattr(scheduler, "step", lambda *_, **__: 1 / 0)
    (output,) = executor.execute_model((DiffusionRequest("0", "a red cat"),))
    assert output.error is not None and freed == [1]
    monkeypatch.undo()
    np.testing.assert_array_equal(make(executor)[0], expected)
    executor.shutdown()


def test_tiles_and_slices_are_those_of_the_plain_pipeline(folder, expected):
    reference = DiffusionPipeline.from_pretrained(folder)
    reference.vae.enable_tiling(**TILES)
    (tiled,) = plain(reference)
    assert not np.array_equal(tiled, expected), "a tiled image differs at the seams"
    executor = start(folder, enable_vae_tiling=True, enable_vae_slicing=True, batching="stacked")
    assert (executor.effective["vae_tiling"], executor.effective["vae_slicing"]) == (True, True)
    np.testing.assert_array_equal(make(executor)[0], expected)
    assert executor.execution_counters["tiled_decodes"] == 0, "an image smaller than a tile is decoded whole"
    for name, pixels in TILES.items():
        setattr(executor.pipeline.vae, name, pixels)
    np.testing.assert_array_equal(make(executor)[0], tiled)
    assert executor.execution_counters["tiled_decodes"] == 1
    reference.vae.enable_slicing()
    two = ("a red cat", "a red dog")
    for ours, theirs in zip(make(executor, *two), plain(reference, *two), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert executor.execution_counters["tiled_decodes"] == 3, "each image of the batch is decoded alone"
    executor.shutdown()


def test_components_have_their_own_types(folder, expected):
    reference = DiffusionPipeline.from_pretrained(folder, dtype={"default": torch.float32, "vae": torch.bfloat16})
    (half,) = plain(reference)
    assert not np.array_equal(half, expected)
    executor = start(folder, torch_dtype={"vae": "bfloat16"})
    np.testing.assert_array_equal(make(executor)[0], half)
    assert executor.effective["torch_dtype"] == {"vae": "bfloat16"} and executor.effective["dtype"] == "float32"
    assert executor.pipeline.transformer.dtype == torch.float32
    executor.shutdown()


def test_keys_that_the_pipeline_cannot_follow_are_refused_before_weights_are_read(folder, tmp_path):
    with pytest.raises(StageError, match="`torch_dtype` names `vaee`, and the pipeline loads no such model") as raised:
        start(folder, torch_dtype={"vaee": "bfloat16"})
    assert raised.value.hint == "did you mean `vae`?"
    with pytest.raises(StageError, match="`torch_dtype` names `tokenizer`") as raised:
        start(folder, torch_dtype={"tokenizer": "bfloat16"})
    assert raised.value.hint == "its models are text_encoder, transformer, vae"


def test_a_vae_without_tiling_is_refused() -> None:
    tiled = DiffusionStageConfig.create("image", enable_vae_tiling=True)
    vae = AutoencoderKLTemporalDecoder(block_out_channels=(32,))
    with pytest.raises(StageError, match=r"`enable_vae_tiling` .*: AutoencoderKLTemporalDecoder has no tiling"):
        PipelineMemory(SimpleNamespace(vae=vae), tiled, "cpu")
    with pytest.raises(StageError, match="the pipeline has no VAE"):
        PipelineMemory(SimpleNamespace(), tiled, "cpu")


def test_memory_that_runs_out_is_one_error_and_the_next_request_runs(folder, tmp_path):
    answer = answer_of("short_of_memory", {"model": str(folder)}, tmp_path)
    assert answer["large"] == {
        "error": "stage `image`: not enough memory for an image of 512x512",
        "hint": "use a smaller `height` and `width`, or `--set image.enable_vae_tiling=true`, or "
        "`--set image.max_num_seqs=1` or `--set dtype=bfloat16`",
    }
    assert answer["again"] == answer["first"]
