"""The executor against plain diffusers calls, on a Qwen-Image (transformer, flow matching) and a Stable
Diffusion (UNet, classifier-free guidance), both with random weights.
"""

from __future__ import annotations

import functools
import gc
import json
import shutil
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path

import numpy as np
import pytest
import torch
from diffusers import DiffusionPipeline
from diffusers.image_processor import VaeImageProcessor
from diffusers.models.attention_dispatch import _AttentionBackendRegistry
from safetensors.torch import load_file, save_file
from support.tiny_pipelines import build_named

from omni_cli.backends.diffusers import execution
from omni_cli.backends.diffusers.execution import CallTime
from omni_cli.backends.diffusers.executor import DiffusersPipelineExecutor
from omni_cli.backends.diffusers.memory import PromptCache
from omni_cli.backends.diffusers.messages import describe_failure
from omni_cli.backends.diffusers.outputs import from_bytes, to_bytes
from omni_cli.backends.diffusers.parallel import use_attention
from omni_cli.backends.diffusers.requests import DiffusionOutput, DiffusionRequest
from omni_cli.checkpoints.tiny_pipelines import tiny_image
from omni_cli.config.loader import load_profile
from omni_cli.config.schema import DiffusionStageConfig
from omni_cli.core.errors import CheckpointError, InputError, OmniError, StageError, UsageError

MODELS = ("qwen_image", "stable_diffusion")
STEPS = 3
STAGE = DiffusionStageConfig.create("image", num_inference_steps=STEPS, height=64, width=64, max_num_seqs=4)


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("checkpoints")
    tiny_image(root / "qwen_image", 0)
    build_named("StableDiffusionPipeline", root / "stable_diffusion")
    return {name: root / name for name in MODELS}


@pytest.fixture(scope="module")
def plain(folders) -> dict[str, DiffusionPipeline]:
    pipelines = {name: DiffusionPipeline.from_pretrained(folders[name]) for name in MODELS}
    for pipeline in pipelines.values():
        pipeline.set_progress_bar_config(disable=True)
    return pipelines


@pytest.fixture(scope="module")
def executors(folders):
    made = {name: start(folders[name]) for name in MODELS}
    yield made
    for executor in made.values():
        executor.shutdown()


def start(folder: Path, stage: DiffusionStageConfig = STAGE, **options) -> DiffusersPipelineExecutor:
    return DiffusersPipelineExecutor(stage, str(folder), "float32", "cpu", **options)


def run(executor, *requests: DiffusionRequest, **callbacks) -> list[DiffusionOutput]:
    return list(executor.execute_model(requests, **callbacks))


def make_image(executor, request: DiffusionRequest) -> np.ndarray:
    (output,) = run(executor, request)
    if output.error is not None:
        raise output.error
    return output.images[0]


def plain_image(pipeline, prompt: str, seed: int, **arguments) -> np.ndarray:
    arguments = {"height": 64, "width": 64, "num_inference_steps": STEPS, **arguments}
    generator = torch.Generator("cpu").manual_seed(seed)
    return np.asarray(pipeline(prompt=prompt, generator=generator, **arguments).images[0])


# --- Equal to the plain call ---


@pytest.mark.parametrize(
    ("model", "arguments"),
    [
        ("qwen_image", {}),
        ("qwen_image", {"negative_prompt": " ", "true_cfg_scale": 3.0}),
        ("qwen_image", {"height": 32, "width": 96, "num_inference_steps": 2}),
        ("stable_diffusion", {}),
        ("stable_diffusion", {"negative_prompt": "blurry", "guidance_scale": 4.0, "eta": 0.7}),
        ("stable_diffusion", {"guidance_scale": 1.0, "height": 32, "width": 48}),
    ],
)
def test_an_image_is_the_plain_call_s_bit_for_bit(executors, plain, model, arguments):
    request = DiffusionRequest.from_arguments("0", "a red cat", 11, arguments)
    made = make_image(executors[model], request)
    assert made.dtype == np.uint8 and made.flags.c_contiguous
    np.testing.assert_array_equal(made, plain_image(plain[model], "a red cat", 11, **arguments))
    assert made.std() > 5, "a flat image would equal anything"


@pytest.mark.parametrize("model", MODELS)
def test_a_seed_gives_the_same_image_in_any_batch(executors, plain, model):
    prompts = ["a cat", "a much longer prompt about two dogs", "a cat", "rain"]
    negatives = ["x", "something long to avoid", "x", "y"]
    requests = [
        DiffusionRequest(str(i), prompt, negative_prompt=negative, seed=[5, 6, 7, 5][i])
        for i, (prompt, negative) in enumerate(zip(prompts, negatives, strict=True))
    ]
    together = run(executors[model], *requests)
    for request, output in zip(requests, together, strict=True):
        alone = plain_image(plain[model], request.prompt, request.seed, negative_prompt=request.negative_prompt)
        np.testing.assert_array_equal(output.images[0], alone)
    assert not np.array_equal(together[0].images[0], together[2].images[0]), "the seed must matter"


@pytest.mark.parametrize("model", MODELS)
def test_stacked_images_differ_by_rounding_only(folders, plain, model):
    executor = start(folders[model], STAGE.model_copy(update={"batching": "stacked"}))
    steps: list[str] = []
    requests = [DiffusionRequest(str(i), p, seed=i) for i, p in enumerate(["a cat", "a long dog", "a cat"])]
    outputs = run(executor, *requests, on_step=lambda name, done, total: steps.append(name))
    for request, output in zip(requests, outputs, strict=True):
        alone = plain_image(plain[model], request.prompt, request.seed)
        assert np.abs(output.images[0].astype(int) - alone).max() <= 1
    # Prompts of one length share a call: their steps alternate, and the third's come after.
    assert steps == ["0", "2"] * STEPS + ["1"] * STEPS
    executor.shutdown()


