"""Speech that comes in: recordings whose voice a model clones, and what is heard in a sound."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class ReferenceVoice:
    """Samples float32 mono (num_samples,) of one speaker at `sample_rate` Hz, and the words spoken in them, if known.

    `name` identifies the recording in messages.
    """

    samples: np.ndarray
    sample_rate: int
    text: str | None = None
    name: str = "recording of a voice"


@dataclass(frozen=True)
class Segment:
    """A part of a transcript, with its times in seconds from the beginning of the sound."""

    start_s: float
    end_s: float
    text: str
    token_ids: tuple[int, ...]


@dataclass(frozen=True)
class Transcript:
    """A transcribed sound; `language` is its ISO 639-1 code, the request's or the one that the model detected."""

    language: str | None
    duration_s: float
    segments: tuple[Segment, ...]
