"""Encode audio samples, pixels and tensors for files and streams."""

from __future__ import annotations

import io
import struct
from collections.abc import Iterable
from typing import Any

import numpy as np

from omni_cli.core.errors import OmniError
from omni_cli.requests.media.images import on_white


def encode_pcm16(samples: np.ndarray) -> bytes:
    """Encode float32 samples as signed 16-bit little-endian PCM; values beyond [-1, 1] are clipped.

    `samples` are (num_samples,), or (num_samples, channels), which are interleaved.

    Raises `OmniError` for NaN and infinity.
    """
    return _pcm16(samples).tobytes()


def encode_wav(samples: np.ndarray, sample_rate: int) -> bytes:
    """Encode float32 samples, of one or several channels, as a 16-bit PCM WAV file; see `encode_pcm16`."""
    pcm = encode_pcm16(samples)
    return _wav_header(sample_rate, 1 if samples.ndim == 1 else samples.shape[1], len(pcm)) + pcm


def encode_flac(samples: np.ndarray, sample_rate: int) -> bytes:
    """Encode float32 samples, of one or several channels, as a 16-bit FLAC file; see `encode_pcm16`."""
    import soundfile

    buffer = io.BytesIO()
    soundfile.write(buffer, _pcm16(samples), sample_rate, format="FLAC", subtype="PCM_16")
    return buffer.getvalue()


AUDIO_TYPES = {
    "mp3": "audio/mpeg", "opus": "audio/ogg", "aac": "audio/aac", "flac": "audio/flac", "wav": "audio/wav",
    "pcm": "audio/pcm",
}  # fmt: skip
"""Media types by OpenAI's names of formats."""

_CODECS = {"mp3": ("mp3", "libmp3lame"), "opus": ("ogg", "libopus"), "aac": ("adts", "aac"), "flac": ("flac", "flac")}
# The header of an MP3 file would be completed at its end, when it has been sent. The duration of Ogg's pages, which are
# sent when they are full, is in microseconds.
_MUXERS = {"mp3": {"write_xing": "0"}, "ogg": {"page_duration": "100000"}}


def resample(samples: np.ndarray, sample_rate: int, to_rate: int) -> np.ndarray:
    """Return float32 samples (num_samples,) or (num_samples, channels) at another rate in Hz."""
    import soxr

    resampled: np.ndarray = samples if sample_rate == to_rate else soxr.resample(samples, sample_rate, to_rate)
    return resampled


def encode_audio(samples: np.ndarray, sample_rate: int, audio_format: str, to_rate: int | None = None) -> bytes:
    """Encode float32 samples, of one or several channels, in one of `AUDIO_TYPES`, also at another rate: `to_rate`."""
    if to_rate is not None:
        samples, sample_rate = resample(samples, sample_rate, to_rate), to_rate
    match audio_format:
        case "wav":
            return encode_wav(samples, sample_rate)
        case "flac":
            return encode_flac(samples, sample_rate)
        case "pcm":
            return encode_pcm16(samples)
    encoder = AudioEncoder(sample_rate, audio_format, 1 if samples.ndim == 1 else samples.shape[1])
    return encoder.add(samples) + encoder.finish()


def encoder_rate(codec: str, sample_rate: int) -> int:
    """Return the lowest rate of an encoder that loses nothing of a sound, else its highest."""
    import av

    rates = av.Codec(codec, "w").audio_rates or [sample_rate]
    return min((rate for rate in rates if rate >= sample_rate), default=max(rates))