@pytest.mark.parametrize(
    ("precision", "dtype"), [("bfloat16", "float32"), ("float32", "bfloat16")], ids=["reduced", "whole"]
)
def test_precision_is_that_of_a_plain_pipeline_in_this_type(folders, plain, monkeypatch, precision, dtype):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    stage = STAGE.model_copy(update={"precision": precision})
    executor = DiffusersPipelineExecutor(stage, str(folders["stable_diffusion"]), dtype, "cpu")
    assert (executor.effective["precision"], executor.effective["dtype"]) == (precision, precision)
    assert not torch.backends.cudnn.allow_tf32, "convolutions, too"
    same = plain["stable_diffusion"]
    if precision == "bfloat16":
        same = DiffusionPipeline.from_pretrained(folders["stable_diffusion"], dtype=torch.bfloat16)
        same.set_progress_bar_config(disable=True)
    made = make_image(executor, DiffusionRequest("0", "a red cat", seed=11))
    np.testing.assert_array_equal(made, plain_image(same, "a red cat", 11))
    executor.shutdown()


def test_a_precision_that_cannot_take_effect_is_refused(folders):
    for settings, reason in (
        ({"precision": "tf32"}, "`precision: tf32` needs a CUDA device"),
        ({"precision": "float32", "torch_dtype": {"vae": "bfloat16"}}, "`precision` is that of every part"),
    ):
        with pytest.raises(StageError, match=reason):
            start(folders["stable_diffusion"], STAGE.model_copy(update=settings))


@pytest.mark.parametrize("model", MODELS)
def test_the_prompt_cache_works_and_changes_no_image(executors, plain, model):
    calls: list[int] = []
    hook = executors[model].pipeline.text_encoder.register_forward_hook(lambda *_: calls.append(1))
    encoded = []
    for seed in (1, 2, 3):
        one = DiffusionRequest("0", "a new cat", negative_prompt="a new dog", seed=seed)
        made = make_image(executors[model], one)
        np.testing.assert_array_equal(made, plain_image(plain[model], "a new cat", seed, negative_prompt="a new dog"))
        encoded.append(len(calls))
    hook.remove()
    assert encoded == [2, 2, 2], "the prompt and the negative prompt, once each"


def test_a_call_runs_in_inference_mode_and_encodes_its_prompt_outside_of_it(executors):
    executor = executors["qwen_image"]
    modes: dict[str, bool] = {}

    def note(part: str):
        return lambda *_: modes.update({part: torch.is_inference_mode_enabled()})

    parts = ("text_encoder", "transformer")
    hooks = [getattr(executor.pipeline, part).register_forward_pre_hook(note(part)) for part in parts]
    make_image(executor, DiffusionRequest("0", "an unseen cat", seed=1))
    for hook in hooks:
        hook.remove()
    assert modes == {"text_encoder": False, "transformer": True} and not torch.is_inference_mode_enabled()


def test_prompt_cache_drops_least_recently_used_and_modified_entries():
    encoded: list[str] = []

    def encode_prompt(prompt: str, device: str = "cpu", scale: float | None = None):
        encoded.append(prompt)
        return torch.ones(2, 3), None

    cache = PromptCache(encode_prompt, max_bytes=60)
    for prompt in ("a", "b", "a", "c", "a", "b"):
        cache(prompt)
    assert encoded == ["a", "b", "c", "b"], "two of 24 bytes each"
    cache("b")[0].mul_(2)
    assert cache("b")[0].sum() == 6 and encoded[-1] == "b", "a changed tensor must not be served"
    before = len(encoded)
    cache("b", scale=1.0), cache("b", "cpu", 1.0)
    assert len(encoded) == before + 1, "positional or by keyword is the same call"
    before = len(encoded)
    cache(torch.ones(1)), cache(torch.ones(1))
    assert len(encoded) == before + 2, "a tensor has no key"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_pixels_are_those_of_diffusers_own_conversion(dtype):
    generator = torch.Generator().manual_seed(0)
    decoded = torch.randn(2, 3, 64, 64, generator=generator).to(dtype)
    # Every value that lies half-way between two pixel values, where rounding rules differ.
    halves = ((torch.arange(255) + 0.5) / 255 * 2 - 1).to(dtype)
    decoded[0, 0].view(-1)[:255] = halves
    processor = VaeImageProcessor()
    expected = np.stack([np.asarray(image) for image in processor.postprocess(decoded, output_type="pil")])
    images = processor.postprocess(decoded, output_type="pt")
    np.testing.assert_array_equal(from_bytes(to_bytes(images), images.shape), expected)
    decoded[1, 2, 3, 4] = float("nan")
    with pytest.raises(ValueError, match="NaN or infinite"):
        from_bytes(to_bytes(decoded), decoded.shape)


# --- Progress, times, ending early ---


