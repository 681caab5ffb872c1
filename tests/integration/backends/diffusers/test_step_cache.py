"""Step caches of diffusers and cache-dit, against the same pipeline without one and against the libraries' counts."""

from __future__ import annotations

import functools
import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import DiffusionPipeline
from diffusers.hooks.first_block_cache import FBCHeadBlockHook
from diffusers.models import LTX2VideoTransformer3DModel, QwenImageTransformer2DModel, SanaTransformer2DModel
from support.tiny_pipelines import build_named, declarations
from support.tiny_pipelines.build import build

from omni_cli.backends.diffusers.executor import DiffusersPipelineExecutor
from omni_cli.backends.diffusers.parallel import check_denoisers
from omni_cli.backends.diffusers.requests import DiffusionOutput, DiffusionRequest
from omni_cli.backends.diffusers.step_cache import StepCaches, check_package
from omni_cli.checkpoints.resolve import resolve_model
from omni_cli.config.schema import DiffusionStageConfig
from omni_cli.core.errors import UsageError

STEPS = 6
needs_cache_dit = pytest.mark.skipif(
    importlib.util.find_spec("cache_dit") is None, reason="cache-dit is an extra: `omni-cli[cache-dit]`"
)
CACHE_DIT: dict[str, Any] = {"method": "cache_dit", "Fn_compute_blocks": 1, "max_warmup_steps": 2}
SKIPPING = {
    "first_block": {"threshold": 1e9},
    "mag": {"threshold": 10.0, "mag_ratios": [1.0], "retention_ratio": 0.0},
    "taylorseer": {"cache_interval": 2, "disable_cache_before_step": 2},
    "cache_dit": {"Fn_compute_blocks": 1, "max_warmup_steps": 2, "threshold": 1e9},
}
METHODS = [pytest.param(name, marks=needs_cache_dit) if name == "cache_dit" else name for name in SKIPPING]


