"""Estimates with intervals, from values that come in blocks.

A machine's speed drifts: runs close in time are alike, so a run adds little to its neighbour. The block, a few
consecutive runs, is therefore the unit of all resampling.

The centre is the 20 % trimmed mean: nearly as precise as the mean for well-behaved noise, and as robust as the median
if up to a fifth of the blocks are disturbed. Its interval is the symmetric studentised bootstrap: blocks are drawn
with replacement, and the quantile is that of |centre - true centre| / standard error. Unlike the plain percentile
bootstrap, it keeps its level with ten blocks and with heavy tails (`benchmarks/gate_calibration.py`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from statistics import NormalDist, fmean, variance
from typing import Any

import msgspec
import numpy as np

TRIM = 0.2
RESAMPLES = 4000
MAX_ORDER_BIAS = 0.04
"""Twice what the order of loading was seen to add to a log ratio."""

MIN_BLOCKS = 8
"""Below this number of blocks, the bootstrap has too few distinct resamples to estimate its tails."""


@dataclass(frozen=True)
class Estimate:
    """A centre with its standard error and the distribution of its error.

    `deviations` is float64 (RESAMPLES,), ascending: |resampled centre - centre| in resampled standard errors.
    `units` is the number of blocks, or batches of blocks, that count as independent.
    """

    centre: float
    standard_error: float
    units: int
    deviations: np.ndarray = field(repr=False, compare=False)

    def half_width(self, level: float) -> float:
        """Return half the interval's width: 0 if all blocks are equal, infinite for a single block."""
        if self.standard_error in (0, math.inf):
            return self.standard_error
        index = math.ceil((1 - level) * len(self.deviations)) - 1
        return float(self.deviations[min(max(index, 0), len(self.deviations) - 1)]) * self.standard_error

    def interval(self, level: float) -> tuple[float, float]:
        """Return the interval of coverage 1 - `level`."""
        half = self.half_width(level)
        return self.centre - half, self.centre + half

    def tail(self, bound: float) -> float:
        """Return the one-sided p-value of the true centre lying on the other side of `bound` than the estimate."""
        distance = abs(self.centre - bound)
        if self.standard_error == 0:
            return 1.0 if distance == 0 else 0.0
        beyond = len(self.deviations) - np.searchsorted(self.deviations, distance / self.standard_error)
        return max(int(beyond), 1) / (2 * len(self.deviations))


def get_centre(values: np.ndarray, inflation: float = 1.0, trim: float = TRIM) -> Estimate:
    """Return the centre of float64 (n,), one value per block; n >= 1. The order of the blocks does not matter.

    `inflation` multiplies the standard error of blocks that are not fully independent. `trim` 0 gives the mean.
    """
    resampled = _Resampled.of(values, trim)
    errors = _studentise(resampled.centres, resampled.variances)
    return Estimate(resampled.centre, inflation * math.sqrt(resampled.variance), len(values), np.sort(np.abs(errors)))


def even_halves(values: np.ndarray, is_second: np.ndarray, trim: float = TRIM) -> tuple[np.ndarray, float]:
    """Return logarithms float64 (n,) with both halves moved to the mean of their centres, so that what adds to one and
    is taken from the other cancels and widens nothing; and the factor of the standard error, above 1 for unequal ones.

    Halves are moved by `MAX_ORDER_BIAS` at most: what is left of a larger difference is noise of a busy machine."""
    sides = [values[~is_second], values[is_second]]
    sizes = [len(side) for side in sides]
    if min(sizes) == 0 or len(values) < 3:
        return values, 1.0
    first, second = (_trimmed_mean(side, trim) for side in sides)
    count = len(values)
    # Each half has a centre of its own, which takes a degree of freedom.
    factor = count / (2 * math.sqrt(sizes[0] * sizes[1])) * math.sqrt((count - 1) / (count - 2))
    moved = min(max((second - first) / 2, -MAX_ORDER_BIAS), MAX_ORDER_BIAS)
    return values + np.where(is_second, -moved, moved), factor


def _trimmed_mean(values: np.ndarray, trim: float) -> float:
    cut = int(trim * len(values))
    return float(np.sort(values)[cut : len(values) - cut].mean())


def of_counts(estimate: Estimate, floor: float) -> Estimate:
    """Return an estimate of counts: a standard error of at least `floor`, and normal deviations, because the bootstrap
    has no bound while most blocks are equal."""
    normal = np.sort(np.abs(np.random.default_rng(0).standard_normal(RESAMPLES)))
    error = max(estimate.standard_error, floor)
    return replace(estimate, standard_error=error, deviations=normal * (1 + 3 / estimate.units))


def get_difference(
    first: np.ndarray, second: np.ndarray, inflations: tuple[float, float] = (1.0, 1.0), trim: float = TRIM
) -> Estimate:
    """Return the centre of `second` minus that of `first`, float64 (n,) and (m,), drawn independently of each other."""
    a, b = _Resampled.of(first, trim), _Resampled.of(second, trim)
    # Reversed, so that draws of the two sides are independent, and swapping the sides gives the same pairs.
    errors = _studentise(b.centres - a.centres[::-1], b.variances + a.variances[::-1])
    return Estimate(
        b.centre - a.centre,
        math.hypot(inflations[0] * math.sqrt(a.variance), inflations[1] * math.sqrt(b.variance)),
        min(len(first), len(second)),
        np.sort(np.abs(errors)),
    )