def test_steps_are_reported_and_timed(executors):
    seen, ready = [], []
    requests = [DiffusionRequest(str(i), "a cat", seed=i) for i in range(2)]
    outputs = run(
        executors["qwen_image"],
        *requests,
        on_step=lambda *step: seen.append(step),
        on_output=lambda output: ready.append((output.request_id, len(seen))),
    )
    assert seen == [(name, done, STEPS) for name in ("0", "1") for done in range(1, STEPS + 1)]
    assert ready == [("0", STEPS), ("1", 2 * STEPS)], "an image comes out as soon as it is whole"
    for output in outputs:
        times = output.times
        parts = [times.text_encode_s, *times.denoise_step_s, times.vae_decode_s]
        assert len(times.denoise_step_s) == STEPS and min(parts) > 0
        assert sum(parts) <= times.total_s


def test_an_aborted_request_ends_at_its_next_step_and_leaves_no_trace(executors, plain):
    executor, seen = executors["stable_diffusion"], []

    def on_step(name, done, total):
        seen.append((name, done))
        executor.abort_requests(["0", "no such request"])

    outputs = run(executor, *(DiffusionRequest(str(i), "a cat", seed=i) for i in range(2)), on_step=on_step)
    assert [output.finish_reason for output in outputs] == ["abort", "stop"]
    assert not outputs[0].images and outputs[0].error is None
    assert seen == [("0", 1), *(("1", done) for done in range(1, STEPS + 1))]
    # The same id again: nothing of the abort is remembered, and the scheduler's state is fresh.
    for seed in (0, 1):
        made = make_image(executor, DiffusionRequest(str(seed), "a cat", seed=seed))
        np.testing.assert_array_equal(made, plain_image(plain["stable_diffusion"], "a cat", seed))


def test_an_abort_ends_guidance_by_other_attention(tmp_path):
    """Its processors, which halve the batch in another way, would refuse or change requests without it."""
    build_named("StableDiffusionPAGPipeline", tmp_path)
    executor, pipeline = start(tmp_path), DiffusionPipeline.from_pretrained(tmp_path)
    guided = DiffusionRequest("0", "a cat", call={"pag_scale": 3.0})
    (output,) = run(executor, guided, on_step=lambda *_: executor.abort_requests(["0"]))
    assert output.finish_reason == "abort"
    made = make_image(executor, DiffusionRequest("1", "a cat", call={"pag_scale": 0.0}))
    np.testing.assert_array_equal(made, plain_image(pipeline, "a cat", 0, pag_scale=0.0))
    executor.shutdown()


def test_a_failed_decoding_leaves_the_vae_in_its_dtype(tmp_path, monkeypatch):
    """In float16, XL pipelines decode in float32: without it, all later requests would fail."""

    def fail(*_: object) -> None:
        raise MemoryError

    build_named("StableDiffusionXLPipeline", tmp_path)
    executor = DiffusersPipelineExecutor(STAGE, str(tmp_path), "float16", "cpu")
    request = DiffusionRequest("0", "a cat")
    made = make_image(executor, request)
    with monkeypatch.context() as planted, pytest.raises(StageError, match="not enough memory"):
        planted.setattr(executor.pipeline.vae.decoder, "forward", fail)
        make_image(executor, request)
    np.testing.assert_array_equal(make_image(executor, request), made)
    executor.shutdown()


