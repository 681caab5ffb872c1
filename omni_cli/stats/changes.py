"""Change points of a series of records: steps that neither noise nor drift nor outliers explain.

A step is looked for as a nightly job meets it: after each record, between the newest `AFTER` records and up to
`REFERENCE` before them. It is the difference of their medians, and counts if

* it is a multiple of the spread of the series, from which earlier steps have been taken out. The spread includes what
  noise, weekly waves and drift have added so far, and a few records say little of it;
* it stays one beside a straight line through both parts, since a ramp has no commit;
* four of the newest five records show at least half of it: three outliers are no step.

Error rates, beside those of ruptures' PELT and of Otava, are measured by `benchmarks/history_calibration.py`. Neither
is used: looked at after each record, they raise more false alarms at the same power.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

BEFORE, AFTER = 8, 5
"""Records that the first step needs on either side; between two steps, `AFTER` are enough."""

REFERENCE = 20
"""Records before a step that it is measured from, at most."""

WINDOW = 60
"""Records that the spread is taken from, at most."""

THRESHOLD = 2.5
"""Standard errors at which a step counts."""

Z95 = 1.96
"""Half the width of a step's 95 % interval in standard errors."""

_FEW = 4  # records that double the threshold, if the spread is known from no more
_MAD = 1.4826
_ERROR = 0.7  # standard error of the difference of two medians, of 5 and of 20 records, in standard deviations of one
_SHOWING = 0.75  # share of the newest records that have to show half of the step
_POWER = NormalDist().inv_cdf(0.8)
_NEAR = 2.4  # sum of absolute deviations, in standard deviations, that another place of the step may add


@dataclass(frozen=True)
class Shift:
    """A change between the records `at - 1` and `at`, first seen at the record `found`, all counted from 0.

    It lies between the records `earliest - 1` and `latest`. `size` is in the unit of the values.
    """

    at: int
    earliest: int
    latest: int
    found: int
    size: float
    standard_error: float


@dataclass(frozen=True)
class Steps:
    """The steps of a series, and the smallest size that its newest records would have shown in 80 % of the cases.

    That is None if there are too few records, in all or since the last step.
    """

    shifts: tuple[Shift, ...]
    detectable: float | None


def find_steps(values: np.ndarray, noise: float, margin: float, threshold: float = THRESHOLD) -> Steps:
    """Find the steps of float64 (n,) that are larger than `margin`, each as it was first seen.

    `noise` is the standard error of a value that is known from within the records, or 0.
    """
    level = np.array(values, dtype=np.float64)  # without the steps
    shifts: list[Shift] = []
    start, detectable = 0, None
    for end in range(BEFORE + AFTER, len(values) + 1):
        at = end - AFTER
        if shifts and at - start < AFTER:
            continue
        first = max(start, at - REFERENCE)
        # Noise may have grown with the last step.
        spread = max(_deviation(level[since:at], np.median) for since in (max(at - WINDOW, 0), first))
        error = _ERROR * max(_MAD * spread, noise)
        known = max(at - BEFORE - AFTER + 1, _FEW)
        needed = max(threshold * (1 + _FEW / known) * error, margin + error)
        if _is_step(values[first:at], values[at:end], needed):
            shifts.append(_shift(values[:end], start, first, error))
            start, detectable = shifts[-1].at, None
            level[start:] -= shifts[-1].size
        else:
            detectable = needed + _POWER * error
    return Steps(tuple(shifts), detectable)


def _is_step(before: np.ndarray, after: np.ndarray, needed: float) -> bool:
    level = np.median(before)
    size = float(np.median(after) - level)
    if abs(size) <= needed:
        return False
    beside_a_line = size - _slope(before, after) * (len(before) + len(after)) / 2
    shows = (after - level) / size > 0.5
    return beside_a_line * size > 0 and abs(beside_a_line) > needed and float(shows.mean()) >= _SHOWING


def _shift(values: np.ndarray, start: int, first: int, error: float) -> Shift:
    """Place a step that the newest of `values` show, where absolute deviations from the medians are the smallest."""
    at = len(values) - AFTER
    places = np.arange(max(start + AFTER, at - AFTER + 1), at + AFTER - 1)
    costs = np.array([_deviation(values[first:place], np.sum) + _deviation(values[place:], np.sum) for place in places])
    best = int(places[costs.argmin()])
    near = places[costs <= costs.min() + _NEAR * error / _ERROR]
    return Shift(
        at=best,
        earliest=int(near[0]),
        latest=int(near[-1]),
        found=len(values) - 1,
        size=float(np.median(values[best:]) - np.median(values[first:best])),
        standard_error=error,
    )


def _slope(*parts: np.ndarray) -> float:
    """Return the median slope between two records of the same part."""
    pairs = [(part, *np.triu_indices(len(part), 1)) for part in parts]
    return float(np.median(np.concatenate([(part[b] - part[a]) / (b - a) for part, a, b in pairs])))


def _deviation(values: np.ndarray, over: Callable[[np.ndarray], float]) -> float:
    """Return the median or the sum of the absolute deviations from the median."""
    return float(over(np.abs(values - np.median(values))))
