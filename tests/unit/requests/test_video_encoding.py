"""MP4 files, read back with PyAV."""

from __future__ import annotations

import io
from fractions import Fraction

import numpy as np
import pytest
from PIL import Image
from support.videos import psnr_db, read_video

from omni_cli.core.errors import OmniError
from omni_cli.requests.outputs import AudioOutput
from omni_cli.requests.video_encoding import encode_video

Y, X = np.mgrid[:48, :64]


def moving(colour: float = 1.0, height: int = 48, width: int = 64, count: int = 9) -> np.ndarray:
    """Waves that move; `colour` 0 is grey."""
    waves = [np.stack([np.sin(X / 9 + t / 5), np.sin(Y / 7 - t / 6), np.sin((X + Y) / 11)], -1) for t in range(count)]
    frames = np.stack(waves)
    grey = frames.mean(axis=-1, keepdims=True)
    frames = 127 + 110 * (grey + colour * (frames - grey))
    return frames.clip(0, 255).astype(np.uint8)[:, :height, :width]


@pytest.mark.parametrize("fps", [Fraction(16), Fraction(24000, 1001), Fraction(25, 2)])
def test_each_frame_lasts_exactly_its_time(fps: Fraction) -> None:
    frames = moving()
    encoded = encode_video([frames[:4], frames[4:]], len(frames), fps)
    read = read_video(encoded.content)
    assert (encoded.width, encoded.height) == (64, 48)
    assert read.frames.shape == frames.shape
    assert (read.fps, read.duration_s) == (fps, 9 / fps)
    assert read.times == [index / fps for index in range(9)]
    assert read.sound_s is None


@pytest.mark.parametrize(
    ("frames", "pixel_format"),
    [
        pytest.param(moving(colour=0.0), "yuv420p", id="grey"),
        pytest.param(moving(), "yuv444p", id="coloured edges"),
        pytest.param(moving(height=47, width=61), "yuv444p", id="odd"),
        pytest.param(np.random.default_rng(0).integers(0, 256, (3, 48, 64, 3), np.uint8), "yuv444p", id="noise"),
        pytest.param(moving(count=1), "yuv444p", id="one frame"),
    ],
)
def test_the_first_frame_keeps_40_db(frames: np.ndarray, pixel_format: str) -> None:
    read = read_video(encode_video([frames], len(frames), Fraction(16)).content)
    assert read.pixel_format == pixel_format
    assert read.frames.shape == frames.shape
    assert psnr_db(read.frames[0], frames[0]) > 40


@pytest.mark.parametrize(("rate", "file_rate"), [(24000, 24000), (44100, 44100), (22000, 22050)])
@pytest.mark.parametrize("channels", [1, 2])
def test_sound_has_its_length_and_its_channels(rate: int, file_rate: int, channels: int) -> None:
    tones = np.sin(np.outer(np.arange(rate) / rate * 2 * np.pi, [440, 880][:channels])).astype(np.float32) / 2
    sound = AudioOutput(tones[:, 0] if channels == 1 else tones, rate)
    read = read_video(encode_video([moving()], 9, Fraction(9), sound).content)
    assert (read.sample_rate, len(read.samples)) == (file_rate, channels)
    assert abs(read.sound_s - 1.0) < 1 / 9
    for channel, frequency in zip(read.samples, [440, 880], strict=False):
        spectrum = np.abs(np.fft.rfft(channel[:file_rate]))
        assert abs(spectrum.argmax() - frequency) <= 1
        assert 0.3 < np.abs(channel).max() < 0.6


def test_sound_with_nan_is_refused() -> None:
    with pytest.raises(OmniError, match="NaN or infinite"):
        encode_video([moving()], 9, Fraction(9), AudioOutput(np.full(100, np.nan, np.float32), 24000))


def test_the_index_is_at_the_front_and_the_preview_shows_nine_frames() -> None:
    frames = moving(colour=0.0, count=20)
    encoded = encode_video([frames], len(frames), Fraction(16))
    assert encoded.content.find(b"moov") < encoded.content.find(b"mdat")
    sheet = Image.open(io.BytesIO(encoded.preview))
    assert (sheet.format, sheet.size) == ("WEBP", (3 * 64, 3 * 48))
    last = np.asarray(sheet)[2 * 48 :, 2 * 64 :]
    assert psnr_db(last, frames[-1]) > 25 > psnr_db(last, frames[0])


def test_av1_where_there_is_no_h264() -> None:
    frames = moving(colour=0.0)
    read = read_video(encode_video([frames], 9, Fraction(16), codec="libsvtav1").content)
    assert (read.frames.shape, read.fps) == (frames.shape, 16)
    assert psnr_db(read.frames[0], frames[0]) > 40
    with pytest.raises(OmniError, match="even width and height, not 61x47"):
        encode_video([moving(height=47, width=61)], 9, Fraction(16), codec="libsvtav1")