def test_an_interrupt_propagates_and_the_executor_continues(executors, plain):
    def on_step(name, done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(executors["qwen_image"], DiffusionRequest("0", "a cat"), on_step=on_step)
    made = make_image(executors["qwen_image"], DiffusionRequest("0", "a cat", seed=2))
    np.testing.assert_array_equal(made, plain_image(plain["qwen_image"], "a cat", 2))


# --- Bad requests ---


@pytest.mark.parametrize(
    ("model", "arguments", "message", "hint"),
    [
        ("qwen_image", {"true_cfg_scale": float("inf")}, "`true_cfg_scale` must be a finite number", None),
        ("qwen_image", {"true_cfg_scale": "high"}, "`true_cfg_scale` must be a finite number", None),
        (
            "qwen_image",
            {"true_cfg_scal": 1.0},
            "no argument `true_cfg_scal`",
            "did you mean `true_cfg_scale`",
        ),
        ("qwen_image", {"zzz": 1}, "no argument `zzz`", "it takes `attention_kwargs`"),
        ("qwen_image", {"generator": 1}, "`generator` cannot be set", "`--seed`"),
        ("qwen_image", {"output_type": "np"}, "`output_type` cannot be set", "uint8"),
        ("qwen_image", {"num_images_per_prompt": "2"}, "`num_images_per_prompt` must be a whole number", None),
        ("qwen_image", {"callback_on_step_end": 1}, "`callback_on_step_end` cannot be set", "progress"),
        ("qwen_image", {"return_dict": False}, "`return_dict` cannot be set", "uint8"),
        ("qwen_image", {"prompt_embeds": "x"}, "`prompt_embeds` must be a tensor", "@FILE.npy"),
        ("qwen_image", {"prompt_embeds": "@x.npy"}, "`prompt_embeds` cannot name a file here", "omni generate"),
        ("qwen_image", {"sigmas": object()}, "`sigmas` must be `list[float]`", None),
        ("qwen_image", {"sigmas": ["1"]}, '`sigmas` must be `list[float]`, not ["1"]', None),
        ("stable_diffusion", {"true_cfg_scale": 2.0}, "no argument `true_cfg_scale`", "it takes `clip_skip`"),
    ],
)
def test_bad_arguments_are_refused_by_name_before_anything_runs(executors, model, arguments, message, hint):
    executor, steps = executors[model], []
    request = DiffusionRequest.from_arguments("bad", "a cat", 0, arguments)
    with pytest.raises(InputError) as caught:
        executor.resolve(request)
    assert message in caught.value.message
    assert (hint or "") in (caught.value.hint or "")
    bad, good = run(executor, request, DiffusionRequest("good", "a cat"), on_step=lambda *s: steps.append(s[0]))
    assert isinstance(bad.error, InputError) and bad.finish_reason == "error"
    assert good.finish_reason == "stop" and set(steps) == {"good"}


@pytest.mark.parametrize(
    ("model", "arguments", "words"),
    [
        ("qwen_image", {"prompt": None}, "Provide either `prompt` or `prompt_embeds`"),
        ("qwen_image", {"width": -64}, "RuntimeError: Trying to create tensor with negative dimension"),
        ("qwen_image", {"width": 1.5}, "TypeError: "),
        ("qwen_image", {"height": 7}, "RuntimeError: shape '[1, 0, 1, -1]' is invalid"),
        ("qwen_image", {"num_inference_steps": 0}, "ZeroDivisionError: division by zero"),
        ("qwen_image", {"num_images_per_prompt": 0}, "RuntimeError: cannot reshape tensor of 0 elements"),
        ("qwen_image", {"sigmas": []}, "IndexError: "),
        ("qwen_image", {"max_sequence_length": 5000}, "`max_sequence_length` cannot be greater than 1024 but is 5000"),
        ("stable_diffusion", {"prompt": None}, "Provide either `prompt` or `prompt_embeds`"),
        ("stable_diffusion", {"height": 36}, "`height` and `width` have to be divisible by 8 but are 36 and 64"),
        ("stable_diffusion", {"clip_skip": 99}, "IndexError: tuple index out of range"),
        ("stable_diffusion", {"timesteps": [5, 9]}, "does not support custom timestep schedules"),
        ("stable_diffusion", {"seed": 2**64}, "Overflow when unpacking long"),
    ],
)
def test_what_values_mean_is_decided_by_the_pipeline_whose_words_are_the_error(
    executors, plain, model, arguments, words
):
    others = dict(arguments)
    prompt, seed = others.pop("prompt", "a cat"), others.pop("seed", 0)
    bad = DiffusionRequest.from_arguments("bad", prompt, seed, others)
    rejected, good = run(executors[model], bad, DiffusionRequest("good", "a cat", seed=1))
    assert isinstance(rejected.error, InputError) and rejected.finish_reason == "error"
    assert rejected.error.message.startswith("stage `image`: its pipeline rejects the request: ")
    assert words in rejected.error.message
    np.testing.assert_array_equal(good.images[0], plain_image(plain[model], "a cat", 1))
    executors[model].check_health()


@pytest.mark.parametrize(
    ("model", "arguments", "notes"),
    [
        ("qwen_image", {}, ()),
        (
            "qwen_image",
            {"height": 65},
            ("diffusers: `height` and `width` have to be divisible by 16 but are 65 and 64",),
        ),
        ("qwen_image", {"guidance_scale": 3.0}, ("diffusers: guidance_scale is passed as 3.0, but ignored",)),
        (
            "qwen_image",
            {"negative_prompt": "x", "true_cfg_scale": 1.0},
            ("diffusers: negative_prompt is passed but classifier-free guidance is not enabled",),
        ),
        (
            "qwen_image",
            {"sigmas": [1.0, 0.5], "num_inference_steps": 3},
            ("`num_inference_steps` 3 has no effect beside `sigmas` of 2 steps",),
        ),
        ("qwen_image", {"latents": "noise"}, ()),
        ("stable_diffusion", {"negative_prompt": "x", "guidance_scale": 1.0}, ("`negative_prompt` has no effect",)),
        ("stable_diffusion", {"guidance_scale": -2.0}, ()),
    ],
)
def test_what_the_pipeline_accepts_is_accepted_and_what_it_does_with_it_is_noted(
    executors, plain, model, arguments, notes
):
    given = dict(arguments)
    if given.get("latents") == "noise":
        # 16 channels of 8x8, in patches of 2x2.
        given["latents"] = torch.randn(1, 16, 64, generator=torch.Generator().manual_seed(1))
    conditions = {name: given.pop(name) for name in ("latents",) if name in given}
    request = executors[model].resolve(DiffusionRequest.from_arguments("0", "a cat", 11, given, conditions))
    (output,) = run(executors[model], request)
    found = (*request.notes, *output.notes)
    assert len(found) == len(notes) and all(map(str.startswith, found, notes)), found
    np.testing.assert_array_equal(output.images[0], plain_image(plain[model], "a cat", 11, **given, **conditions))


@pytest.mark.parametrize("prompt", ["", " \n"])
def test_an_empty_prompt_is_the_pipeline_s(executors, plain, prompt):
    made = make_image(executors["stable_diffusion"], DiffusionRequest("0", prompt, seed=3))
    np.testing.assert_array_equal(made, plain_image(plain["stable_diffusion"], prompt, 3))


def test_several_images_of_a_request_are_the_plain_call_s(executors, plain):
    arguments = {"num_images_per_prompt": 2, "num_inference_steps": STEPS, "height": 64, "width": 64}
    request = DiffusionRequest.from_arguments("0", "a cat", 4, arguments)
    (output,) = run(executors["qwen_image"], request)
    expected = plain["qwen_image"]("a cat", generator=torch.Generator("cpu").manual_seed(4), **arguments).images
    assert len(output.images) == len(expected) == 2
    for made, image in zip(output.images, expected, strict=True):
        np.testing.assert_array_equal(made, np.asarray(image))
    assert not np.array_equal(*output.images)


@pytest.mark.parametrize("seed", [-1, 2**40, 2**64 - 1])
def test_every_seed_of_torch_is_taken(executors, plain, seed):
    made = make_image(executors["qwen_image"], DiffusionRequest("0", "a cat", seed=seed))
    np.testing.assert_array_equal(made, plain_image(plain["qwen_image"], "a cat", seed))


def test_a_prompt_is_noted_from_the_first_token_that_is_cut(executors, plain):
    executor = executors["stable_diffusion"]
    whole = executor.resolve(DiffusionRequest("0", "x " * 75))
    assert (whole.num_prompt_tokens, whole.notes) == ((77,), ())
    cut = executor.resolve(DiffusionRequest("0", "x " * 76, seed=3))
    assert cut.notes == ("`prompt` is truncated: it has 78 tokens, of which the text encoder reads 77",)
    (output,) = run(executor, cut)
    assert output.notes == (), "diffusers says it too"
    np.testing.assert_array_equal(output.images[0], plain_image(plain["stable_diffusion"], "x " * 76, 3))
    negative = executor.resolve(DiffusionRequest("0", "x", negative_prompt="x " * 76))
    assert negative.notes[0].startswith("`negative_prompt` is truncated: it has 78 tokens")


def test_the_limit_of_a_templated_prompt_is_where_the_embeddings_are_cut(executors, plain):
    """Counted here without the pipeline, and compared with what the pipeline encodes."""
    executor, pipeline = executors["qwen_image"], plain["qwen_image"]
    prompt = "a cat and a dog"
    whole, _ = pipeline.encode_prompt(prompt, max_sequence_length=1024)
    length = whole.shape[1]
    fitting = executor.resolve(DiffusionRequest("0", prompt, call={"max_sequence_length": length}))
    assert (fitting.num_prompt_tokens, fitting.notes) == ((length,), ())
    (note,) = executor.resolve(DiffusionRequest("0", prompt, call={"max_sequence_length": length - 1})).notes
    assert f"has {length} tokens, of which the text encoder reads {length - 1}" in note


def test_arguments_for_the_profiles_own_checkpoint_are_dropped_for_another(folders):
    """`tiny-image` sets Qwen-Image's `true_cfg_scale`; a user who names another checkpoint did not."""
    config = load_profile("tiny-image", model=str(folders["stable_diffusion"]))
    executor = start(folders["stable_diffusion"], config.stage("image"))
    assert executor.effective["dropped_arguments"] == ["true_cfg_scale"]
    assert executor.config.call == {}
    assert make_image(executor, DiffusionRequest("0", "a cat")).shape == (64, 64, 3)
    own = start(folders["qwen_image"], config.stage("image"))
    assert "dropped_arguments" not in own.effective
    assert own.config.call == {"true_cfg_scale": 1.0}
    given = load_profile("tiny-image", ["image.call.true_cfg_scale=2.0"], model=str(folders["stable_diffusion"]))
    with pytest.raises(UsageError, match="the pipeline's call has no argument `true_cfg_scale`"):
        start(folders["stable_diffusion"], given.stage("image"))


def test_keys_that_only_the_profiles_own_pipeline_takes_are_dropped_for_another(folders, tmp_path):
    profile = tmp_path / "own.yaml"
    profile.write_text(
        "version: 1\nname: own\nmodel: elsewhere\ndtype: float32\nstages:\n"
        "  image: {kind: diffusion, backend: diffusers, guidance_scale: 5.0, num_inference_steps: 2,\n"
        "          call: {eta: 0.5}}\n"
    )
    config = load_profile(str(profile), model=str(folders["qwen_image"]))
    executor = start(folders["qwen_image"], config.stage("image"))
    assert executor.effective["dropped_arguments"] == ["eta"]
    assert (executor.config.guidance_scale, executor.config.num_inference_steps) == (5.0, 2)
    given = load_profile(str(profile), ["image.call.eta=1.0"], model=str(folders["qwen_image"]))
    with pytest.raises(UsageError, match="no argument `eta`"):
        start(folders["qwen_image"], given.stage("image"))


def test_a_failure_that_names_an_option_of_diffusers_names_ours(folders):
    config = load_profile("tiny-image").stage("image")
    advice = RuntimeError("the model does not fit: call `pipe.enable_model_cpu_offload()`")
    error = describe_failure(advice, config, [DiffusionRequest("0", "a cat", height=64, width=64)])
    assert error.message == "stage `image`: the pipeline does not fit on the device"
    assert error.hint == (
        "`--set image.offload=model` or `--set image.devices='1'` or `--set image.max_num_seqs=1` or "
        "`--set dtype=bfloat16`"
    )
    full = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has")
    error = describe_failure(full, config, [DiffusionRequest("0", "a cat", height=64, width=64)])
    assert error.message == "stage `image`: not enough memory for an image of 64x64"
    assert error.hint.startswith(
        "use a smaller `height` and `width`, or `--set image.offload=group` or `--set image.offload=model`, or "
        "`--set image.devices='1'`"
    )


def test_values_come_from_the_request_then_the_stage_then_the_pipeline(folders):
    stage = DiffusionStageConfig.create(
        name="image", height=32, negative_prompt="blurry", call={"eta": 0.5, "clip_skip": 1}
    )
    executor = start(folders["stable_diffusion"], stage)
    resolved = executor.resolve(DiffusionRequest("0", "a cat", call={"eta": 0.0}))
    assert (resolved.height, resolved.width) == (32, None), "the pipeline's own width is left to its call"
    assert resolved.num_inference_steps == 50
    assert resolved.negative_prompt == "blurry"
    assert resolved.call == {"eta": 0.0, "clip_skip": 1}
    executor.shutdown()


def test_a_failure_after_the_first_step_is_that_request_s_error(executors, plain, monkeypatch):
    executor = executors["stable_diffusion"]

    def broken(*_arguments, **_named):
        raise RuntimeError("broken")

    with monkeypatch.context() as patch:
        patch.setattr(executor.pipeline.vae, "decode", broken)
        (output,) = run(executor, DiffusionRequest("bad", "a cat"))
    error = output.error
    assert isinstance(error, StageError) and error.request_id == "bad" and error.stage == "image"
    assert "Traceback" in error.details and "Traceback" not in error.message
    np.testing.assert_array_equal(
        make_image(executor, DiffusionRequest("good", "a cat", seed=1)),
        plain_image(plain["stable_diffusion"], "a cat", 1),
    )
    executor.check_health()


def test_an_invalid_image_is_refused(executors):
    """One step divides by zero in this schedule; the plain call gives a black image and a warning."""
    (output,) = run(executors["qwen_image"], DiffusionRequest("0", "a cat", num_inference_steps=1))
    assert isinstance(output.error, InputError) and not output.images
    assert "NaN or infinite" in output.error.message and "`num_inference_steps`" in output.error.hint


# --- Loading ---


def break_checkpoint(folder: Path, how: str) -> None:
    index = folder / "model_index.json"
    content = json.loads(index.read_text())
    weights = folder / "transformer" / "diffusion_pytorch_model.safetensors"
    match how:
        case "no index":
            index.unlink()
        case "broken index":
            index.write_text("{")
        case "no class":
            index.write_text(json.dumps({"vae": content["vae"]}))
        case "unknown class":
            index.write_text(json.dumps({**content, "_class_name": "QwenImagePipelin"}))
        case "other task":
            index.write_text(json.dumps({**content, "_class_name": "LLaDA2Pipeline"}))
        case "own code":
            index.write_text(json.dumps({**content, "_class_name": ["pipeline", "Mine"]}))
        case "no part":
            shutil.rmtree(folder / "vae")
        case "cut weights":
            weights.write_bytes(weights.read_bytes()[:1000])
        case "no weights":
            weights.unlink()
        case "a weight less" | "a weight less in the text encoder":
            part = "text_encoder/model" if "text" in how else "transformer/diffusion_pytorch_model"
            tensors = load_file(folder / f"{part}.safetensors")
            tensors.pop(next(name for name in sorted(tensors) if "0" in name))
            save_file(tensors, folder / f"{part}.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("no index", "has no model_index.json"),
        ("broken index", "model_index.json` is not valid JSON"),
        ("no class", "names no pipeline class"),
        ("unknown class", "no class `QwenImagePipelin`"),
        ("other task", "LLaDA2Pipeline cannot run: it makes text"),
        ("own code", "brings its own pipeline code"),
        ("no part", "not complete: no folder `vae`"),
        ("cut weights", "cannot load a pipeline from"),
        ("no weights", "cannot load a pipeline from"),
        ("a weight less", "transformer` lacks 1 of its weights: transformer_blocks.0"),
        ("a weight less in the text encoder", "text_encoder` lacks 1 of its weights: model."),
    ],
)
def test_a_broken_checkpoint_is_one_clear_error(folders, tmp_path, how, message):
    folder = tmp_path / "checkpoint"
    shutil.copytree(folders["qwen_image"], folder)
    break_checkpoint(folder, how)
    with pytest.raises(CheckpointError) as caught:
        start(folder)
    assert message in caught.value.message
    assert "\n" not in caught.value.message


