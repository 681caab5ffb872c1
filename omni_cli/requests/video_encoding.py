"""Encode the frames of a video, with its sound, as an MP4 file and a preview."""

from __future__ import annotations

import importlib
import io
import itertools
import math
import tempfile
from collections.abc import Iterable, Iterator
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from omni_cli.core.errors import OmniError
from omni_cli.requests.encoding import clip_samples, encoder_rate
from omni_cli.requests.outputs import AudioOutput, VideoOutput, VideoSound

if TYPE_CHECKING:
    import av
    import PIL.Image

Codec = Literal["libx264", "libsvtav1"]

# The first frame keeps at least 40 dB; the rest is for what a whole video costs it beside a frame of its own.
_TARGET_PSNR_DB = 41.0
# Pixel format and quality, the smallest file first; the last one is used where none reaches the target. Halved chroma
# (4:2:0) is what every player shows, but loses more than the target allows where neighbouring pixels differ in colour.
_QUALITIES: dict[Codec, tuple[tuple[str, int], ...]] = {
    "libx264": (
        ("yuv420p", 18),
        ("yuv420p", 14),
        ("yuv420p", 10),
        ("yuv444p", 14),
        ("yuv444p", 10),
        ("yuv444p", 6),
        ("yuv444p", 2),
        ("yuv444p", 0),
    ),
    "libsvtav1": (("yuv420p", 24), ("yuv420p", 14), ("yuv420p", 4)),
}
# For each channel. At the encoder's default a pure tone at 48 kHz comes back with 24 dB of signal to noise, and with
# peaks of twice its height where it ends; here with 66 dB in one channel and 53 dB in two.
_AAC_BITS_PER_S = 160_000
# ITU-T H.273: the code point of BT.709 for primaries, transfer and matrix; limited range.
_BT709, _LIMITED_RANGE = 1, 1
_PREVIEW_COLUMNS = 3
_PREVIEW_FRAMES = _PREVIEW_COLUMNS**2
_PREVIEW_WIDTH = 256


def prepare_encoding() -> None:
    """Import what encoding needs, which the first video should not wait for."""
    importlib.import_module("av")
    importlib.import_module("PIL.Image").init()


def encode_video(
    pieces: Iterable[Iterable[np.ndarray]],
    num_frames: int,
    fps: Fraction,
    sound: AudioOutput | None = None,
    codec: Codec | None = None,
) -> VideoOutput:
    """Encode `pieces` of a video with `num_frames` frames in all, each uint8 RGB (height, width, 3).

    Every frame lasts exactly 1 / `fps` seconds. The default codec is H.264, or AV1 where PyAV has none; sound becomes
    AAC. The preview has up to nine evenly spaced frames. Raises `OmniError` for sound with NaN or infinite samples.
    """
    import av

    codec = codec or ("libx264" if "libx264" in av.codecs_available else "libsvtav1")
    frames = itertools.chain.from_iterable(pieces)
    first = next(frames)
    height, width, _ = first.shape
    pixel_format, crf = _quality_for(first, codec, fps)
    preview = _Preview(num_frames)
    # A file, because its index is moved to the front at the end, so that players can start before they have all of it.
    with tempfile.TemporaryFile() as file:
        with av.open(
            f"/proc/self/fd/{file.fileno()}", "w", format="mp4", options={"movflags": "+faststart"}
        ) as container:
            stream = _video_stream(container, codec, fps, width, height, pixel_format, crf)
            audio = None if sound is None else _audio_stream(container, sound)
            # All of the sound first: the container holds it until the frames that it belongs to arrive.
            if audio is not None and sound is not None:
                container.mux(list(_audio_packets(audio, sound)))
            for frame in itertools.chain([first], frames):
                preview.add(frame)
                container.mux(stream.encode(_video_frame(frame, pixel_format)))
            container.mux(stream.encode())
        file.seek(0)
        content = file.read()
    heard = None if sound is None else VideoSound(sound.sample_rate, len(sound.samples))
    return VideoOutput(content, preview.webp(), width, height, num_frames, fps, heard)


