"""Calls of diffusers' own classes, read from their signatures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.tiny_pipelines.check import call_named

from omni_cli.backends.diffusers.description import class_named, described_checkpoint
from omni_cli.core.errors import CheckpointError, InputError
from omni_cli.requests.checks import ArgumentText
from omni_cli.requests.pipeline_call import PipelineCall
from omni_cli.requests.value_types import describe_types

A, B, C = Path("a.png"), Path("b.png"), Path("c.png")


@pytest.mark.parametrize(
    ("name", "makes", "required"),
    [
        ("DDPMPipeline", "image", []),
        ("DiTPipeline", "image", ["class_labels"]),
        ("MarigoldDepthPipeline", "image", ["image"]),
        ("QwenImagePipeline", "image", []),
        ("StableDiffusionAttendAndExcitePipeline", "image", ["prompt", "token_indices"]),
        ("KandinskyV22PriorPipeline", "tensor", ["prompt"]),
        ("StableAudioPipeline", "audio", []),
        ("LTX2Pipeline", "video", []),
        ("LLaDA2Pipeline", None, []),
        ("ZImageModularPipeline", "image", []),
        ("MiniMaxMusic3ModularPipeline", "audio", []),
        ("LTX25ModularPipeline", "video", []),
    ],
)
def test_what_a_call_makes_and_requires(name: str, makes: str | None, required: list[str]) -> None:
    call = call_named(name)
    assert (call.makes, list(call.list_missing({}))) == (makes, required)


@pytest.mark.parametrize(
    ("name", "argument", "kind", "default"),
    [
        ("QwenImagePipeline", "sigmas", "list[float] | None", None),
        ("Cosmos3OmniPipeline", "condition_video_keep", "Literal['first', 'last']", "first"),
        (
            "HunyuanVideoFramepackPipeline",
            "sampling_type",
            "Literal['vanilla', 'inverted_anti_drifting']",
            "inverted_anti_drifting",
        ),
        ("LTX2InContextPipeline", "reference_conditions", "{frames, strength} | list[{frames, strength}] | None", None),
        # Of a block without a type: that of diffusers' template.
        ("Flux2KleinModularPipeline", "image", "image | list[image]", None),
        ("ZImageModularPipeline", "num_inference_steps", "int", 8),
        # Of a guider, which is a component.
        ("ZImageModularPipeline", "guidance_scale", "float | None", None),
    ],
)
def test_types_and_defaults(name: str, argument: str, kind: str, default: object) -> None:
    found = call_named(name).arguments[argument]
    assert (describe_types(found.types), found.default) == (kind, default)


def test_rates_and_tensors_that_are_not_yet_images() -> None:
    rates = {"WanPipeline": 16, "MochiPipeline": None, "WanModularPipeline": 16, "LTX25ModularPipeline": None}
    found = {name: call_named(name).example_fps for name in rates}
    assert found == rates
    assert call_named("PRXPixelPipeline").tensors_are_latents and not call_named("DiTPipeline").tensors_are_latents


@pytest.mark.parametrize(
    ("pipeline", "argument", "text", "value"),
    [
        ("QwenImagePipeline", "true_cfg_scale", "3", 3.0),
        ("QwenImagePipeline", "sigmas", "[1, 0.5]", [1.0, 0.5]),
        ("QwenImagePipeline", "sigmas", "null", None),
        ("QwenImagePipeline", "latents", "@a.npy", Path("a.npy")),
        ("QwenImagePipeline", "attention_kwargs", "{1: 0.5}", {1: 0.5}),
        ("StableDiffusionXLPipeline", "original_size", "[64, 64]", (64, 64)),
        ("StableDiffusionXLPipeline", "prompt_2", "3", "3"),
        ("StableDiffusionXLPipeline", "prompt_2", "@cat", "@cat"),
        ("StableDiffusionAttendAndExcitePipeline", "token_indices", "[2, 5]", [2, 5]),
        ("DiTPipeline", "class_labels", "[207]", [207]),
        ("StableDiffusionPipeline", "ip_adapter_image", "@a.png", A),
        ("StableDiffusionPipeline", "ip_adapter_image", '["@a.png", "@b.png"]', [A, B]),
        ("VisualClozePipeline", "image", '[["@a.png", "@b.png"], ["@c.png", null]]', [[A, B], [C, None]]),
        ("WanAnimatePipeline", "pose_video", "@a.png", [A]),
        ("WanAnimatePipeline", "pose_video", "@clip.MKV", Path("clip.MKV")),
        ("LTX2ConditionPipeline", "conditions", '[{"frames": "@a.png", "index": 8}]', [{"frames": A, "index": 8}]),
        # What the annotations do not say.
        ("ConsisIDPipeline", "id_vit_hidden", '["@a.npy", "@b.npy"]', [Path("a.npy"), Path("b.npy")]),
        ("SanaPipeline", "complex_human_instruction", "null", None),
        ("StableVideoDiffusionPipeline", "fps", "7.5", 7.5),
    ],
)
def test_words_of_the_command_line_have_the_argument_s_type(
    pipeline: str, argument: str, text: str, value: object
) -> None:
    found = call_named(pipeline).check_value(argument, ArgumentText(text))
    assert found == value and type(found) is type(value)


@pytest.mark.parametrize(
    ("argument", "text", "message"),
    [
        ("true_cfg_scale", "high", "`true_cfg_scale` must be a finite number, not high"),
        ("true_cfg_scale", "9" * 400, "`true_cfg_scale` must be a finite number, not 999"),
        ("true_cfg_scale", "NaN", "`true_cfg_scale` must be a finite number, not NaN"),
        ("true_cfg_scale", "[" * 20_000, "`true_cfg_scale` must be a finite number, not [[["),
        ("sigmas", '[1, "a"]', "`sigmas` must be `list[float]`"),
        ("num_images_per_prompt", "true", "`num_images_per_prompt` must be a whole number"),
        ("prompt_embeds", "x", "`prompt_embeds` must be a tensor: numbers, or a file"),
        ("prompt_embeds", "@a.wav", "`prompt_embeds` must be a tensor: numbers, or a file, not `a.wav`"),
        ("guidance_scale", "high", "`guidance_scale` must be a finite number, not high"),
        ("generator", "3", "`generator` cannot be set"),
        ("x" * 100_000, "3", "the pipeline's call has no argument `xxx"),
    ],
)
def test_a_wrong_argument_is_one_short_error(argument: str, text: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        call_named("QwenImagePipeline").check_value(argument, ArgumentText(text))
    assert caught.value.message.startswith(message) and len(caught.value.message) < 200


def test_the_listed_arguments_are_those_that_can_be_set() -> None:
    words = ("1", "[1]", "[1, 1]", "true", "{}", "x", "[[1]]", "@x.png", '["@x.png"]')
    for name in ("QwenImagePipeline", "StableDiffusionXLPipeline", "WanImageToVideoPipeline", "LTXConditionPipeline"):
        call = call_named(name)
        for argument in filter(call.is_listed, call.arguments):
            if call.get_field(argument) == "arg":
                assert any(_is_taken(call, argument, ArgumentText(text)) for text in words), f"{name}: {argument}"


def _is_taken(call: PipelineCall, argument: str, value: object) -> bool:
    try:
        call.check_value(argument, value)
    except InputError:
        return False
    return True


def test_fields_of_a_request_go_to_the_arguments_of_their_kind() -> None:
    for name, field, argument in (
        ("StableAudio3AudioToAudioPipeline", "audio", "audio"),
        ("AceStepPipeline", "audio", "src_audio"),
        ("WanPipeline", "audio", None),
        ("StableDiffusionControlNetPipeline", "control_image", "image"),
        ("StableDiffusionControlNetImg2ImgPipeline", "control_image", "control_image"),
        ("StableDiffusionPipeline", "control_image", None),
        ("StableDiffusionDiffEditPipeline", "strength", "inpaint_strength"),
        ("WanVACEPipeline", "mask", "mask"),
        ("LTX2ConditionPipeline", "image", "conditions"),
        ("LTX2HDRPipeline", "video", "reference_conditions"),
        ("LTXConditionPipeline", "video", "video"),
    ):
        assert call_named(name).argument_for(field) == argument, name


def test_an_argument_that_is_set_in_two_ways_is_an_error() -> None:
    for name, given, message in (
        ("StableDiffusionControlNetPipeline", {"image": A, "control_image": A}, "both set the argument `image`"),
        ("QwenImageInpaintPipeline", {"image": A, "arg": {"image": B}}, "`image` and `arg` both set the argument"),
        ("WanPipeline", {"num_frames": 5, "arg": {"num_frames": 9}}, "`num_frames` and `arg` both set"),
        ("WanPipeline", {"height": 64, "arg": {"height": 32}}, "`height` and `arg` both set"),
        ("QwenImagePipeline", {"prompt": "a", "arg": {"prompt": ["b"]}}, "`prompt` and `arg` both set"),
    ):
        with pytest.raises(InputError, match=message):
            call_named(name).check_set_once(given)
    call_named("LTX2ConditionPipeline").check_set_once({"image": (A,), "video": (Path("a.mp4"),)})


def test_a_package_that_a_class_cannot_do_without_is_named() -> None:
    with pytest.raises(CheckpointError, match="OnnxStableDiffusionPipeline needs the package `onnxruntime`") as caught:
        class_named("OnnxStableDiffusionPipeline")
    assert caught.value.hint == "pip install onnxruntime"
    with pytest.raises(CheckpointError, match="no class `QwenImagePipelin`") as caught:
        class_named("QwenImagePipelin")
    assert caught.value.hint == "did you mean `QwenImagePipeline`?"


def test_a_pipeline_that_makes_text_is_refused_with_the_reason() -> None:
    with pytest.raises(CheckpointError, match="LLaDA2Pipeline cannot run: it makes text"):
        call_named("LLaDA2Pipeline").check_runnable()
    for name in ("DDPMPipeline", "PaintByExamplePipeline", "KandinskyPipeline", "LTX2DFRTemporalRefinePipeline"):
        call_named(name).check_runnable()


def test_blocks_of_a_modular_checkpoint(tmp_path: Path) -> None:
    """Those that the index names, else the class's own; unknown where the checkpoint brings code."""
    index = {"_class_name": "WanModularPipeline", "_blocks_class_name": "WanImage2VideoAutoBlocks"}
    (tmp_path / "modular_model_index.json").write_text(json.dumps(index))
    assert described_checkpoint(tmp_path).argument_for("image") == "image"
    index["_blocks_class_name"] = "SequentialPipelineBlocks"
    (tmp_path / "modular_model_index.json").write_text(json.dumps(index))
    assert described_checkpoint(tmp_path).argument_for("image") is None
    (tmp_path / "modular_config.json").write_text(json.dumps({"auto_map": {"ModularPipelineBlocks": "block.Blocks"}}))
    found = described_checkpoint(tmp_path)
    assert found.pipeline is None and found.check_value("anything", ArgumentText("[1]")) == [1]
