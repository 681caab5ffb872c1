"""Audio and image files, and the options that have an effect with a profile."""

from __future__ import annotations

import io
import os
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
import soundfile
from PIL import Image
from support.profile_text import make_config

from omni_cli.cli.generate.inputs import read_specs
from omni_cli.config.loader import load_profile
from omni_cli.config.schema import ARStageConfig, DiffusionStageConfig, EngineConfig
from omni_cli.core.errors import InputError, UsageError
from omni_cli.engine.describing import get_capabilities
from omni_cli.requests.jsonl import read_requests
from omni_cli.requests.media.reading import (
    ChooseFrames,
    FrameChoice,
    MediaReader,
    load_audio,
    load_image,
    load_sound,
    load_video,
)
from omni_cli.requests.media.video import decode_video
from omni_cli.requests.request_spec import BadRequest, RequestSpec

OMNI = make_config(
    "tiny-omni",
    "builtin:tiny-omni",
    ARStageConfig.create("thinker"),
    ARStageConfig.create("talker", input="thinker"),
    DiffusionStageConfig.create("token2wav", backend="vllm", input="talker"),
)
IMAGE = make_config("tiny-image", "builtin:tiny-image", DiffusionStageConfig.create("image"))


def no_warning(message: str) -> None:
    raise AssertionError(f"unexpected warning: {message}")


def write_tone(path: Path, *, rate: int = 16000, channels: int = 1, seconds: float = 0.5, **kwargs) -> np.ndarray:
    time = np.arange(int(rate * seconds)) / rate
    tone = np.stack([0.5 * np.sin(2 * np.pi * 220 * (c + 1) * time) for c in range(channels)], axis=1)
    soundfile.write(path, tone, rate, **kwargs)
    return tone.astype(np.float32)


# Video


