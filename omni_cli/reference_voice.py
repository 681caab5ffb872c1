"""A recording whose voice a model clones."""

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