def get_batches(values: np.ndarray, length: int) -> np.ndarray:
    """Return the means of that many neighbours; the remainder belongs to the last batch, so that every block counts."""
    edges = np.arange(len(values) // length) * length
    means: np.ndarray = np.add.reduceat(values, edges) / np.diff(np.append(edges, len(values)))
    return means if length > 1 else values


def share_interval(share: float, count: int) -> tuple[float, float]:
    """Return Wilson's 95 % interval of a share of `count` items, which has a width even where the share is 0 or 1."""
    z = NormalDist().inv_cdf(0.975)
    middle = share + z**2 / (2 * count)
    half = z * math.sqrt(share * (1 - share) / count + (z / (2 * count)) ** 2)
    scale = 1 + z**2 / count
    return max((middle - half) / scale, 0.0), min((middle + half) / scale, 1.0)


def attainment_interval(blocks: Sequence[float] | np.ndarray, num_requests: float, level: float) -> tuple[float, float]:
    """Return the interval of a share from its values by block, which may end beyond 0 and 1; requests of a block wait
    for each other, and each block begins with an idle server.

    It is Agresti and Coull's for independent requests, with the standard error of the blocks where that is larger:
    equal blocks prove no share of 1. Blocks that fail as a whole, but rarely, need more blocks than the minimum. Not
    the bootstrap, which has no bound while most blocks are equal.
    """
    reach = NormalDist().inv_cdf(1 - level / 2) * (1 + 3 / len(blocks))
    total = num_requests + reach**2
    centre = (fmean(blocks) * num_requests + reach**2 / 2) / total
    half = reach * math.sqrt(max(variance(blocks) / len(blocks), centre * (1 - centre) / total))
    return centre - half, centre + half


class _Resampled(msgspec.Struct, frozen=True):
    """A centre with its variance; for each resample, the error of its centre and its variance."""

    centre: float
    variance: float
    centres: np.ndarray
    variances: np.ndarray

    @classmethod
    def of(cls, values: np.ndarray, trim: float) -> _Resampled:
        count = len(values)
        draws = _draws(count, trim)
        # Around the median, so that squares lose no digits to a large common part.
        ranked = np.sort(values)
        middle = float(ranked[(count - 1) // 2] + ranked[count // 2]) / 2
        ranked = ranked - middle
        cut, kept = draws.cut, count - 2 * draws.cut
        inner = ranked[cut : count - cut]
        centre = float(inner.sum()) / kept
        variance = _variance(inner.sum(), (inner**2).sum(), ranked[cut], ranked[count - cut - 1], count=count, cut=cut)
        # Not `@`: waking the threads of the linear algebra library costs a hundred times more than this little work.
        sums = np.einsum("ij,j->i", draws.weights, ranked)
        squares = np.einsum("ij,j->i", draws.weights, ranked**2)
        variances = _variance(sums, squares, ranked[draws.low], ranked[draws.high], count=count, cut=cut)
        return cls(middle + centre, float(variance), sums / kept - centre, variances)


class _Draws(msgspec.Struct, frozen=True):
    """Draws of n ranks with replacement, (RESAMPLES, n): how often each rank is kept after trimming, and the lowest and
    the highest rank that are kept. Ranks instead of values, so that no resample has to be sorted."""

    weights: np.ndarray
    low: np.ndarray
    high: np.ndarray
    cut: int


@lru_cache(maxsize=16)
def _draws(count: int, trim: float = TRIM) -> _Draws:
    half = RESAMPLES // 2
    picks = np.random.default_rng(0).integers(count, size=(half, count))
    flat = (picks + count * np.arange(half)[:, None]).ravel()
    counts = np.bincount(flat, minlength=half * count).reshape(half, count)
    # Each draw with its mirror image, so that negated values get exactly the mirrored interval.
    counts = np.concatenate([counts, counts[:, ::-1]])
    cut = int(trim * count)
    cumulated = counts.cumsum(axis=1)
    weights = np.diff(np.clip(cumulated, cut, count - cut), axis=1, prepend=cut).astype(np.float64)
    return _Draws(weights, (cumulated > cut).argmax(axis=1), (cumulated >= count - cut).argmax(axis=1), cut)


def _variance(inner_sum: Any, inner_squares: Any, low: Any, high: Any, *, count: int, cut: int) -> Any:
    """Squared standard error of a trimmed mean, from the winsorised sample (Tukey and McLaughlin)."""
    if count < 2:
        return inner_sum * 0 + np.inf
    mean = (inner_sum + cut * (low + high)) / count
    spread = np.maximum((inner_squares + cut * (low**2 + high**2)) / count - mean**2, 0)
    return spread / (count - 1) / (1 - 2 * cut / count) ** 2


def _studentise(errors: np.ndarray, variances: np.ndarray) -> np.ndarray:
    """Return errors in standard errors; infinite for a resample without spread."""
    scale = np.sqrt(variances)
    studentised: np.ndarray = np.divide(errors, scale, out=np.full_like(errors, np.inf), where=scale > 0)
    return studentised
