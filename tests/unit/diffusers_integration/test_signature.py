"""Needs of a pipeline's call, from the source of diffusers' own classes."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from omni_cli.diffusers_integration.call_checks import checked_value, settable
from omni_cli.diffusers_integration.packages import check_packages
from omni_cli.diffusers_integration.signature import signature_of
from omni_cli.errors import CheckpointError, InputError
from omni_cli.outputs import ArgumentText

pytestmark = pytest.mark.skipif(importlib.util.find_spec("diffusers") is None, reason="diffusers is not installed")

_WORDS = ("1", "[1]", "[1, 1]", "true", "{}", "x", "[[1]]", "@x.png", '["@x.png"]')
_PROMPT = ("prompt", "prompt_embeds")


@pytest.mark.parametrize(
    ("name", "needed"),
    [
        ("DDPMPipeline", ()),
        ("DiTPipeline", (("class_labels",),)),
        ("MarigoldDepthPipeline", (("image",),)),
        ("QwenImagePipeline", (_PROMPT,)),
        ("QwenImageLayeredPipeline", ()),
        ("ZImagePipeline", (_PROMPT,)),
        ("StableDiffusionInpaintPipeline", (("image",), ("mask_image",), _PROMPT)),
        ("StableDiffusionUpscalePipeline", (("image",), _PROMPT)),
        ("StableDiffusionAttendAndExcitePipeline", (("prompt",), ("token_indices",))),
        ("KandinskyPipeline", (("prompt",), ("image_embeds",), ("negative_image_embeds",))),
        (
            "LTX2DFRTemporalRefinePipeline",
            (("latents",), ("keyframes_latents",), ("keyframe_positions",), ("audio_latents",), _PROMPT),
        ),
    ],
)
def test_a_call_needs_what_its_signature_and_its_own_checks_say(name, needed):
    assert signature_of(name).needed == needed


@pytest.mark.parametrize(
    ("pipeline", "argument", "text", "value"),
    [
        ("QwenImagePipeline", "true_cfg_scale", "3", 3),
        ("QwenImagePipeline", "sigmas", "[1, 0.5]", [1, 0.5]),
        ("QwenImagePipeline", "sigmas", "null", None),
        ("StableDiffusionXLPipeline", "original_size", "[64, 64]", (64, 64)),
        ("StableDiffusionXLPipeline", "prompt_2", "3", "3"),
        ("StableDiffusionXLPipeline", "prompt_2", "@cat", "@cat"),
        ("StableDiffusionAttendAndExcitePipeline", "token_indices", "[2, 5]", [2, 5]),
        ("AudioLDMPipeline", "num_waveforms_per_prompt", "2", 2),
        ("DiTPipeline", "class_labels", "[207]", [207]),
    ],
)
def test_words_of_the_command_line_have_the_argument_s_type(pipeline, argument, text, value):
    assert checked_value(argument, ArgumentText(text), signature_of(pipeline)) == value


def test_files_of_an_argument_are_one_a_list_or_rows_with_gaps():
    a, b, c = Path("a.png"), Path("b.png"), Path("c.png")
    for pipeline, argument, text, value in (
        ("StableDiffusionPipeline", "ip_adapter_image", "@a.png", a),
        ("StableDiffusionPipeline", "ip_adapter_image", '["@a.png", "@b.png"]', (a, b)),
        ("VisualClozePipeline", "image", '[["@a.png", "@b.png"], ["@c.png", null]]', ((a, b), (c, None))),
        ("WanAnimatePipeline", "pose_video", "@a.png", (a,)),
        ("WanAnimatePipeline", "pose_video", "@clip.MKV", Path("clip.MKV")),
    ):
        assert checked_value(argument, ArgumentText(text), signature_of(pipeline)) == value
    for text in ('["@a.npy", "@b.npy"]', '["@a.npy", null]', '["@a.npy", "b.npy"]', '[[["@a.npy"]]]', "[[null]]"):
        with pytest.raises(InputError):
            checked_value("prompt_embeds", ArgumentText(text), signature_of("QwenImagePipeline"))


@pytest.mark.parametrize(
    ("pipeline", "argument", "text", "message"),
    [
        ("StableDiffusionPipeline", "ip_adapter_image", "@a.mp4", "must be an image file, not `a.mp4`"),
        ("WanAnimatePipeline", "pose_video", '["@a.mp4"]', "must be image files, or a video file, not `a.mp4`"),
        ("WanAnimatePipeline", "pose_video", "@a.flac", "must be image files, or a video file, not `a.flac`"),
    ],
)
def test_a_video_or_sound_where_none_is_taken(pipeline, argument, text, message):
    with pytest.raises(InputError, match=message):
        checked_value(argument, ArgumentText(text), signature_of(pipeline))


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
        ("guidance_scale", "3", "`guidance_scale` is set twice"),
        ("generator", "3", "`generator` cannot be set"),
        ("x" * 100_000, "3", "the pipeline's call has no argument `xxx"),
    ],
)
def test_a_wrong_argument_is_one_short_error(argument, text, message):
    with pytest.raises(InputError) as caught:
        checked_value(argument, ArgumentText(text), signature_of("QwenImagePipeline"))
    assert caught.value.message.startswith(message) and len(caught.value.message) < 200


def test_the_listed_arguments_are_those_that_can_be_set():
    for name in ("QwenImagePipeline", "StableDiffusionXLPipeline", "WanImageToVideoPipeline", "LTXConditionPipeline"):
        signature = signature_of(name)
        for argument in settable(signature):
            values = (
                ArgumentText(text)
                for text in ("1", "[1]", "[1, 1]", "true", "{}", "x", "[[1]]", "@x.png", '["@x.png"]')
            )
            assert any(_is_taken(argument, value, signature) for value in values), f"{name}: {argument}"


def _is_taken(argument, value, signature) -> bool:
    try:
        checked_value(argument, value, signature)
    except InputError:
        return False
    return True


def test_a_package_that_a_class_cannot_do_without_is_named(monkeypatch):
    check_packages(["StableDiffusionPipeline", "EulerDiscreteScheduler", "PixArtAlphaPipeline"])
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name in _ABSENT else find_spec(name))
    for name, package in (
        ("WanPipeline", "ftfy"),
        ("CosineDPMSolverMultistepScheduler", "torchsde"),
        ("LMSDiscreteScheduler", "scipy"),
        ("ConsisIDPipeline", "opencv-python"),
    ):
        with pytest.raises(CheckpointError, match=f"{name} needs the package `{package}`") as caught:
            check_packages([name])
        assert caught.value.hint == f"pip install {package}"
    # It asks whether ftfy is there, and does without.
    check_packages(["PixArtAlphaPipeline"])


find_spec = importlib.util.find_spec
_ABSENT = {"ftfy", "torchsde", "scipy", "cv2", "bs4"}


def test_tensors_that_are_not_yet_images_are_known():
    assert signature_of("PRXPixelPipeline").tensors_are_latents
    assert not signature_of("PRXPipeline").tensors_are_latents and not signature_of("DiTPipeline").tensors_are_latents
