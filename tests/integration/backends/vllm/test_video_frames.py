"""The frames of a video that a model sees, against vLLM's own loaders, which decode with OpenCV."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from support.ffmpeg import ffmpeg, write_moving
from vllm.multimodal import video as loaders
from vllm.multimodal.media import MediaConnector

from omni_cli.backends.vllm.prompts import choose_frames
from omni_cli.core.errors import InputError
from omni_cli.requests.contents import Video
from omni_cli.requests.media.reading import ChooseFrames, load_video

Choose = Callable[..., ChooseFrames]
X264 = ("-c:v", "libx264", "-pix_fmt", "yuv420p")
# Name, encoder, rate, seconds. Of MPEG-TS and of a varying rate in Matroska vLLM reads no frames, or miscounts them:
# OpenCV seeks in them badly.
CLIPS = {
    "short.mp4": (X264, "30", 2 / 3),
    "long.mp4": (X264, "30", 40),
    "film.mkv": (X264, "24000/1001", 12.5),
    "slow.mp4": (X264, "1", 7),
    "slower.mkv": (X264, "1/2", 20),
    "b-frames.avi": (("-c:v", "mpeg4", "-bf", "2"), "25", 3.2),
    "a.webm": (("-c:v", "libvpx"), "30", 3),
    "a.gif": ((), "10", 4),
    "fragments.mp4": ((*X264, "-movflags", "frag_keyframe+empty_moov"), "30", 2),
    "varying.mp4": (("-vf", "select='not(mod(n,5))+lt(n,20)'", "-fps_mode", "vfr", *X264), "25", 9),
}
PROCESSORS = ("Qwen2VLVideoProcessor", "Qwen3VLVideoProcessor", "Glm46VVideoProcessor", "Glm4vVideoProcessor", "None")
CHOICES: dict[str, dict[str, dict[str, float]]] = {
    "Qwen2VLVideoProcessor": {"fps": {"fps": 5}, "fewer": {"fps": 4, "max_frames": 6}},
    "Qwen3VLVideoProcessor": {"fps": {"fps": 0.5, "min_frames": 2}},
    "None": {"eight": {"num_frames": 8}, "all": {"num_frames": -1}, "fps": {"fps": 3, "num_frames": 40}},
}


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("clips")
    return {
        name: write_moving(folder / name, *codec, rate=rate, seconds=seconds)
        for name, (codec, rate, seconds) in CLIPS.items()
    }


@pytest.fixture
def choose(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Choose:
    monkeypatch.setattr(loaders, "decode_video", loaders.decode_video)  # undone after the test

    def of(processor: str, options: dict[str, float] | None = None) -> ChooseFrames:
        (tmp_path / "config.json").write_text('{"model_type": "llama", "architectures": ["LlamaForCausalLM"]}')
        (tmp_path / "preprocessor_config.json").write_text(json.dumps({"video_processor_type": processor}))
        safetensors.torch.save_file({"weight": torch.zeros(1)}, tmp_path / "model.safetensors")
        return functools.partial(choose_frames, str(tmp_path), options=options or {})

    return of


def theirs(path: Path, processor: str, options: dict[str, float]) -> tuple[np.ndarray, dict[str, Any]]:
    connector = MediaConnector({"video": options}, allowed_local_media_path=str(path.parent))
    return connector.fetch_video(path.as_uri(), video_processor=processor).media


def check(video: Video, frames: np.ndarray, metadata: dict[str, Any]) -> None:
    assert len(video.frames) == len(frames)
    assert list(video.frames_indices) == metadata["frames_indices"]
    assert (video.total_num_frames, video.fps) == (metadata["total_num_frames"], metadata["fps"])
    assert video.do_sample_frames is metadata["do_sample_frames"]
    # OpenCV converts colours in another way.
    assert np.abs(video.frames.astype(int) - frames).mean() < 3


@pytest.mark.parametrize("processor", PROCESSORS)
def test_they_are_vllms(processor: str, clips: dict[str, Path], choose: Choose) -> None:
    options = [{}, *CHOICES.get(processor, {}).values()]
    expected = [(path, each, theirs(path, processor, each)) for path in clips.values() for each in options]
    for path, each, (frames, metadata) in expected:
        notes: list[str] = []
        check(load_video(path, notes.append, choose(processor, each)), frames, metadata)
        assert f"the model sees {len(frames)} frame{'s' * (len(frames) > 1)} of the video file `{path}`" in notes[-1]


def test_a_live_recording_has_no_length_for_opencv(clips: dict[str, Path], choose: Choose) -> None:
    path = clips["a.webm"].with_name("live.webm")
    ffmpeg("-i", clips["a.webm"], "-c", "copy", "-live", "1", path)
    whole, live = (
        load_video(each, list[str]().append, choose("Qwen2VLVideoProcessor")) for each in (clips["a.webm"], path)
    )
    assert live.frames_indices == whole.frames_indices and len(live.frames) == 6


@pytest.mark.parametrize(("processor", "seconds"), [("Qwen2VLVideoProcessor", 0.04), ("Glm46VVideoProcessor", 0.08)])
def test_a_video_that_vllm_cannot_read(tmp_path: Path, choose: Choose, processor: str, seconds: float) -> None:
    """Of one frame and of two: one loader divides by zero, the other chooses none."""
    path = write_moving(tmp_path / "short.mp4", *X264, rate="25", seconds=seconds)
    notes: list[str] = []
    assert len(load_video(path, notes.append, choose(processor)).frames) == 1
    assert notes[-1].startswith("the model sees 1 frame of the video file")


def test_options_that_a_loader_does_not_read_are_refused(clips: dict[str, Path], choose: Choose) -> None:
    with pytest.raises(InputError, match=r"`media_io_kwargs.video.num_frames` has no effect"):
        load_video(clips["short.mp4"], list[str]().append, choose("Qwen2VLVideoProcessor", {"num_frames": 8}))
    with pytest.raises(InputError, match=r"`media_io_kwargs.video.max_frames` has no effect"):
        load_video(clips["short.mp4"], list[str]().append, choose("None", {"max_frames": 8}))
