"""The send times of a window's requests: drawn before it begins, and independent of the server's answers."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence


def trace_rate(arrivals_s: Sequence[float]) -> float:
    """Return the mean rate of a trace per second: its times begin with 0 and do not all equal it."""
    return float(f"{len(arrivals_s) / arrivals_s[-1]:.6g}")


def arrival_times(rate: float, count: int, *, seed: int, number: int) -> list[float]:
    """Return `count` times in seconds from the window's start, ascending; all 0 for an infinite `rate` (per second).

    A Poisson process of that rate, under the condition that `count` requests come within `count / rate` seconds:
    its times are `count` independent uniform ones, sorted. Every window thus offers exactly `rate`. Equal seeds and
    iteration numbers give equal times.
    """
    if math.isinf(rate):
        return [0.0] * count
    source = random.Random(f"arrivals/{seed}/{number}")
    length_s = count / rate
    return sorted(source.uniform(0.0, length_s) for _ in range(count))
