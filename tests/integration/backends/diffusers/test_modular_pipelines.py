"""Modular pipelines: their documentation against their blocks, steps, refusals, and a command."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import diffusers
import numpy as np
import PIL.Image
import pytest
import soundfile
import torch
from diffusers.modular_pipelines import minimax_h3
from support.in_process import run_here
from support.omni_process import run_omni
from support.omni_server import IMAGES, OmniServer
from support.stage_specs import get_spec, step_outputs
from support.tiny_pipelines import build_named, declarations
from support.tiny_pipelines.build import build
from support.tiny_pipelines.check import SEED

from omni_cli.backends.diffusers.loading import load_pipeline
from omni_cli.backends.diffusers.stage import DiffusersStage
from omni_cli.config.loader import load_profile
from omni_cli.config.schema import DiffusionStageConfig
from omni_cli.core.errors import CheckpointError, InputError
from omni_cli.models.diffusers_pipeline.reference import get_arrays
from omni_cli.requests.contents import Media
from omni_cli.requests.outputs import AudioOutput, GenerateRequest
from omni_cli.requests.request_spec import RequestSpec, build_request
from omni_cli.requests.video_encoding import encode_video
from omni_cli.stage.messages import Progress, RequestDone

STAGE = DiffusionStageConfig.create("image", num_inference_steps=3, height=32, width=32)
Z_IMAGE = "ZImageModularPipeline"
TONE = np.sin(np.arange(40000) * 0.1).astype(np.float32)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("modular") / "z-image"
    build_named(Z_IMAGE, made)
    return made


def test_steps_are_reported_and_an_interrupted_request_ends_at_one(folder):
    reports: list[object] = []
    stage = DiffusersStage(get_spec(STAGE, str(folder)), reports.append)

    def interrupt(report: object) -> None:
        reports.append(report)
        stage.interrupt("1")

    stage.add(GenerateRequest("0", prompt="a red cat"))
    (done,) = stage.step()
    assert isinstance(done, RequestDone)
    steps = [(report.done, report.total) for report in reports if isinstance(report, Progress)]
    assert steps == [(1, 3), (2, 3), (3, 3)]
    reports.clear()
    stage.emit = interrupt
    stage.add(GenerateRequest("1", prompt="a red cat"))
    assert stage.step() == [] and len(reports) == 1
    stage.close()


def test_inputs_that_the_chosen_blocks_ignore_are_noted(folder):
    emitted: list[object] = []
    stage = DiffusersStage(get_spec(STAGE, str(folder)), emitted.append)
    changed = {"strength": 0.5, "num_inference_steps": 4}
    grey = np.full((32, 32, 3), 128, np.uint8)
    stage.add(GenerateRequest("0", prompt="a red cat", diffusion=changed))
    stage.add(GenerateRequest("1", prompt="a red cat", media=Media(images=(grey,)), diffusion=changed))
    without, with_image = [report for _ in range(2) for report in step_outputs(stage, emitted)]
    assert isinstance(without, RequestDone) and "`strength` has no effect beside" in without.notes[0]
    assert isinstance(with_image, RequestDone) and with_image.notes == ()
    stage.close()


def test_guidance_goes_to_the_guider_for_one_call(tmp_path):
    build_named("WanModularPipeline", tmp_path)
    stage = DiffusersStage(get_spec(STAGE, str(tmp_path)), lambda report: None)
    own = stage.executor.pipeline.guider.guidance_scale
    made = []
    for scale in (None, own - 2.0, None):
        given = {"num_frames": 5} if scale is None else {"num_frames": 5, "guidance_scale": scale}
        request = GenerateRequest(str(len(made)), prompt="a red cat", diffusion=given)
        resolved = stage.executor.resolve(stage.diffusion_request(request))
        (output,) = stage.executor.execute_model((resolved,))
        assert output.error is None
        made.append(output.videos[0].numpy())
    assert stage.executor.pipeline.guider.guidance_scale == own
    assert np.array_equal(made[0], made[2]) and not np.array_equal(made[0], made[1])
    stage.close()


def test_guidance_is_refused_where_the_guider_is_off(folder):
    stage = DiffusersStage(get_spec(STAGE, str(folder)), lambda report: None)
    with pytest.raises(InputError, match="takes no `guidance_scale`"):
        stage.add(GenerateRequest("0", prompt="a red cat", diffusion={"guidance_scale": 4.0}))
    stage.close()


@pytest.mark.nightly
def test_omni_generate_runs_a_folder(folder, tmp_path):
    ended = run_omni(tmp_path, "generate", *_options(folder, tmp_path))
    assert ended.code == 0, ended.err
    ((image,),) = (json.loads(ended.out)["results"][0]["outputs"],)
    assert (image["type"], image["width"], image["height"]) == ("image", 32, 32)


@pytest.mark.nightly
def test_omni_bench_measures_a_folder(folder, tmp_path):
    line = {"prompt": "a red cat", "height": 32, "width": 32, "num_inference_steps": 2}
    (tmp_path / "requests.jsonl").write_text(json.dumps(line))
    runs = ("--num-iters", "2", "--num-iters-warmup", "1", "--json")
    ended = run_omni(tmp_path, "bench", "requests.jsonl", "--model", str(folder), *runs)
    assert ended.code == 0, ended.err
    (variant,) = json.loads(ended.out)["variants"]
    assert [sample["work"]["denoise_steps"] for sample in variant["samples"]] == [2, 2]


@pytest.mark.nightly
def test_omni_serve_serves_a_folder(folder, tmp_path):
    server = OmniServer(tmp_path, "--model", str(folder))
    answer = server.request("POST", IMAGES, {"prompt": "a red cat", "size": "32x32", "num_inference_steps": 2})
    assert answer.status == 200 and answer.document["data"][0]["b64_json"]
    assert server.stop().code == 0


@pytest.mark.nightly
def test_references_of_all_media_are_those_of_the_plain_call(tmp_path):
    declared = declarations()["MiniMaxH3ModularPipeline"]
    small = {"reference_image_short_edge": 32, "canvas_short_edge": 32, "canvas_max_pixels": 4096}
    parts = {"text_encoder": declared.parts["text_encoder"]}
    build(replace(declared, parts=parts, prepare=lambda made: made.register_to_config(**small)), tmp_path / "model")
    files = _references(tmp_path)
    options = {name: value for name, value in declared.call.items() if name != "prompt"}
    request = GenerateRequest("0", "a red cat", seed=SEED, diffusion=options)
    spec = RequestSpec(request, call_files={"references": files}, has_seed=True)
    request = build_request(spec, load_profile("tiny-video"))
    image, video, voice = request.media.call_files["references"]
    assert not request.notes
    # AAC, which starts where the frames do.
    assert np.abs(video.sound.array[:40000, 0] - TONE).mean() < 0.05
    references = [
        minimax_h3.MiniMaxH3ImageReference(PIL.Image.fromarray(image.array)),
        minimax_h3.MiniMaxH3VideoReference(video.array, 24.0, torch.from_numpy(video.sound.array.T.copy()), 32000),
        minimax_h3.MiniMaxH3AudioReference(torch.from_numpy(voice.array)[None], 32000),
    ]
    plain = diffusers.ModularPipeline.from_pretrained(tmp_path / "model")
    plain.load_components()
    generator = torch.Generator("cpu").manual_seed(SEED)
    expected = plain(**declared.call, references=references, generator=generator, output=["videos", "audio"])

    stage = DiffusersStage(get_spec(STAGE, str(tmp_path / "model")), lambda report: None)
    resolved = stage.executor.resolve(stage.diffusion_request(request))
    (output,) = stage.executor.execute_model((resolved,))
    assert output.error is None
    for made, plainly in zip((output.videos[0].numpy(), *output.sounds), get_arrays(expected), strict=True):
        np.testing.assert_array_equal(made, plainly)
    stage.close()


def _references(folder: Path) -> tuple[Path, ...]:
    """Files of an image, a video with sound and a voice."""
    noise = np.random.default_rng(0)
    frames = noise.integers(0, 255, (30, 32, 32, 3), np.uint8)
    image, video, voice = (folder / name for name in ("subject.png", "motion.mp4", "voice.wav"))
    PIL.Image.fromarray(frames[0]).save(image)
    sound = AudioOutput(np.stack([TONE, 0.5 * TONE], axis=1), 32000)
    video.write_bytes(encode_video(iter([list(frames)]), 30, Fraction(24), sound).content)
    soundfile.write(voice, noise.random(32000, np.float32) * 0.1, 32000, subtype="FLOAT")
    return image, video, voice


def test_omni_generate_refuses_a_mask_before_loading(folder, tmp_path):
    PIL.Image.new("L", (32, 32)).save(mask := tmp_path / "mask.png")
    refused = run_here(tmp_path, "generate", *_options(folder, tmp_path), "--mask", str(mask))
    assert refused.code == 2 and "mask" in refused.err
    assert not (tmp_path / "out").exists()


def _options(folder: Path, made: Path) -> tuple[str, ...]:
    size = ("--height", "32", "--width", "32", "--num-inference-steps", "2")
    return ("--model", str(folder), *size, "--output-dir", str(made / "out"), "--json", "a red cat")


def test_folders_that_cannot_be_loaded(folder, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    assert (
        load_pipeline(str(copy), "float32", STAGE).described_call.pipeline == Z_IMAGE
    )  # not those of the saved folder
    (copy / "modular_config.json").write_text(json.dumps({"auto_map": {"ModularPipelineBlocks": "block.Blocks"}}))
    with pytest.raises(CheckpointError, match="brings its own pipeline code"):
        load_pipeline(str(copy), "float32", STAGE)
    (copy / "modular_config.json").unlink()
    (copy / "tokenizer" / "tokenizer.json").write_text("{")
    with pytest.raises(CheckpointError, match="cannot load a pipeline"):
        load_pipeline(str(copy), "float32", STAGE)
