"""Decode audio files to float32 samples."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from omni_cli.errors import InputError
from omni_cli.inputs.files import open_input

if TYPE_CHECKING:
    import numpy as np
    import soundfile

MAX_AUDIO_S = 600.0
MAX_CHANNELS = 32
# Beyond these a header is more likely broken than intended.
SAMPLE_RATE_RANGE_HZ = (1_000, 384_000)

_FORMATS_HINT = "WAV, FLAC, OGG and MP3 can be read"


def load_audio(path: Path, *, mono: bool = True) -> tuple[np.ndarray, int]:
    """Decode an audio file of at most `MAX_AUDIO_S` seconds.

    Returns (samples float32 (num_samples,), sample rate in Hz). Several channels are averaged, or with `mono` False
    kept: (num_samples, channels). Raises `InputError` for anything that cannot be used.
    """
    with open_input(path, "audio file") as file:
        return decode_audio(file, f"audio file `{path}`", MAX_AUDIO_S, mono=mono)


def decode_audio(file: BinaryIO, name: str, max_s: float = MAX_AUDIO_S, *, mono: bool = True) -> tuple[np.ndarray, int]:
    """Decode audio from an open file; `name` identifies it in messages, `max_s` limits its length in seconds."""
    import soundfile

    try:
        with soundfile.SoundFile(file) as sound:
            _check_header(sound, name, max_s)
            expected = sound.frames
            frames = sound.read(dtype="float32", always_2d=True)
            # An MP3 does not store its length: libsndfile only estimates it.
            exact = sound.format != "MP3"
            sample_rate = sound.samplerate
    except (soundfile.LibsndfileError, TypeError, RuntimeError) as error:
        raise InputError(f"cannot read the {name}: {_reason(error)}", hint=_FORMATS_HINT) from error
    if exact and len(frames) < expected:
        raise InputError(f"the {name} is truncated: {len(frames)} of {expected} samples")
    return _checked(frames if frames.shape[1] > 1 and not mono else _to_mono(frames), name), sample_rate


def _check_header(sound: soundfile.SoundFile, name: str, max_s: float) -> None:
    """Reject from the header alone what is invalid or too large to decode."""
    low, high = SAMPLE_RATE_RANGE_HZ
    if not low <= sound.samplerate <= high:
        raise InputError(f"the {name} has a sample rate of {sound.samplerate} Hz; supported: {low} to {high} Hz")
    if sound.channels > MAX_CHANNELS:
        raise InputError(f"the {name} has {sound.channels} channels; the maximum is {MAX_CHANNELS}")
    if sound.frames <= 0:
        raise InputError(f"the {name} has no samples")
    duration_s = sound.frames / sound.samplerate
    if duration_s > max_s:
        raise InputError(
            f"the {name} is {duration_s:.0f} s long; the maximum is {max_s:.0f} s",
            hint="cut it into shorter files",
        )


def _to_mono(frames: np.ndarray) -> np.ndarray:
    """Convert (num_samples, channels) float32 to contiguous (num_samples,) float32."""
    import numpy as np

    return np.ascontiguousarray(frames.mean(axis=1, dtype=np.float32))


def _checked(samples: np.ndarray, name: str) -> np.ndarray:
    """Reject samples that are not finite, and none at all."""
    import numpy as np

    if len(samples) == 0:
        raise InputError(f"the {name} has no samples")
    if not np.isfinite(samples).all():
        raise InputError(f"the {name} contains samples that are not numbers (NaN or infinite)")
    return samples


def _reason(error: Exception) -> str:
    text = getattr(error, "error_string", None) or str(error)
    return text.strip().rstrip(".")
