"""Requests that pipelines accept are accepted, and their changes are noted."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import DDIMInverseScheduler, DiffusionPipeline, StableDiffusionDiffEditPipeline
from diffusers.pipelines.ltx2.pipeline_ltx2_condition import LTX2VideoCondition
from PIL import Image
from support.request_fields import with_fields
from support.stage_specs import get_spec
from support.tiny_pipelines import build_named, declarations
from support.tiny_pipelines.check import SEED, call_named, stage_request

from omni_cli.backends.diffusers.stage import DiffusersStage
from omni_cli.config.schema import DiffusionStageConfig
from omni_cli.requests.contents import CallFile, Media, Video
from omni_cli.requests.outputs import GenerateRequest
from omni_cli.stage.messages import AddRequest, RequestDone, decode_command, encode

Run = Callable[..., RequestDone]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Run the call of a class's tiny checkpoint with other arguments, and with further fields of the request."""

    @functools.cache
    def folder(name: str) -> Path:
        build_named(name, made := tmp_path_factory.mktemp("models") / name)
        return made

    def run(name: str, changes: Mapping[str, Any] = {}, *, without: str = "", **fields: Any) -> RequestDone:
        call = {key: value for key, value in {**declarations()[name].call, **changes}.items() if key != without}
        request = with_fields(stage_request(call, call_named(name)), **fields)
        stage = DiffusersStage(get_spec(DiffusionStageConfig.create("image"), str(folder(name))), lambda report: None)
        sent = decode_command(encode(AddRequest(request)))
        assert isinstance(sent, AddRequest)
        stage.add(sent.request)
        (done,) = stage.step()
        stage.close()
        assert isinstance(done, RequestDone), done
        return done

    run.folder = folder  # type: ignore[attr-defined]
    return run


def noise(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, shape, np.uint8)


@pytest.mark.parametrize(
    ("name", "changes", "notes"),
    [
        ("CogVideoXPipeline", {"num_frames": 5}, ["the video has 8 frames, not 5 as requested"]),
        ("CogVideoXPipeline", {"num_frames": 8}, []),
        ("CogVideoXImageToVideoPipeline", {"num_frames": 6}, ["the video has 8 frames, not 6 as requested"]),
        ("ConsisIDPipeline", {"num_frames": 7}, ["the video has 8 frames, not 7 as requested"]),
        (
            "WanPipeline",
            {"num_frames": 6},
            [
                "diffusers: `num_frames - 1` has to be divisible by 4. Rounding to the nearest number.",
                "the video has 5 frames, not 6 as requested",
            ],
        ),
        (
            "JoyImageEditPipeline",
            {"height": 40, "width": 72},
            ["the image has 1344x768 pixels, not 72x40 as requested"],
        ),
        ("SanaPipeline", {"complex_human_instruction": None}, []),
        (
            "MochiPipeline",
            {},
            ["MochiPipeline does not say its frame rate: the video has 10 frames per second; `fps` sets another"],
        ),
    ],
)
def test_sizes_and_numbers_of_frames_that_come_out_otherwise(
    run: Run, name: str, changes: dict[str, Any], notes: list[str]
) -> None:
    assert list(run(name, changes).notes) == notes


def test_a_length_that_comes_out_otherwise(run: Run) -> None:
    done = run("CogVideoXPipeline", {"duration": 0.5, "fps": "10"}, without="num_frames")
    assert done.notes == ("the video is 0.8 s long, not 0.5 s as requested",)


def test_a_mask_of_another_size_than_the_image(run: Run) -> None:
    done = run("KandinskyInpaintPipeline", mask=noise(20, 30, 3))
    assert [image.shape for image in done.images] == [(32, 32, 3)] and done.notes == ()


def test_a_mask_for_each_frame(run: Run) -> None:
    mask = CallFile("video", noise(5, 32, 32, 3))
    assert run("WanVACEPipeline", without="mask", call_files={"mask": mask}).videos[0].num_frames == 5


def test_several_tensors_where_the_annotation_has_one(run: Run) -> None:
    layers = [CallFile("tensor", np.zeros((1, 4, 8), np.float32)) for _ in range(2)]
    assert run("ConsisIDPipeline", {"num_frames": 8}, call_files={"id_vit_hidden": layers}).notes == ()


def test_the_strength_of_diffedit_is_that_of_its_inpainting(tmp_path: Path) -> None:
    build_named("StableDiffusionPipeline", tmp_path / "parts")
    parts = DiffusionPipeline.from_pretrained(tmp_path / "parts").components
    inverse = DDIMInverseScheduler.from_config(parts["scheduler"].config)
    parts = {name: part for name, part in parts.items() if name != "image_encoder"}
    edit = StableDiffusionDiffEditPipeline(**parts, inverse_scheduler=inverse, requires_safety_checker=False)
    edit.save_pretrained(tmp_path / "edit")
    config = DiffusionStageConfig.create("image", num_inference_steps=4)
    stage = DiffusersStage(get_spec(config, str(tmp_path / "edit")), lambda report: None)
    # The latents of two steps: half of four.
    latents = np.random.default_rng(0).standard_normal((1, 2, 4, 32, 32), np.float32)
    files = {"image_latents": CallFile("tensor", latents)}
    stage.add(
        GenerateRequest("0", "a cat", media=Media(mask=noise(32, 32, 3), call_files=files), diffusion={"strength": 0.5})
    )
    (done,) = stage.step()
    stage.close()
    assert isinstance(done, RequestDone) and done.notes == () and len(done.trace["denoise_step_s"]) == 2


@pytest.mark.parametrize("name", ["LTX2InContextPipeline", "LTX2HDRPipeline"])
def test_a_reference_of_ltx_2_is_a_video(run: Run, name: str) -> None:
    video = Video(noise(9, 64, 64, 3), 8.0, 9, tuple(range(9)))
    with_it, without = (run(name, videos=videos, wants_frames=True).videos[0].frames for videos in ((video,), ()))
    assert with_it is not None and without is not None and (with_it != without).any()


def test_conditions_of_ltx_2_are_those_of_the_plain_call(run: Run) -> None:
    name, image, clip = "LTX2ConditionPipeline", noise(64, 64, 3), noise(9, 64, 64, 3)
    plain = DiffusionPipeline.from_pretrained(run.folder(name))  # type: ignore[attr-defined]
    plain.set_progress_bar_config(disable=True)
    frames = [Image.fromarray(frame) for frame in clip]
    first = LTX2VideoCondition(frames=Image.fromarray(image), index=0, strength=0.5)
    for conditions, fields in (
        ([LTX2VideoCondition(frames=first.frames)], {"images": (image,)}),
        ([LTX2VideoCondition(frames=frames)], {"videos": (Video(clip, 8.0, 9, tuple(range(9))),)}),
        ([first], {"call_files": {"conditions": [{"frames": CallFile("image", image), "index": 0, "strength": 0.5}]}}),
    ):
        done = run(name, wants_frames=True, **fields)
        generator = torch.Generator("cpu").manual_seed(SEED)
        call = {**declarations()[name].call, "conditions": conditions, "output_type": "np"}
        torch.manual_seed(SEED)
        (expected,) = plain(**call, generator=generator).frames
        made = done.videos[0].frames
        assert made is not None
        np.testing.assert_array_equal(made, (expected * 255).round().astype(np.uint8))