ALWAYS = [-1.0, 2000.0]
BROADCASTING: dict[str, dict[str, Any]] = {
    "pyramid_attention_broadcast": {
        "spatial_attention_block_skip_range": 2, "spatial_attention_timestep_skip_range": ALWAYS,
    },
    "faster": {
        "spatial_attention_block_skip_range": 2, "spatial_attention_timestep_skip_range": ALWAYS,
        "unconditional_batch_skip_range": 2, "unconditional_batch_timestep_skip_range": ALWAYS,
        "tensor_format": "BFCHW",
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def video_folder(tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("cogvideox")
    build_named("CogVideoXPipeline", folder)
    return str(folder)


@pytest.fixture(scope="module")
def folder() -> str:
    return resolve_model("builtin:tiny-image")


def start(folder: str, **keys: Any) -> DiffusersPipelineExecutor:
    stage = DiffusionStageConfig.create("image", num_inference_steps=STEPS, height=64, width=64, **keys)
    return DiffusersPipelineExecutor(stage, folder, "float32", "cpu")


def guided(seed: int) -> DiffusionRequest:
    arguments = {"negative_prompt": "blurry", "true_cfg_scale": 3.0}
    return DiffusionRequest.from_arguments(str(seed), "a red cat", seed, arguments)


def run(executor: DiffusersPipelineExecutor, request: DiffusionRequest, **callbacks: Any) -> DiffusionOutput:
    (output,) = executor.execute_model((request,), **callbacks)
    if output.error is not None:
        raise output.error
    return output


def plain(folder: str, seed: int) -> np.ndarray:
    pipeline = DiffusionPipeline.from_pretrained(folder)
    pipeline.set_progress_bar_config(disable=True)
    generator = torch.Generator("cpu").manual_seed(seed)
    return np.asarray(
        pipeline(
            "a red cat", "blurry", true_cfg_scale=3.0, num_inference_steps=STEPS, height=64, width=64,
            generator=generator,
        ).images[0]
    )  # fmt: skip


def test_threshold_0_is_the_exact_run_and_skips_nothing(folder):
    executor = start(folder, cache={"method": "first_block", "threshold": 0.0})
    np.testing.assert_array_equal(run(executor, guided(1)).images[0], plain(folder, 1))
    assert (executor.execution_counters["cached_calls"], executor.execution_counters["eager_calls"]) == (0, 2 * STEPS)
    assert executor.effective["cache"] == {"method": "first_block", "threshold": 0.0}
    executor.shutdown()


def test_skipped_steps_are_those_of_the_hook(folder, monkeypatch):
    decisions: list[bool] = []
    decide = FBCHeadBlockHook._should_compute_remaining_blocks

    def noted(self: Any, residual: torch.Tensor) -> bool:
        decisions.append(decide(self, residual))
        return decisions[-1]

    monkeypatch.setattr(FBCHeadBlockHook, "_should_compute_remaining_blocks", noted)
    executor = start(folder, cache={"method": "first_block", "threshold": 1e9})
    run(executor, guided(1))
    monkeypatch.undo()
    blocks = len(executor.pipeline.transformer.transformer_blocks)
    # The first step of each half of guidance is computed.
    assert executor.execution_counters["cached_calls"] == decisions.count(False) == 2 * (STEPS - 1)
    assert executor.execution_counters["cached_module_calls"] == decisions.count(False) * (blocks - 1)
    executor.shutdown()


@pytest.mark.parametrize("method", METHODS)
def test_each_cache_is_used_and_a_request_takes_nothing_from_those_before(folder, method):
    executor = start(folder, cache={"method": method, **SKIPPING[method]})
    alone = run(executor, guided(2)).images[0]
    assert np.abs(alone.astype(int) - plain(folder, 2)).max() > 0
    counted = executor.execution_counters
    assert 0 < counted["cached_calls"] < counted["eager_calls"] <= counted["cached_module_calls"] * 10

    def abort(request_id: str, done: int, _total: int) -> None:
        if done == 3:
            executor.abort_requests([request_id])

    aborted = executor.execute_model((guided(1),), on_step=abort)[0]
    assert aborted.finish_reason == "abort"
    np.testing.assert_array_equal(run(executor, guided(2)).images[0], alone)
    executor.shutdown()


@needs_cache_dit
def test_cache_dit_skips_in_each_half_of_guidance_what_it_says(folder):
    exact = start(folder, cache={**CACHE_DIT, "threshold": 0.0})
    np.testing.assert_array_equal(run(exact, guided(1)).images[0], plain(folder, 1))
    assert (exact.execution_counters["cached_calls"], exact.execution_counters["eager_calls"]) == (0, 2 * STEPS)
    exact.shutdown()

    executor = start(folder, cache={**CACHE_DIT, "threshold": 1e9, "max_continuous_cached_steps": 2})
    transformer = executor.pipeline.transformer
    computed: list[int] = []
    hooks = [
        block.register_forward_hook(lambda *_, number=number: computed.append(number))
        for number, block in enumerate(transformer.transformer_blocks)
    ]
    run(executor, guided(1))
    # Each half: two steps of warm-up, two skipped, one computed, one skipped; the first block always runs.
    assert (computed.count(0), computed.count(1)) == (2 * STEPS, 2 * 3)
    assert (executor.execution_counters["cached_calls"], executor.execution_counters["cached_module_calls"]) == (
        2 * 3,
        2 * 3,
    )
    computed.clear()
    # Without guidance there is one call per step, and none is taken for the other half.
    run(executor, DiffusionRequest("0", "a red cat", seed=1))
    assert (computed.count(0), computed.count(1)) == (STEPS, 3)
    for hook in hooks:
        hook.remove()
    assert executor.effective["cache"] == {**CACHE_DIT, "threshold": 1e9, "max_continuous_cached_steps": 2}
    kept = type(transformer)
    executor.shutdown()
    assert "forward" not in vars(transformer) and transformer.cache_context.__func__ is kept.cache_context


@needs_cache_dit
def test_cache_dit_extrapolates_what_it_skips(folder):
    keys = {**CACHE_DIT, "threshold": 1e9, "max_warmup_steps": 4}  # it has no derivatives before
    made = []
    for cache in (keys, {**keys, "taylorseer_order": 1}):
        executor = start(folder, cache=cache)
        made.append(run(executor, guided(1)).images[0])
        assert executor.execution_counters["cached_calls"] == 2 * (STEPS - 4)
        executor.shutdown()
    assert np.abs(made[0].astype(int) - made[1]).max() > 0


@needs_cache_dit
@pytest.mark.parametrize(
    "name", ["ZImagePipeline", "Flux2KleinPipeline", pytest.param("SanaPipeline", marks=pytest.mark.nightly)]
)
def test_cache_dit_serves_models_for_which_diffusers_has_no_cache(name, tmp_path):
    declared = declarations()[name]
    build(declared, tmp_path)
    sizes = {key: declared.call[key] for key in ("height", "width", "guidance_scale") if key in declared.call}
    made = []
    for cache in ({"method": "none"}, {**CACHE_DIT, "threshold": 0.0}, {**CACHE_DIT, "threshold": 1e9}):
        stage = DiffusionStageConfig.create("image", num_inference_steps=STEPS, cache=cache, **sizes)
        executor = DiffusersPipelineExecutor(stage, str(tmp_path), "float32", "cpu")
        call = {key: declared.call[key] for key in ("text_encoder_out_layers",) if key in declared.call}
        made.append(run(executor, DiffusionRequest.from_arguments("0", "a red cat", 1, call)).images[0])
        counted = executor.execution_counters
        executor.shutdown()
    np.testing.assert_array_equal(made[0], made[1])
    assert np.abs(made[0].astype(int) - made[2]).max() > 0
    assert 0 < counted["cached_calls"] < counted["eager_calls"]


@pytest.mark.parametrize("method", BROADCASTING)
def test_a_cache_of_attention_is_used_where_guidance_is_one_call(video_folder, method):
    declared = declarations()["CogVideoXPipeline"]
    made = []
    for keys in ({}, {"cache": {"method": method, **BROADCASTING[method]}}):
        sizes = {name: declared.call[name] for name in ("height", "width", "guidance_scale") if name in declared.call}
        call = {"num_frames": declared.call["num_frames"]}
        stage = DiffusionStageConfig.create("video", num_inference_steps=STEPS, call=call, **sizes, **keys)
        executor = DiffusersPipelineExecutor(stage, video_folder, "float32", "cpu")
        frames = [run(executor, DiffusionRequest("0", "a cat", seed=seed)).videos[0].numpy() for seed in (1, 2, 1)]
        np.testing.assert_array_equal(frames[0], frames[2])
        made.append(frames[0].astype(int))
        counted = executor.execution_counters
        executor.shutdown()
    assert np.abs(made[0] - made[1]).max() > 0
    assert 0 < counted["cached_calls"] < counted["eager_calls"] == 3 * STEPS


@pytest.mark.parametrize(
    ("cache", "computed"),
    [
        ({"method": "first_block"}, 1),
        pytest.param(CACHE_DIT, 2, marks=needs_cache_dit),
    ],
)
def test_a_cache_decides_between_compiled_blocks(folder, monkeypatch, cache, computed):
    # Traced as for any other backend, but without the time of a C++ compiler.
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))
    torch.compiler.reset()
    keys: dict[str, Any] = {"cache": {**cache, "threshold": 1e9}}
    eager, compiled = start(folder, **keys), start(folder, execution="compile", **keys)
    pixels = [run(executor, guided(3)).images[0].astype(int) for executor in (eager, compiled)]
    assert np.abs(pixels[0] - pixels[1]).max() <= 1
    assert compiled.execution_counters["compiled_graphs"] > 0
    assert (
        compiled.execution_counters["cached_calls"]
        == eager.execution_counters["cached_calls"]
        == 2 * (STEPS - computed)
    )
    for executor in (eager, compiled):
        executor.shutdown()


def test_what_cannot_have_a_cache_is_refused(folder, tmp_path):
    def refused(*models: Any, **cache: Any) -> str:
        with pytest.raises(UsageError) as raised:
            StepCaches(models, DiffusionStageConfig.create("image", cache=cache), lambda: 0.0)
        return raised.value.message

    first_block = {"method": "first_block", "threshold": 0.1}
    start_of = "stage `image`: the cache `first_block` cannot be used: "
    sana = SanaTransformer2DModel(num_layers=1, caption_channels=8)
    assert refused(sana, **first_block) == start_of + "diffusers has no caches for SanaTransformer2DModel"
    with pytest.raises(UsageError, match="SanaTransformer2DModel computes its attention itself"):
        check_denoisers(DiffusionStageConfig.create("image", attention_backend="native"), [sana])
    assert refused(**first_block) == start_of + "the pipeline has no transformer"
    qwen = QwenImageTransformer2DModel.from_pretrained(Path(folder) / "transformer")
    if importlib.util.find_spec("cache_dit") is not None:
        all_blocks = refused(qwen, method="cache_dit", Fn_compute_blocks=2)
        assert all_blocks.endswith("it has no more than the 2 blocks that are always computed")
        build_named("LTX2Pipeline", tmp_path / "ltx2")
        ltx = LTX2VideoTransformer3DModel.from_pretrained(tmp_path / "ltx2" / "transformer")
        other_version = refused(ltx, method="cache_dit", Fn_compute_blocks=1)
        assert "cache-dit's own code for it is for another version of diffusers and lacks " in other_version
    StepCaches([qwen], DiffusionStageConfig.create("image", cache=first_block), lambda: 0.0).close()


def test_a_cache_that_would_mix_the_halves_of_guidance_is_refused(folder):
    with pytest.raises(UsageError, match="QwenImagePipeline computes the halves of guidance one after another"):
        start(folder, cache={"method": "pyramid_attention_broadcast"})


def test_a_cache_whose_package_is_missing_names_its_extra(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError) as raised:
        check_package(DiffusionStageConfig.create("image", cache={"method": "cache_dit"}))
    assert raised.value.message.endswith("it needs cache-dit, which is not installed")
    assert "omni-cli[cache-dit]" in (raised.value.hint or "")
