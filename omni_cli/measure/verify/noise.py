"""A reference's own noise: the differences between the ways in which it runs, which are what an engine may differ by.

An engine is a further way. Its largest difference may be `SIDES` times the largest of the reference's own ways, and its
mean difference `sides_of_mean` times theirs. Rounding a log-probability to float32, as engines do, adds to both. On a
GPU in bfloat16, right ways have 0.76 to 0.88 of the largest and 0.94 to 0.99 of the mean difference
(`benchmarks/results/verify-noise-h100.json`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from omni_cli.models.scores import Expected
from omni_cli.records.verify_record import MeanMax

SIDES = 3.0
MIN_FOR_MEAN = 64
ROUNDING = 4 * float(np.finfo(np.float32).eps)


@dataclass(frozen=True)
class Noise:
    """The reference's own differences: of log-probabilities by stage, of codes by stage, and of arrays by stage."""

    logprobs: Mapping[str, MeanMax] = field(default_factory=dict)
    codes: Mapping[str, float] = field(default_factory=dict)
    arrays: Mapping[str, float] = field(default_factory=dict)

    def get_array_limit(self, stage: str) -> float:
        """Return how far the arrays of two runs of a stage may be apart; 0 where the reference has no noise."""
        own = self.arrays.get(stage, 0.0)
        return SIDES * (own + ROUNDING) if own else 0.0


def get_noise(ways: Sequence[Sequence[Expected | str]]) -> Noise:
    """Measure the differences of the ways after the first from the first, over all requests."""
    logprobs: dict[str, list[list[np.ndarray]]] = {}
    codes: dict[str, float] = {}
    arrays: dict[str, float] = {}
    for number, way in enumerate(ways[1:]):
        for wide, own in zip(ways[0], way, strict=True):
            if isinstance(wide, str) or isinstance(own, str):
                continue
            for stage in wide.scores.keys() & own.scores.keys():
                a, b = wide.scores[stage], own.scores[stage]
                by_way = logprobs.setdefault(stage, [[] for _ in ways[1:]])
                by_way[number].append(differences(a.logprobs, b.logprobs))
                # A gap is 0 wherever a way chooses the engine's code, however noisy it is: its margin tells.
                for mine, theirs in ((a.code_gaps, b.code_gaps), (a.code_margins, b.code_margins)):
                    if mine is not None and theirs is not None:
                        gap = float(np.nanmax(differences(mine, theirs), initial=0.0))
                        codes[stage] = max(codes.get(stage, 0.0), gap)
            if wide.stage is not None:
                gaps = [array_gap(wide.arrays[name], own.arrays[name]) for name in wide.arrays if name in own.arrays]
                arrays[wide.stage] = max(arrays.get(wide.stage, 0.0), *gaps, 0.0)
    return Noise({stage: _spread(by_way) for stage, by_way in logprobs.items()}, codes, arrays)


def differences(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return absolute differences of the positions that both have; NaN where either has no finite number."""
    num = min(len(a), len(b))
    with np.errstate(invalid="ignore"):
        gaps = np.abs(a[:num] - b[:num])
    return np.where(np.isfinite(gaps), gaps, np.nan)


def _spread(by_way: Sequence[Sequence[np.ndarray]]) -> MeanMax:
    every = [np.concatenate([item[np.isfinite(item)] for item in way]) for way in by_way if way]
    return MeanMax(
        mean=max((float(item.mean()) for item in every if item.size), default=0.0),
        max=max((float(item.max()) for item in every if item.size), default=0.0),
    )


def array_gap(a: np.ndarray, b: np.ndarray) -> float:
    """Return the largest difference of two arrays, in their shared part if they are not of one shape."""
    if a.shape != b.shape:
        a, b = (side[: min(len(a), len(b))] for side in (a, b))
    return float(np.abs(a.astype(np.float64) - b.astype(np.float64)).max()) if a.size and a.shape == b.shape else 0.0


def sides_of_mean(num_values: int) -> float:
    """Return how many times the reference's own mean difference an engine's may be: of few values, the mean varies."""
    return 1.5 + 12 / math.sqrt(num_values)
