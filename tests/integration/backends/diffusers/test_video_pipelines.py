"""Video pipelines of diffusers against their plain calls, and the files that are made of their frames."""

from __future__ import annotations

import copy
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from diffusers import (
    DiffusionPipeline,
    FlowMatchEulerDiscreteScheduler,
    WanImageToVideoPipeline,
    WanPipeline,
    WanVideoToVideoPipeline,
)
from PIL import Image
from support.media_samples import clip, write_lossless
from support.request_fields import with_fields
from support.stage_specs import get_spec
from support.tiny_pipelines import build_named, declarations
from support.tiny_pipelines.build import build
from support.videos import psnr_db, read_video

from omni_cli.backends.diffusers.executor import DiffusersPipelineExecutor
from omni_cli.backends.diffusers.requests import DiffusionRequest
from omni_cli.backends.diffusers.scheduler_steps import scheduler_steps
from omni_cli.backends.diffusers.stage import DiffusersStage, get_media
from omni_cli.checkpoints.tiny_pipelines import video
from omni_cli.config.loader import load_profile
from omni_cli.config.schema import DiffusionStageConfig
from omni_cli.core.errors import InputError
from omni_cli.requests.contents import Media, Video
from omni_cli.requests.outputs import GenerateRequest
from omni_cli.requests.request_spec import RequestSpec, build_request
from omni_cli.stage.messages import Failure, RequestDone