def _quality_for(frame: np.ndarray, codec: Codec, fps: Fraction) -> tuple[str, int]:
    """The first quality that keeps `frame`; halved chroma only for even sizes."""
    height, width, _ = frame.shape
    is_even = height % 2 == 0 and width % 2 == 0
    qualities = [quality for quality in _QUALITIES[codec] if is_even or quality[0] != "yuv420p"]
    if not qualities:
        raise OmniError(f"AV1 videos need an even width and height, not {width}x{height}")
    lossy_formats: set[str] = set()
    for pixel_format, crf in qualities[:-1]:
        if pixel_format in lossy_formats:
            continue
        if _psnr_db(_video_frame(frame, pixel_format).to_ndarray(format="rgb24"), frame) < _TARGET_PSNR_DB:
            lossy_formats.add(pixel_format)
        elif _psnr_db(_encode_alone(frame, codec, fps, pixel_format, crf), frame) >= _TARGET_PSNR_DB:
            return pixel_format, crf
    return qualities[-1]


def _encode_alone(frame: np.ndarray, codec: Codec, fps: Fraction, pixel_format: str, crf: int) -> np.ndarray:
    """A frame after it was encoded and decoded on its own; encoders give a frame more bits the longer it lasts."""
    import av

    file = io.BytesIO()
    height, width, _ = frame.shape
    with av.open(file, "w", format="mp4") as container:
        stream = _video_stream(container, codec, fps, width, height, pixel_format, crf)
        container.mux(stream.encode(_video_frame(frame, pixel_format)))
        container.mux(stream.encode())
    file.seek(0)
    with av.open(file, "r") as container:
        return next(container.decode(video=0)).to_ndarray(format="rgb24")


def _psnr_db(a: np.ndarray, b: np.ndarray) -> float:
    error = float(((a.astype("float32") - b) ** 2).mean())
    return math.inf if error == 0 else 10 * math.log10(255**2 / error)


def _video_stream(
    container: av.container.OutputContainer,
    codec: Codec,
    fps: Fraction,
    width: int,
    height: int,
    pixel_format: str,
    crf: int,
) -> Any:
    stream: Any = container.add_stream(codec, rate=fps, options={"crf": str(crf)})
    stream.width, stream.height, stream.pix_fmt = width, height, pixel_format
    context = stream.codec_context
    context.color_primaries = context.color_trc = context.colorspace = _BT709
    context.color_range = _LIMITED_RANGE
    return stream


def _video_frame(pixels: np.ndarray, pixel_format: str) -> av.VideoFrame:
    import av

    frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(pixels), format="rgb24")
    return frame.reformat(format=pixel_format, dst_colorspace=_BT709, dst_color_range=_LIMITED_RANGE)


def _audio_stream(container: av.container.OutputContainer, sound: AudioOutput) -> Any:
    layout = "mono" if sound.samples.ndim == 1 else "stereo"
    stream: Any = container.add_stream("aac", rate=encoder_rate("aac", sound.sample_rate), layout=layout)
    stream.codec_context.bit_rate = _AAC_BITS_PER_S * stream.codec_context.layout.nb_channels
    return stream


def _audio_packets(stream: Any, sound: AudioOutput) -> Iterator[Any]:
    import av

    samples = clip_samples(sound.samples)
    channels = samples[None] if samples.ndim == 1 else samples.T
    layout = stream.codec_context.layout.name
    channels = np.ascontiguousarray(channels, dtype=np.float32)
    frame = av.AudioFrame.from_ndarray(channels, format="fltp", layout=layout)
    frame.sample_rate, frame.time_base, frame.pts = sound.sample_rate, Fraction(1, sound.sample_rate), 0
    resampler = av.AudioResampler(format="fltp", layout=layout, rate=stream.rate)
    for part in [*resampler.resample(frame), *resampler.resample(None)]:
        yield from stream.encode(part)
    yield from stream.encode()


class _Preview:
    """A contact sheet: evenly spaced frames in rows, reduced to at most `_PREVIEW_WIDTH` pixels."""

    def __init__(self, num_frames: int) -> None:
        count = min(num_frames, _PREVIEW_FRAMES)
        self._wanted = {round(index * (num_frames - 1) / max(1, count - 1)) for index in range(count)}
        self._index = 0
        self._images: list[PIL.Image.Image] = []

    def add(self, frame: np.ndarray) -> None:
        if self._index in self._wanted:
            from PIL import Image

            image = Image.fromarray(frame)
            image.thumbnail((_PREVIEW_WIDTH, image.height))
            self._images.append(image)
        self._index += 1

    def webp(self) -> bytes:
        from PIL import Image

        width, height = self._images[0].size
        columns = min(_PREVIEW_COLUMNS, len(self._images))
        sheet = Image.new("RGB", (columns * width, math.ceil(len(self._images) / columns) * height))
        for index, image in enumerate(self._images):
            sheet.paste(image, (index % columns * width, index // columns * height))
        buffer = io.BytesIO()
        sheet.save(buffer, format="WebP")
        return buffer.getvalue()