def write_video(path: Path, num_frames: int, *, fps: int = 8, size: int = 32, with_sound: bool = False) -> None:
    """A lossless one, each frame a grey of its number."""
    av = pytest.importorskip("av")
    with av.open(path, "w") as container:
        stream = container.add_stream("ffv1", rate=fps)
        stream.width = stream.height = size
        stream.pix_fmt = "bgr0"
        sound = container.add_stream("pcm_s16le", rate=8000, layout="mono") if with_sound else None
        for index in range(num_frames):
            frame = av.VideoFrame.from_ndarray(np.full((size, size, 3), 5 * index, np.uint8), format="rgb24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
        if sound is not None:
            ramp = av.AudioFrame.from_ndarray(np.arange(8000, dtype=np.int16)[None], format="s16", layout="mono")
            ramp.sample_rate = 8000
            container.mux(sound.encode(ramp))


def test_frames_of_a_short_video(tmp_path: Path) -> None:
    write_video(tmp_path / "v.mkv", 6)
    video = load_video(tmp_path / "v.mkv", pytest.fail)
    assert (video.frames.shape, video.frames.dtype) == ((6, 32, 32, 3), np.uint8)
    assert (video.fps, video.total_num_frames, video.frames_indices) == (8.0, 6, tuple(range(6)))
    assert [int(frame.mean()) for frame in video.frames] == [0, 5, 10, 15, 20, 25]


def test_the_sound_of_a_video_is_not_dropped_silently(tmp_path: Path) -> None:
    write_video(tmp_path / "v.mkv", 6, with_sound=True)
    warnings: list[str] = []
    assert len(load_video(tmp_path / "v.mkv", warnings.append).frames) == 6
    assert warnings == [f"the video file `{tmp_path / 'v.mkv'}` has sound, which is not used"]


def test_the_sound_of_a_video_as_samples(tmp_path: Path) -> None:
    path, silent = tmp_path / "v.mkv", tmp_path / "silent.mkv"
    write_video(path, 6, with_sound=True)
    write_video(silent, 6)
    assert load_sound(silent, pytest.fail) is None
    found = load_sound(path, pytest.fail)
    assert found is not None
    samples, rate = found
    np.testing.assert_array_equal(samples, np.arange(8000, dtype=np.float32) / 2**15)
    assert rate == 8000


def every(step: int) -> ChooseFrames:
    def choose(total: int, fps: float) -> FrameChoice:
        indices = tuple(range(0, total, step))
        return indices, {"frames_indices": indices, "do_sample_frames": fps == 8}

    return choose


def test_chosen_frames_of_a_long_video(tmp_path: Path) -> None:
    path, notes = tmp_path / "v.mkv", list[str]()
    write_video(path, 50)
    video = load_video(path, notes.append, every(4))
    assert (video.frames_indices, video.total_num_frames, video.fps) == (tuple(range(0, 50, 4)), 50, 8.0)
    assert [int(frame.mean()) for frame in video.frames] == [5 * index for index in video.frames_indices]
    assert video.do_sample_frames
    assert notes == [f"the model sees 13 frames of the video file `{path}`, 2.08 per second, of 50"]


def test_frames_beyond_the_limit_of_pixels_are_left_out_and_said(tmp_path: Path) -> None:
    path, notes = tmp_path / "v.mkv", list[str]()
    write_video(path, 50)
    with path.open("rb") as file:
        video = MediaReader(notes.append).video(file, "video", choose=every(1), max_pixels=4 * 32 * 32 + 5)
    assert video.frames_indices == (0, 16, 32, 49) and not video.do_sample_frames
    assert [int(frame.mean()) for frame in video.frames] == [0, 80, 160, 245]
    assert notes[0] == "of the video a limit of 4,101 pixels leaves 4 of 50 frames"


def test_a_video_of_one_frame_leaves_no_choice(tmp_path: Path) -> None:
    write_video(tmp_path / "v.mkv", 1)
    video = load_video(tmp_path / "v.mkv", lambda _note: None, lambda *_: pytest.fail("asked"))
    assert (video.frames_indices, len(video.frames)) == ((0,), 1)


def test_videos_that_cannot_be_used(tmp_path: Path) -> None:
    write_video(tmp_path / "v.mkv", 16)
    content = (tmp_path / "v.mkv").read_bytes()
    (tmp_path / "text.mp4").write_text("no video at all")
    write_tone(tmp_path / "tone.wav")
    for name, message in (("text.mp4", "cannot read the video file"), ("tone.wav", "has no video stream")):
        with pytest.raises(InputError, match=message):
            load_video(tmp_path / name, pytest.fail)
    with pytest.raises(InputError, match="No such file"):
        load_video(tmp_path / "none.mp4", pytest.fail)
    with pytest.raises(InputError, match="32x32 pixels per frame; the maximum is 64 for 16 frames"):
        decode_video(io.BytesIO(content), "video", max_pixels=1024)
    with pytest.raises(InputError, match="longer than 1 s"):
        decode_video(io.BytesIO(content), "video", max_s=1.0)


# Audio


@pytest.mark.parametrize("suffix", ["wav", "flac", "ogg", "mp3"])
def test_audio_of_each_format(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"tone.{suffix}"
    tone = write_tone(path)
    samples, rate = load_audio(path, no_warning)
    assert (samples.dtype, samples.ndim, rate) == (np.float32, 1, 16000)
    exact = suffix in ("wav", "flac")
    length = len(tone)
    assert len(samples) == length if exact else length - 400 <= len(samples) <= length + 4000
    peak = np.abs(np.fft.rfft(samples))
    assert np.argmax(peak) * rate / len(samples) == pytest.approx(220, abs=3)
    if exact:
        np.testing.assert_allclose(samples, tone[:, 0], atol=1e-4)


def test_channels_are_averaged(tmp_path: Path) -> None:
    tone = write_tone(tmp_path / "stereo.wav", channels=2, subtype="FLOAT")
    samples, _ = load_audio(tmp_path / "stereo.wav", no_warning)
    np.testing.assert_allclose(samples, tone.mean(axis=1), atol=1e-6)


def test_unusable_audio(tmp_path: Path) -> None:
    (tmp_path / "zero").write_bytes(b"")
    (tmp_path / "text.wav").write_text("this is not audio, whatever its name says")
    soundfile.write(tmp_path / "no_samples.wav", np.zeros(0), 16000)
    soundfile.write(tmp_path / "nan.wav", np.array([0.0, np.nan], np.float32), 16000, subtype="FLOAT")
    soundfile.write(tmp_path / "inf.wav", np.array([0.0, np.inf], np.float32), 16000, subtype="FLOAT")
    soundfile.write(tmp_path / "slow.wav", np.zeros(10), 8)
    soundfile.write(tmp_path / "wide.wav", np.zeros((10, 64)), 16000)
    (tmp_path / "folder.wav").mkdir()
    os.mkfifo(tmp_path / "pipe.wav")
    cases = {
        "zero": "is empty",
        "text.wav": "cannot read",
        "no_samples.wav": "no samples",
        "nan.wav": "NaN or infinite",
        "inf.wav": "NaN or infinite",
        "slow.wav": "sample rate of 8 Hz",
        "wide.wav": "64 channels",
        "folder.wav": "is a folder",
        "pipe.wav": "not a regular file",
        "absent.wav": "No such file",
        "bad\0name.wav": "null",
    }
    for name, message in cases.items():
        with pytest.raises(InputError, match=message):
            load_audio(tmp_path / name, no_warning)


def test_truncated_flac(tmp_path: Path) -> None:
    whole = tmp_path / "whole.flac"
    soundfile.write(whole, np.random.default_rng(0).uniform(-0.5, 0.5, 32000), 16000)
    cut = tmp_path / "cut.flac"
    cut.write_bytes(whole.read_bytes()[: whole.stat().st_size // 2])
    with pytest.raises(InputError, match=r"cut\.flac"):
        load_audio(cut, no_warning)


# Images


@pytest.mark.parametrize("suffix", ["png", "bmp", "gif", "tiff", "webp", "jpg"])
def test_image_of_each_format(tmp_path: Path, suffix: str) -> None:
    pixels = np.zeros((6, 8, 3), np.uint8)
    pixels[:, 4:] = 255
    path = tmp_path / f"image.{suffix}"
    Image.fromarray(pixels).save(path)
    loaded = load_image(path, no_warning)
    assert (loaded.dtype, loaded.shape) == (np.uint8, (6, 8, 3))
    np.testing.assert_allclose(loaded[:, [0, 7]].astype(int), pixels[:, [0, 7]].astype(int), atol=12)


def test_exif_orientation_is_applied(tmp_path: Path) -> None:
    image = Image.new("RGB", (8, 4), "black")
    image.putpixel((0, 0), (255, 0, 0))
    exif = Image.Exif()
    exif[0x0112] = 6  # turn by 90 degrees clockwise to show
    image.save(tmp_path / "turned.png", exif=exif)
    loaded = load_image(tmp_path / "turned.png", no_warning)
    assert loaded.shape == (8, 4, 3)
    assert loaded[0, 3].tolist() == [255, 0, 0]


def test_transparency_is_laid_over_white(tmp_path: Path) -> None:
    path = tmp_path / "clear.png"
    notes: list[str] = []
    Image.new("RGBA", (2, 2), (255, 0, 0, 0)).save(path)
    assert load_image(path, notes.append).tolist() == [[[255] * 3] * 2] * 2
    assert notes == [f"the transparency of the image file `{path}` was put on white"]


def test_sixteen_bit_grey_is_scaled(tmp_path: Path) -> None:
    Image.fromarray(np.array([[0, 0x8000, 0xFFFF]], np.uint16)).save(tmp_path / "grey16.png")
    assert load_image(tmp_path / "grey16.png", no_warning)[0, :, 0].tolist() == [0, 128, 255]


def test_first_frame_of_an_animation_is_used_with_a_warning(tmp_path: Path) -> None:
    frames = [Image.new("RGB", (4, 4), colour) for colour in ("red", "green", "blue")]
    frames[0].save(tmp_path / "moving.gif", save_all=True, append_images=frames[1:])
    warnings: list[str] = []
    loaded = load_image(tmp_path / "moving.gif", warnings.append)
    assert loaded[0, 0].tolist() == [255, 0, 0]
    assert len(warnings) == 1 and "more than one frame" in warnings[0]


def png(width: int, height: int, data: bytes = b"") -> bytes:
    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def test_unusable_images(tmp_path: Path) -> None:
    Image.effect_noise((64, 64), 50).convert("RGB").save(tmp_path / "whole.png")
    whole = (tmp_path / "whole.png").read_bytes()
    (tmp_path / "truncated.png").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "empty.png").write_bytes(b"")
    (tmp_path / "text.png").write_text("not an image")
    (tmp_path / "bomb.png").write_bytes(png(50_000, 50_000))
    (tmp_path / "large.png").write_bytes(png(9_000, 9_000))
    (tmp_path / "script.eps").write_text("%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n")
    (tmp_path / "folder.png").mkdir()
    cases = {
        "truncated.png": "cannot read",
        "empty.png": "is empty",
        "text.png": "not recognised",
        "bomb.png": "the maximum is 64 Mi pixels",
        "large.png": "9000x9000 pixels; the maximum is 64 Mi",
        "script.eps": "not recognised",
        "folder.png": "is a folder",
        "absent.png": "No such file",
    }
    for name, message in cases.items():
        with pytest.raises(InputError, match=message):
            load_image(tmp_path / name, no_warning)


def test_every_truncation_of_an_image_is_an_input_error(tmp_path: Path) -> None:
    Image.effect_noise((24, 24), 50).convert("RGB").save(tmp_path / "whole.png")
    whole = (tmp_path / "whole.png").read_bytes()
    # The end of the file (IEND) adds nothing: without it the image is whole.
    for length in range(1, len(whole) - 16, 37):
        (tmp_path / "cut.png").write_bytes(whole[:length])
        with pytest.raises(InputError, match=r"cut\.png"):
            load_image(tmp_path / "cut.png", no_warning)


# Which options a profile has a use for


def test_modalities_of_profiles() -> None:
    assert get_capabilities(OMNI).modalities == ("text", "audio")
    assert get_capabilities(IMAGE).modalities == ("image",)


@pytest.mark.parametrize(
    ("config", "field"),
    [
        (OMNI, "height"),
        (OMNI, "width"),
        (OMNI, "negative_prompt"),
        (IMAGE, "audio"),
        (IMAGE, "image"),
        (IMAGE, "speaker"),
        (IMAGE, "raw"),
        (IMAGE, "max_tokens"),
        (IMAGE, "temperature"),
    ],
)
def test_option_without_effect(config: EngineConfig, field: str) -> None:
    with pytest.raises(UsageError, match=f"`{field}` has no effect with profile `{config.name}`"):
        get_capabilities(config).check_field(field, f"`{field}`")


def test_options_that_a_stage_takes_besides_those_of_its_output() -> None:
    capabilities = get_capabilities(load_profile("tiny-glm-image"))
    assert capabilities.modalities == ("image",)
    for field in ("image", "temperature", "height", "num_inference_steps"):
        capabilities.check_field(field, field)
    with pytest.raises(UsageError, match="`max_tokens` has no effect"):
        capabilities.check_field("max_tokens", "`max_tokens`")


def test_files_are_written_unless_only_text_is_requested() -> None:
    assert get_capabilities(OMNI).makes_files(None)
    assert not get_capabilities(OMNI).makes_files(frozenset({"text"}))


def test_a_checkpoint_s_pipeline_decides_what_a_request_may_and_must_have(tmp_path: Path) -> None:
    (tmp_path / "model_index.json").write_text('{"_class_name": "MarigoldDepthPipeline"}')
    config = make_config("depth", str(tmp_path), DiffusionStageConfig.create("image"))
    capabilities = get_capabilities(config)
    assert {"image", "num_inference_steps", "arg"} <= capabilities.fields
    assert not {"prompt", "mask", "control_image", "duration"} & capabilities.fields
    (tmp_path / "lines.jsonl").write_text('{"seed": 1}\n{"image": "i.png"}')
    missing, whole = read_requests(tmp_path / "lines.jsonl", capabilities, {})
    assert isinstance(missing, BadRequest)
    assert missing.error.message == "`image` is missing, which profile `depth` needs"
    assert isinstance(whole, RequestSpec) and whole.media["image"] == (tmp_path / "i.png",)
    with pytest.raises(UsageError, match="`--image` is missing, which profile `depth` needs"):
        read_specs({}, None, capabilities)


def test_a_text_to_speak_is_the_answer_of_the_first_stage() -> None:
    (spec,) = read_specs({"prompt": "hello", "speak": True, "max_audio_tokens": 9}, None, get_capabilities(OMNI))
    assert isinstance(spec, RequestSpec)
    request = spec.request
    assert request.text.reply == "hello" and request.prompt is not None and request.prompt.endswith("\n\nhello")
    assert request.modalities == {"audio"} and request.speech.max_audio_tokens == 9
    with pytest.raises(UsageError, match="`--speak` has no effect"):
        read_specs({"prompt": "hello", "speak": True}, None, get_capabilities(IMAGE))
