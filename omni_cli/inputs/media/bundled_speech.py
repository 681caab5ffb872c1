"""Speech to measure and to verify with, where the user gives none."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np

from omni_cli.inputs.media.audio import decode_audio

_SPEECH = Path(__file__).parent / "speech"


@functools.cache
def read_speech() -> tuple[tuple[np.ndarray, int], ...]:
    """Read two English sentences, spoken by espeak-ng: float32 samples (num_samples,) and their rate, of each."""
    sounds = []
    for path in sorted(_SPEECH.glob("*.ogg")):
        with path.open("rb") as file:  # in this process: it is ours
            decoded = decode_audio(file, path.name)
        sounds.append((decoded.samples, decoded.sample_rate))
    return tuple(sounds)