def test_a_missing_folder_is_not_looked_for_on_the_hub(tmp_path):
    with pytest.raises(CheckpointError, match="no such folder"):
        start(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        (
            {"tensor_parallel_size": 2},
            StageError,
            "`tensor_parallel_size` has no effect.*: a pipeline's layers stay whole",
        ),
        ({"pipeline_parallel_size": 2}, StageError, "`pipeline_parallel_size` has no effect"),
        ({"max_payload_items": 8}, StageError, "`max_payload_items` has no effect"),
        ({"call": {"true_cfg_scal": 1.0}}, UsageError, "stage `image`: the pipeline's call has no argument"),
        ({"call": {"true_cfg_scale": "high"}}, UsageError, "stage `image`: `true_cfg_scale` must be a finite number"),
    ],
)
def test_stage_settings_that_cannot_be_kept_are_refused_at_load(folders, changes, error, message):
    with pytest.raises(error, match=message) as caught:
        start(folders["qwen_image"], DiffusionStageConfig.create("image", **changes))
    assert caught.value.hint or "must be" in message


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has what the test says that it lacks")
def test_cudagraph_without_a_device_is_refused_before_anything_is_loaded(tmp_path):
    with pytest.raises(StageError) as caught:
        start(tmp_path / "nowhere", DiffusionStageConfig.create("image", execution="cudagraph"))
    assert (
        caught.value.message == "stage `image`: `execution: cudagraph` needs a CUDA device, and this machine has none"
    )
    assert caught.value.hint == "--set image.execution=eager"


