"""A listener to a sound that arrives in pieces: the first audible sample, and where playback runs dry."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from omni_cli.records.metrics import HEARD, LONGEST_GAP, STUTTER, UNDERRUNS, Row

BUFFER_S = 0.02
"""Seconds between the arrival of a piece and the playback that it starts, at first and after each stall."""

THRESHOLD_DBFS = -50.0
"""RMS over `WINDOW_S` from which on a sound is audible, in decibels of full scale, in its loudest channel."""

WINDOW_S = 0.01
_ROUNDING_S = 1e-6


def listen(samples: np.ndarray, sample_rate: int, arrivals: Sequence[tuple[float, int]], start_s: float = 0.0) -> Row:
    """Return the metrics of a sound, float32 (num_samples,) or (num_samples, channels); empty without arrivals.

    `arrivals` are the times at which pieces had arrived, ascending, each with the number of samples until then.
    """
    begins = [0, *(end for _, end in arrivals[:-1])]
    pieces = [(at_s, begin) for (at_s, end), begin in zip(arrivals, begins, strict=False) if end > begin]
    if not pieces:
        return {}
    # When the first sample has to be played, so that each piece is played on its arrival.
    origins = [at_s - begin / sample_rate for at_s, begin in pieces]
    stalls, playback_s = [], origins[0] + BUFFER_S
    for origin_s in origins:
        if origin_s > playback_s + _ROUNDING_S:
            stalls.append(origin_s + BUFFER_S - playback_s)
            playback_s = origin_s + BUFFER_S
    onset, heard_s = find_onset(samples, sample_rate), None
    if onset is not None:
        needed = [origin_s for origin_s, (_, begin) in zip(origins, pieces, strict=True) if begin <= onset]
        heard_s = max(needed) + onset / sample_rate - start_s
    gaps = [later - earlier for (earlier, _), (later, _) in itertools.pairwise(pieces)]
    return {
        HEARD: heard_s, STUTTER: float(sum(stalls)), UNDERRUNS: float(len(stalls)), LONGEST_GAP: max(gaps, default=None)
    }  # fmt: skip


def find_onset(samples: np.ndarray, sample_rate: int) -> int | None:
    """Return the number of the first audible sample: the first beyond the threshold in the first audible window."""
    window, threshold = max(1, round(WINDOW_S * sample_rate)), 10 ** (THRESHOLD_DBFS / 20)
    frames = samples.reshape(len(samples), -1)
    # A second at a time, because most sounds begin early.
    for begin in range(0, len(frames), 100 * window):
        part = np.abs(frames[begin : begin + 100 * window])
        energy = np.add.reduceat(part**2, np.arange(0, len(part), window)) / window
        loud = np.flatnonzero(energy.max(axis=1) > threshold**2)
        if loud.size:
            first = int(loud[0]) * window
            return begin + first + int(np.argmax(part[first : first + window].max(axis=1) > threshold))
    return None
