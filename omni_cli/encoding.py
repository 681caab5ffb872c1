"""Encode audio samples, pixels and tensors for files and streams."""

from __future__ import annotations

import io
import wave
from typing import TYPE_CHECKING

from omni_cli.errors import OmniError

if TYPE_CHECKING:
    import numpy as np


def encode_pcm16(samples: np.ndarray) -> bytes:
    """Encode float32 samples as signed 16-bit little-endian PCM; values beyond [-1, 1] are clipped.

    `samples` are (num_samples,), or (num_samples, channels), which are interleaved.

    Raises `OmniError` for NaN and infinity.
    """
    return _pcm16(samples).tobytes()


def encode_wav(samples: np.ndarray, sample_rate: int) -> bytes:
    """Encode float32 samples, of one or several channels, as a 16-bit PCM WAV file; see `encode_pcm16`."""
    pcm = encode_pcm16(samples)
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setnchannels(1 if samples.ndim == 1 else samples.shape[1])
        file.setsampwidth(2)
        file.setframerate(sample_rate)
        file.writeframes(pcm)
    return buffer.getvalue()


def encode_flac(samples: np.ndarray, sample_rate: int) -> bytes:
    """Encode float32 samples, of one or several channels, as a 16-bit FLAC file; see `encode_pcm16`."""
    import soundfile

    buffer = io.BytesIO()
    soundfile.write(buffer, _pcm16(samples), sample_rate, format="FLAC", subtype="PCM_16")
    return buffer.getvalue()


def encode_png(pixels: np.ndarray) -> bytes:
    """Encode uint8 RGB pixels (height, width, 3) as a PNG file."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format="PNG")
    return buffer.getvalue()


def encode_npy(array: np.ndarray) -> bytes:
    """Encode an array as a NumPy file, which `--arg NAME=@FILE.npy` reads."""
    import numpy as np

    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    return buffer.getvalue()


def encode_webp(pixels: np.ndarray) -> bytes:
    """Encode uint8 RGB pixels (height, width, 3) as a WebP file."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format="WEBP")
    return buffer.getvalue()


def _pcm16(samples: np.ndarray) -> np.ndarray:
    import numpy as np

    if not np.isfinite(samples).all():
        raise OmniError("the model produced audio with NaN or infinite samples")
    return np.rint(np.clip(samples, -1.0, 1.0) * 32767.0).astype("<i2")