@pytest.mark.slow
def test_compiled_blocks_run_and_make_nearly_the_same_image(folders, plain):
    stage = DiffusionStageConfig.create(
        name="image", num_inference_steps=STEPS, height=64, width=64, execution="compile"
    )
    executor = start(folders["qwen_image"], stage)
    assert executor.effective["execution"] == "compile"
    assert (executor.execution_counters["compiled_regions"], executor.execution_counters["compiled_graphs"]) == (2, 0)
    executor.compile_or_warm_up_model()
    warm = executor.execution_counters
    assert warm["compiled_graphs"] >= 1 and warm["compile_s"] > 0, "asked for is not yet done"
    made = make_image(executor, DiffusionRequest("0", "warm-up", seed=3))
    assert np.abs(made.astype(int) - plain_image(plain["qwen_image"], "warm-up", 3)).max() <= 1
    make_image(executor, DiffusionRequest("1", "a longer text", seed=3, height=32, width=96))
    np.testing.assert_array_equal(make_image(executor, DiffusionRequest("2", "warm-up", seed=3)), made)
    assert executor.execution_counters == warm, "no size and no length of a text compiles anything more"
    executor.shutdown()


@pytest.mark.parametrize("is_faster", [True, False])
def test_an_attention_backend_that_is_tried_stays_only_if_it_is_faster(folders, monkeypatch, is_faster):
    others = _AttentionBackendRegistry.get_active_backend()
    monkeypatch.setattr(execution, "widest_execution", lambda config, device: "compile")
    monkeypatch.setattr(execution, "faster_attention", lambda config, device: "_native_math")
    durations = iter([4.0, 3.0, 2.0, 2.0, 1.0 if is_faster else 3.0])
    monkeypatch.setattr(execution, "_time_of_call", lambda executor: CallTime(total := next(durations), total))
    executor = start(folders["qwen_image"])
    assert executor.effective["attention_backend"] == "native"
    executor.compile_or_warm_up_model()
    assert executor.effective["execution"] == "compile"
    assert executor.effective["attention_backend"] == ("_native_math" if is_faster else "native")
    if not is_faster:
        assert _AttentionBackendRegistry.get_active_backend() == others, "that of every other model of the process"
    use_attention(executor.pipeline, None)
    assert _AttentionBackendRegistry.get_active_backend() == others
    executor.shutdown()


