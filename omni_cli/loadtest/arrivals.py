"""The send times of a window's requests: drawn before it begins, and independent of the server."""

from __future__ import annotations

import math
import random


def arrival_times(rate: float, count: int, *, seed: int, number: int) -> list[float]:
    """`count` times in seconds from the window's beginning, ascending; all 0 where `rate` (per second) is infinite.

    A Poisson process of that rate, given that `count` requests come within `count / rate` seconds: its times are as
    many independent uniform ones, sorted. Every window thus offers exactly `rate`. `number` is the iteration's: equal
    numbers and seeds mean equal times.
    """
    if math.isinf(rate):
        return [0.0] * count
    source = random.Random(f"arrivals/{seed}/{number}")
    length_s = count / rate
    return sorted(source.uniform(0.0, length_s) for _ in range(count))
