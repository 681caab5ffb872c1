"""Decode audio to float32 samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    import numpy as np

MAX_AUDIO_S = 600.0


@dataclass(frozen=True)
class DecodedAudio:
    """Samples float32 (num_samples,), or (num_samples, channels); `notes` say what was changed or left out."""

    samples: np.ndarray
    sample_rate: int
    notes: tuple[str, ...] = ()


def decode_audio(content: BinaryIO, name: str, *, max_s: float = MAX_AUDIO_S, mono: bool = True) -> DecodedAudio:
    """Decode audio of at most `max_s` seconds; `name` identifies it in messages."""
    from omni_cli.inputs import audio

    samples, sample_rate = audio.decode_audio(content, name, max_s, mono=mono)
    return DecodedAudio(samples, sample_rate)