@pytest.mark.parametrize("backend", ["eager", "broken"])
def test_a_mode_that_the_stage_leaves_open_is_chosen_by_measured_calls(folders, plain, monkeypatch, backend):
    def compiler(graph, inputs):
        raise RuntimeError("no compiler")

    # As on a GPU, but without the time of a C++ compiler.
    monkeypatch.setattr(execution, "widest_execution", lambda config, device: "compile")
    how = compiler if backend == "broken" else backend
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend=how))
    torch.compiler.reset()
    executor = start(folders["qwen_image"])
    executor.compile_or_warm_up_model()
    effective = executor.effective
    if backend == "broken":
        assert effective["execution"] == "eager"
        assert "`compile` failed in a warm-up call: " in effective["execution_reason"]
        assert "cannot compile QwenImageTransformer2DModel" in effective["execution_reason"]
    else:
        assert effective["execution"] in ("eager", "compile")
        assert effective["execution_reason"].startswith("a compiled call takes ")
    before = executor.execution_counters["eager_calls"]
    made = make_image(executor, DiffusionRequest("0", "a cat", seed=3))
    assert np.abs(made.astype(int) - plain_image(plain["qwen_image"], "a cat", 3)).max() <= 1
    eager_calls = executor.execution_counters["eager_calls"] - before
    assert eager_calls == (STEPS if effective["execution"] == "eager" else 0)
    executor.shutdown()


def test_a_mode_on_a_cpu_is_eager_without_a_measurement(executors):
    effective = executors["qwen_image"].effective
    assert effective["execution"] == "eager" and "execution_reason" not in effective


def test_eager_calls_and_copies_are_counted_and_a_cpu_copies_nothing(folders):
    stage = DiffusionStageConfig.create(
        name="image", num_inference_steps=STEPS, height=64, width=64, output_copy="async"
    )
    executor = start(folders["qwen_image"], stage)
    make_image(executor, DiffusionRequest("0", "a cat"))
    counters = executor.execution_counters
    assert (counters["eager_calls"], counters["graph_replays"], counters["copies"]) == (
        STEPS,
        0,
        0,
    )
    assert executor.effective["execution"] == "eager" and executor.effective["output_copy"] == "sync"
    executor.shutdown()


# --- Life cycle ---


@pytest.mark.parametrize("level", [1, 2])
def test_sleep_refuses_requests_until_wake_up(folders, plain, level):
    executor = start(folders["qwen_image"])
    request = executor.resolve(DiffusionRequest("0", "a cat", seed=9))
    transformer = weakref.ref(executor.pipeline.transformer)
    executor.sleep(level)
    assert executor.is_sleeping
    executor.check_health()
    for refused in (lambda: run(executor, request), lambda: executor.resolve(request)):
        with pytest.raises(StageError, match="asleep"):
            refused()
    assert (transformer() is None) == (level == 2), "level 2 drops the weights"
    executor.wake_up(["kv_cache"])
    assert executor.is_sleeping, "there is no KV cache, so nothing wakes"
    executor.wake_up(["weights"])
    assert not executor.is_sleeping
    np.testing.assert_array_equal(make_image(executor, request), plain_image(plain["qwen_image"], "a cat", 9))
    executor.shutdown()