STAGE = DiffusionStageConfig.create("video", num_inference_steps=2, height=32, width=48, guidance_scale=3.0)
SIZES = {"num_inference_steps": 2, "height": 32, "width": 48, "guidance_scale": 3.0}
PIPELINES = {
    pipeline.__name__: pipeline for pipeline in (WanPipeline, WanImageToVideoPipeline, WanVideoToVideoPipeline)
}
IMAGE = np.asarray(Image.effect_mandelbrot((48, 32), (-2, -1, 1, 1), 50).convert("RGB"))
VIDEO = np.stack([np.roll(IMAGE, 2 * index, axis=1) for index in range(9)])
MEDIA = {
    "WanPipeline": {},
    "WanImageToVideoPipeline": {"images": (IMAGE,)},
    "WanVideoToVideoPipeline": {"videos": (Video(VIDEO, 16.0, 9, tuple(range(9))),)},
}
ARGUMENTS = {
    "WanPipeline": {"num_frames": 9},
    "WanImageToVideoPipeline": {"num_frames": 5},
    "WanVideoToVideoPipeline": {"strength": 0.5, "num_inference_steps": 4},
}
PLAIN_MEDIA = {
    "WanPipeline": {},
    "WanImageToVideoPipeline": {"image": Image.fromarray(IMAGE)},
    "WanVideoToVideoPipeline": {"video": [Image.fromarray(frame) for frame in VIDEO]},
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("checkpoints")
    for name in PIPELINES:
        video(name).write(root / name, seed=0)
    return {name: root / name for name in PIPELINES}


@pytest.fixture(scope="module")
def stage(folders):
    stage = DiffusersStage(get_spec(STAGE, str(folders["WanPipeline"])), lambda report: None)
    yield stage
    stage.close()


def make(executor: DiffusersPipelineExecutor, arguments: dict, **media) -> np.ndarray:
    conditions = executor.call.media_arguments(get_media(GenerateRequest("0", media=Media(**media))))
    request = DiffusionRequest.from_arguments("0", "a red cat", 3, arguments, conditions)
    (output,) = executor.execute_model((request,))
    if output.error is not None:
        raise output.error
    return output.videos[0].numpy()


def one_report(stage: DiffusersStage, **fields):
    stage.add(with_fields(GenerateRequest("0", prompt="a red cat", seed=3), **fields))
    (report,) = stage.step()
    return report


@pytest.mark.parametrize("name", PIPELINES)
def test_frames_are_the_plain_call_s_bit_for_bit(folders, name):
    executor = DiffusersPipelineExecutor(STAGE, str(folders[name]), "float32", "cpu")
    made = make(executor, ARGUMENTS[name], **MEDIA[name])
    plain = DiffusionPipeline.from_pretrained(folders[name])
    plain.set_progress_bar_config(disable=True)
    given = {**SIZES, **ARGUMENTS[name], **PLAIN_MEDIA[name], "generator": torch.Generator("cpu").manual_seed(3)}
    (expected,) = plain(prompt="a red cat", output_type="np", **given).frames
    np.testing.assert_array_equal(made, (expected * 255).round().astype(np.uint8))
    assert made.shape[1:] == (32, 48, 3) and made.std() > 5, "a flat video would equal anything"
    assert np.abs(made[0].astype(int) - made[-1]).mean() > 2, "a still video hides the order of its frames"
    if MEDIA[name]:
        with pytest.raises(InputError, match="its pipeline rejects the request: "):
            make(executor, ARGUMENTS[name])
    executor.shutdown()


def test_the_file_has_the_frames_the_rate_and_a_preview(stage):
    done = one_report(stage, diffusion={"num_frames": 9, "fps": "24000/1001"}, wants_frames=True)
    assert isinstance(done, RequestDone)
    (video,) = done.videos
    frames = video.frames
    read = read_video(video.content)
    assert read.frames.shape == frames.shape == (9, 32, 48, 3)
    assert (video.num_frames, video.width, video.height) == (9, 48, 32)
    assert read.fps == video.fps == Fraction(24000, 1001)
    assert psnr_db(read.frames[0], frames[0]) > 40
    assert video.preview[8:12] == b"WEBP" and video.sound is None
    assert done.trace["encode_s"] > 0 and len(done.trace["denoise_step_s"]) == 2
    assert sum((done.trace["encode_s"], *done.trace["denoise_step_s"])) < done.trace["latency_s"]
    assert one_report(stage, diffusion={"num_frames": 9}).videos[0].frames is None


def test_without_a_rate_the_pipeline_s_documentation_decides(stage):
    assert one_report(stage, diffusion={"num_frames": 1}).videos[0].fps == 16


@pytest.mark.parametrize(
    ("diffusion", "message"),
    [
        ({"fps": "0"}, "must be above 0 and at most 1000"),
        ({"fps": "1e9"}, "must be above 0 and at most 1000"),
        ({"fps": "fast"}, "must be a number of frames per second"),
    ],
)
def test_what_a_pipeline_cannot_make_is_refused_before_it_runs(stage, diffusion, message):
    with pytest.raises(InputError, match=message):
        stage.add(GenerateRequest("0", prompt="a red cat", diffusion=diffusion))


def test_frames_that_are_no_numbers_fail_their_request_alone(stage, monkeypatch):
    decode = stage.executor.pipeline.vae.decode

    def broken(latents, return_dict=True):
        (decoded,) = decode(latents, return_dict=False)
        decoded[0, 0, -1, 0, 0] = float("nan")
        return (decoded,)

    with monkeypatch.context() as patch:
        patch.setattr(stage.executor.pipeline.vae, "decode", broken)
        failure = one_report(stage, diffusion={"num_frames": 5})
    assert isinstance(failure, Failure) and "NaN or infinite" in failure.message
    assert one_report(stage, diffusion={"num_frames": 5}).videos[0].num_frames == 5


def test_ltx_2_makes_sound_with_its_frames(tmp_path):
    build_named("LTX2Pipeline", tmp_path / "ltx2")
    settings = {"num_inference_steps": 2, "height": 96, "width": 128, "guidance_scale": 3.0}
    arguments = {"num_frames": 9, "spatio_temporal_guidance_blocks": [1]}
    stage = DiffusersStage(
        get_spec(DiffusionStageConfig.create("video", **settings), str(tmp_path / "ltx2")), lambda report: None
    )
    done = one_report(stage, diffusion={**arguments, "fps": "25"}, wants_frames=True)
    request = DiffusionRequest.from_arguments("1", "a red cat", 3, {**arguments, "fps": "25"})
    (output,) = stage.executor.execute_model((request,))
    stage.close()
    plain = DiffusionPipeline.from_pretrained(tmp_path / "ltx2")
    plain.set_progress_bar_config(disable=True)
    generator = torch.Generator("cpu").manual_seed(3)
    expected = plain("a red cat", frame_rate=25.0, output_type="np", generator=generator, **settings, **arguments)
    (video,) = done.videos
    frames = video.frames
    np.testing.assert_array_equal(frames, (expected.frames[0] * 255).round().astype(np.uint8))
    np.testing.assert_array_equal(output.videos[0].numpy(), frames)
    np.testing.assert_array_equal(output.sounds[0], expected.audio[0].T.numpy())
    assert output.sounds[0].std() > 0.01, "silence would equal anything"
    read = read_video(video.content)
    assert (read.fps, read.frames.shape, read.sample_rate) == (25, frames.shape, 16000)
    assert psnr_db(read.frames[0], frames[0]) > 40
    assert (video.sound.sample_rate, video.sound.num_samples) == (16000, len(output.sounds[0]))
    assert abs(read.sound_s - len(output.sounds[0]) / 16000) < 1 / 25
    assert read.samples.shape[0] == 2


def test_a_video_file_is_the_list_of_its_frames(tmp_path):
    """For arguments such as `control_video`, which `--video` is not for."""
    declared = declarations()["CogVideoXFunControlPipeline"]
    build(declared, tmp_path / "model")
    video = clip(1, num_frames=5)
    (tmp_path / "control.mkv").write_bytes(write_lossless(video))
    options = {name: value for name, value in declared.call.items() if name not in ("prompt", "control_video")}
    request = GenerateRequest("0", "a red cat", diffusion=options)
    spec = RequestSpec(request, call_files={"control_video": tmp_path / "control.mkv"})
    read = build_request(spec, load_profile("tiny-video"))
    assert not read.notes
    stage = DiffusersStage(get_spec(STAGE, str(tmp_path / "model")), lambda report: None)
    done = one_report(stage, diffusion=options, call_files=read.media.call_files, wants_frames=True)
    assert isinstance(done, RequestDone), done
    plain = DiffusionPipeline.from_pretrained(tmp_path / "model")
    plain.set_progress_bar_config(disable=True)
    call = {**SIZES, **options, "control_video": [Image.fromarray(frame) for frame in video.frames]}
    (expected,) = plain(
        prompt="a red cat", output_type="np", generator=torch.Generator("cpu").manual_seed(3), **call
    ).frames
    np.testing.assert_array_equal(done.videos[0].frames, (expected * 255).round().astype(np.uint8))
    stage.close()


@pytest.mark.parametrize(
    ("name", "num_frames", "noticed_by", "total"),
    [
        ("HeliosPipeline", 66, "callback_on_step_end", 4),  # two windows
        ("HunyuanVideo15Pipeline", 5, "scheduler", 2),
        ("HeliosModularPipeline", 66, "callback_on_step_end", 4),
    ],
)
def test_steps_are_counted_over_all_windows_and_without_a_callback(tmp_path, name, num_frames, noticed_by, total):
    build_named(name, tmp_path)
    config = DiffusionStageConfig.create("video", num_inference_steps=2, height=32, width=32)
    executor = DiffusersPipelineExecutor(config, str(tmp_path), "float32", "cpu")
    assert executor.effective["step_callback"] == noticed_by
    request = DiffusionRequest.from_arguments("0", "a red cat", 3, {"num_frames": num_frames})
    steps: list[tuple[int, int]] = []

    def on_step(_: str, done: int, total: int) -> None:
        steps.append((done, total))

    (output,) = executor.execute_model((request,), on_step=on_step)
    assert output.error is None and steps == [(done + 1, total) for done in range(total)]
    assert len(output.times.denoise_step_s) == total

    def interrupt(request_id: str, *_: int) -> None:
        executor.abort_requests([request_id])

    (output,) = executor.execute_model((request,), on_step=interrupt)
    assert output.finish_reason == "abort"
    executor.shutdown()


def test_the_copy_that_a_pipeline_makes_of_its_scheduler_has_steps_of_its_own():
    scheduler = FlowMatchEulerDiscreteScheduler()
    scheduler.set_timesteps(4)
    own, noted, sample = FlowMatchEulerDiscreteScheduler.step, [], torch.ones(1)
    with scheduler_steps(SimpleNamespace(scheduler=scheduler), lambda: noted.append(1)):
        copied = copy.deepcopy(scheduler)
        for made in (copied, copied, scheduler):
            made.step(sample, made.timesteps[made.step_index or 0], sample)
    assert (copied.step_index, scheduler.step_index, len(noted)) == (2, 1, 1)
    assert FlowMatchEulerDiscreteScheduler.step is own