class AudioEncoder:
    """Encodes a stream of samples as they come, in one of `AUDIO_TYPES`.

    A WAV or FLAC file states an unknown length. Samples keep their rate, or, of one channel, get the rate `to_rate`,
    unless the codec has none like it.
    """

    def __init__(self, sample_rate: int, audio_format: str, num_channels: int = 1, to_rate: int | None = None) -> None:
        self._buffer = io.BytesIO()
        self._codec: Any = None
        self._converter: Any = None
        if to_rate not in (None, sample_rate):
            import soxr

            self._converter = soxr.ResampleStream(sample_rate, to_rate, num_channels)
            sample_rate = to_rate
        if audio_format == "wav":
            self._buffer.write(_wav_header(sample_rate, num_channels))
        if audio_format not in _CODECS:
            return
        import av

        container, codec = _CODECS[audio_format]
        self._container = av.open(_Sink(self._buffer), "w", format=container, container_options=_MUXERS.get(container))
        rate = encoder_rate(codec, sample_rate)
        self._layout = "mono" if num_channels == 1 else "stereo"
        self._codec = self._container.add_stream(codec, rate=rate, layout=self._layout)
        self._resampler = av.AudioResampler(self._codec.format.name, self._layout, rate)
        self._rate = sample_rate

    def add(self, samples: np.ndarray) -> bytes:
        """Encode further samples, float32 (num_samples,) or (num_samples, channels); returns what is complete."""
        self._write(samples if self._converter is None else self._converter.resample_chunk(samples))
        return self._take_bytes()

    def _write(self, samples: np.ndarray) -> None:
        if self._codec is None:
            self._buffer.write(encode_pcm16(samples))
        elif len(samples):
            import av

            frame = av.AudioFrame.from_ndarray(_pcm16(samples).reshape(1, -1), format="s16", layout=self._layout)
            frame.sample_rate = self._rate
            self._encode(self._resampler.resample(frame))

    def finish(self) -> bytes:
        """Return the rest."""
        if self._converter is not None:
            self._write(self._converter.resample_chunk(np.zeros(0, np.float32), last=True))
        if self._codec is not None:
            self._encode([*self._resampler.resample(None), None])
            self._container.close()
        return self._take_bytes()

    def _encode(self, frames: Iterable[Any]) -> None:
        for frame in frames:
            self._container.mux(self._codec.encode(frame))

    def _take_bytes(self) -> bytes:
        data = self._buffer.getvalue()
        self._buffer.seek(0)
        self._buffer.truncate()
        return data


class _Sink:
    """A file that cannot be read or wound back, as a connection."""

    def __init__(self, buffer: io.BytesIO) -> None:
        self.write = buffer.write


def _wav_header(sample_rate: int, num_channels: int, num_bytes: int | None = None) -> bytes:
    """Return what precedes the samples of a WAV file; without their number of bytes, that of an unknown length."""
    file_bytes, data_bytes = (0xFFFFFFFF, 0xFFFFFFFF) if num_bytes is None else (36 + num_bytes, num_bytes)
    fields = (b"RIFF", file_bytes, b"WAVE", b"fmt ", 16, 1, num_channels, sample_rate)
    rates = (sample_rate * num_channels * 2, num_channels * 2, 16, b"data", data_bytes)
    return struct.pack("<4sI4s4sIHHIIHH4sI", *fields, *rates)


def encode_png(pixels: np.ndarray) -> bytes:
    """Encode uint8 RGB pixels (height, width, 3) as a PNG file."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format="PNG")
    return buffer.getvalue()


def encode_image(pixels: np.ndarray, image_format: str, quality: int) -> bytes:
    """Encode uint8 RGB or RGBA pixels as `png`, or as `jpeg` or `webp` of a quality from 0 to 100; JPEG on white."""
    from PIL import Image

    if image_format == "png":
        return encode_png(pixels)
    image = Image.fromarray(pixels)
    if image_format == "jpeg" and image.mode == "RGBA":
        image = on_white(image, image.getchannel("A"))
    buffer = io.BytesIO()
    image.save(buffer, format=image_format.upper(), quality=quality)
    return buffer.getvalue()


def encode_npy(array: np.ndarray) -> bytes:
    """Encode an array as a NumPy file, which `--arg NAME=@FILE.npy` reads."""
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    return buffer.getvalue()


def clip_samples(samples: np.ndarray) -> np.ndarray:
    """Return float32 samples within [-1, 1]. Raises `OmniError` for NaN and infinity."""
    if not np.isfinite(samples).all():
        raise OmniError("the model produced audio with NaN or infinite samples")
    return np.clip(samples, -1.0, 1.0)


def _pcm16(samples: np.ndarray) -> np.ndarray:
    return np.rint(clip_samples(samples) * 32767.0).astype("<i2")