def test_a_pipeline_from_elsewhere_is_used_and_made_again_after_level_2(folders, plain):
    made = []

    def make_pipeline() -> DiffusionPipeline:
        made.append(DiffusionPipeline.from_pretrained(folders["qwen_image"]))
        made[-1].set_progress_bar_config(disable=True)
        return made[-1]

    executor = DiffusersPipelineExecutor(STAGE, "no such model", "float32", "cpu", make_pipeline=make_pipeline)
    assert executor.pipeline is made[0]
    executor.sleep(2)
    executor.wake_up()
    assert executor.pipeline is made[1]
    request = DiffusionRequest("0", "a cat", seed=9)
    np.testing.assert_array_equal(make_image(executor, request), plain_image(plain["qwen_image"], "a cat", 9))
    executor.shutdown()


def test_bad_levels_and_tags_are_usage_errors(executors):
    with pytest.raises(UsageError, match="sleep level"):
        executors["qwen_image"].sleep(3)
    with pytest.raises(UsageError, match="unknown tags: weight"):
        executors["qwen_image"].wake_up(["weight"])


def test_weights_that_cannot_come_back_are_a_permanent_failure(folders, tmp_path):
    folder = tmp_path / "checkpoint"
    shutil.copytree(folders["qwen_image"], folder)
    executor = start(folder)
    executor.sleep(2)
    shutil.rmtree(folder)
    with pytest.raises(CheckpointError):
        executor.wake_up()
    with pytest.raises(StageError, match="has failed: its weights could not be put back"):
        executor.check_health()
    executor.shutdown()


def test_nothing_is_left_after_shutdown(folders):
    threads = set(threading.enumerate())
    executor = start(folders["qwen_image"])
    make_image(executor, DiffusionRequest("0", "a cat"))
    pipeline = executor.pipeline
    left = [weakref.ref(part) for part in (pipeline.transformer, pipeline.vae, pipeline.text_encoder)]
    del pipeline
    executor.shutdown()
    assert [ref() for ref in left] == [None] * 3
    assert set(threading.enumerate()) == threads
    assert executor.effective == {}
    executor.shutdown()
    with pytest.raises(StageError, match="was shut down"):
        run(executor, DiffusionRequest("0", "a cat"))
    with pytest.raises(StageError, match="was shut down"):
        executor.check_health()


def test_an_error_does_not_keep_the_call_s_tensors(executors):
    """A failed request's error may live long, in a result or a log, but must not keep the latents of its call."""
    bad = DiffusionRequest("bad", "a cat", call={"timesteps": [5, 9]})
    (output,) = run(executors["stable_diffusion"], bad)
    assert isinstance(output.error, OmniError)
    frames, trace = [], output.error.__cause__ and output.error.__cause__.__traceback__
    while trace is not None:
        frames.append(trace.tb_frame)
        trace = trace.tb_next
    gc.collect()
    assert not any(isinstance(v, torch.Tensor) for frame in frames for v in frame.f_locals.values())


def test_shutdown_from_another_thread_ends_the_running_batch_at_its_next_step(folders):
    executor, steps = start(folders["stable_diffusion"]), []
    reached = threading.Event()
    closer = threading.Thread(target=lambda: (reached.wait(10), executor.shutdown()))
    closer.start()

    def on_step(name, done, total):
        steps.append(name)
        reached.set()
        while not executor._closing.is_set():
            time.sleep(0.001)

    outputs = run(executor, DiffusionRequest("0", "a cat"), DiffusionRequest("1", "a cat"), on_step=on_step)
    closer.join(10)
    assert not closer.is_alive() and steps == ["0"]
    assert [output.finish_reason for output in outputs] == ["abort", "abort"]


def test_it_runs_where_vllm_cannot_be_imported(folders):
    code = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name == "vllm" or name.startswith("vllm."):
            raise ImportError(f"{name} is blocked")

sys.meta_path.insert(0, Blocker())
from omni_cli.core.compat.libraries import prepare_libraries

prepare_libraries()
from omni_cli.config.schema import DiffusionStageConfig
from omni_cli.backends.diffusers.messages import describe_failure  # noqa: E402
from omni_cli.backends.diffusers.executor import DiffusersPipelineExecutor
from omni_cli.backends.diffusers.requests import DiffusionRequest

stage = DiffusionStageConfig.create("image", num_inference_steps=2, height=64, width=64)
executor = DiffusersPipelineExecutor(stage, sys.argv[1], "float32", "cpu")
(output,) = executor.execute_model((DiffusionRequest("0", "a cat"),))
executor.shutdown()
print(output.images[0].shape, any(name.startswith("vllm") for name in sys.modules))
"""
    command = [sys.executable, "-c", code, str(folders["qwen_image"])]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "(64, 64, 3) False"
    assert "it/s" not in done.stderr, "no progress bar of any library"


@pytest.mark.nightly
def test_a_single_step_that_a_schedule_cannot_make_is_the_requests_fault(folders):
    executor = start(folders["qwen_image"], DiffusionStageConfig.create("image"))
    try:
        request = DiffusionRequest("a", "a boat", num_inference_steps=1)
        (output,) = executor.execute_model((request,))
        assert isinstance(output.error, InputError) and "more than one step" in output.error.message
    finally:
        executor.shutdown()
