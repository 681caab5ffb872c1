"""Speech to measure and to verify with, where the user gives none."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np

from omni_cli.inputs.media.reading import load_audio

_SPEECH = Path(__file__).parent / "speech"


@functools.cache
def read_speech() -> tuple[tuple[np.ndarray, int], ...]:
    """Read two English sentences, spoken by espeak-ng: float32 samples (num_samples,) and their rate, of each."""
    return tuple(load_audio(file, lambda _note: None) for file in sorted(_SPEECH.glob("*.ogg")))
