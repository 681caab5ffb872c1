"""Change points of a series of records: steps that neither noise nor drift nor outliers explain.

A step is looked for as a nightly job meets it: after each record, among the records so far, with at least `AFTER` of
them behind it. Three guards keep the probability of a false alarm small over the whole series (measured by
`benchmarks/history_calibration.py`):

* Records close in time are alike, and how much is unknown. The step is therefore estimated by generalised least squares
  under a grid of noise models (white, autocorrelated up to 0.9, with and without a white part, and random walks, which
  are drift), and counts as much as under the least favourable of those models that the series does not rule out.
* A step has to explain the series better than a straight line, and count beside a possible one: a ramp has no commit.
* Outliers are replaced by the median of their neighbours, so that fewer than `AFTER` of them are no step.

No library fits: those for change points (ruptures) segment a whole series for a given penalty, and leave both the
autocorrelation and the rate of false alarms over repeated looks to the caller.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist
from typing import Any

import numpy as np

from omni_cli.stats.power import POWER

BEFORE, AFTER = 8, 5
"""Records that a step needs on either side."""

WINDOW = 100
"""Records that a look takes into account."""

THRESHOLD = 5.0
"""Standard errors at which a step counts."""

_CORRELATIONS = (0.15, 0.3, 0.45, 0.6, 0.75, 0.9)
_WHITE_SHARES = (0.0, 0.4, 0.7)
_WALKS = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, math.inf)  # variance per record of a random walk, in that of the white part
_LINE_CORRELATIONS = (0.0, 0.3, 0.6, 0.75, 0.9)
_SLOPE = 5.0  # standard deviations of the noise over the whole window: the scale of a line's slope
_PLAUSIBLE = 3.0  # log likelihood that a model may lack to the best one
_PLACES = 3.0  # the same, for the place of a step
_HALF_SPAN = 4  # records to either side that an outlier is judged by
_OUTLIER = 3.0  # robust standard deviations
_MAD = 1.4826


@dataclass(frozen=True)
class Shift:
    """A change between the records `at - 1` and `at`, first seen at the record `found`, all counted from 0.

    It lies between the records `earliest - 1` and `latest`. `size` is in the unit of the values, with the standard
    error of the least favourable noise model, and `score` the normal quantile of its p-value.
    """

    at: int
    earliest: int
    latest: int
    found: int
    size: float
    standard_error: float
    score: float


@dataclass(frozen=True)
class Look:
    """The best step of the series so far, and the smallest size that `AFTER` records would have shown by now in 80 % of
    the cases."""

    step: Shift
    detectable: float


def steps_of(values: np.ndarray, noise: float, margin: float, threshold: float = THRESHOLD) -> Iterator[Shift]:
    """Yield the steps of float64 (n,) of more than `margin`, each as it was first seen.

    `noise` is the standard error of a value that is known from within the records, or 0.
    """
    start, end = 0, BEFORE + AFTER
    while end <= len(values):
        found = look(values[start:end], noise, threshold)
        if found is not None and found.step.score > threshold and abs(found.step.size) > margin:
            yield _moved(found.step, start)
            start += found.step.at
            end = start + BEFORE + AFTER
        else:
            end += 1


def look(values: np.ndarray, noise: float = 0.0, threshold: float = THRESHOLD) -> Look | None:
    """Return the most significant step; None for fewer than `BEFORE + AFTER` records."""
    if len(values) < BEFORE + AFTER:
        return None
    skipped = max(len(values) - WINDOW, 0)
    kept = without_outliers(values[skipped:])
    fits = _Fits.of(kept - np.median(kept), noise)
    score = fits.scores()
    place = int(score.argmax())
    found = _step(fits, place, score)
    freedom = len(kept) - 2
    last = fits.plausible[:, -AFTER]
    error = float(fits.errors[last, -AFTER].max())
    reach = _size_at(threshold, freedom) + NormalDist().inv_cdf(POWER)
    return Look(_moved(found, skipped), reach * error)


def without_outliers(values: np.ndarray) -> np.ndarray:
    """Replace values beyond three robust standard deviations by the median of their neighbourhood."""
    span = 2 * _HALF_SPAN + 1
    medians = np.median(np.lib.stride_tricks.sliding_window_view(values, span), axis=1)
    around = medians[np.clip(np.arange(len(values)) - _HALF_SPAN, 0, len(medians) - 1)]
    reach = _OUTLIER * _MAD * 1.1 * float(np.median(np.abs(values - around)))
    return np.where(np.abs(values - around) <= reach, values, around)


@dataclass(frozen=True)
class _Fits:
    """Fits of a mean and a step: float64 or bool (models, places); place 0 is a step after `BEFORE` records.

    The last places are there for the range in which a step may lie, but are no steps themselves.
    """

    sizes: np.ndarray
    errors: np.ndarray
    plausible: np.ndarray
    beats_line: np.ndarray
    residuals: np.ndarray
    records: int

    @classmethod
    def of(cls, values: np.ndarray, noise: float) -> _Fits:
        count = len(values)
        basis, freedom = _basis(), count - 2
        places = slice(BEFORE, count)
        white = _applied(basis.whitening[:, :count, :count], values)
        constant = basis.steps[:, :count, 0]
        step_squares = basis.step_squares[:, count - 1, places]
        with_constant = basis.step_constants[:, count - 1, places]
        squares = basis.step_constants[:, count - 1, :1]
        mean = np.sum(white * constant, axis=1)[:, None]
        along = np.einsum("mi,mij->mj", white, basis.steps[:, :count, places])
        spread = step_squares - with_constant**2 / squares
        sizes = (along - mean * with_constant / squares) / spread
        around_mean = np.sum(white**2, axis=1)[:, None] - mean**2 / squares
        residuals = np.maximum(around_mean - sizes**2 * spread, max(freedom * noise**2, 1e-300))
        determinants = basis.log_determinants[:, count - 1 : count]
        likelihoods = -freedom / 2 * np.log(residuals) - determinants - np.log(squares * spread) / 2
        line = _line_residuals(basis, white, constant, around_mean)
        return cls(
            sizes=sizes,
            errors=np.sqrt(residuals / freedom / spread),
            plausible=likelihoods >= likelihoods.max(axis=0) - _PLAUSIBLE,
            beats_line=line >= residuals,
            residuals=residuals,
            records=count,
        )

    def scores(self) -> np.ndarray:
        """Return (places,): the score under the least favourable plausible model; 0 for places that are no steps."""
        freedom = self.records - 2
        ratios = np.where(self.beats_line, np.abs(self.sizes) / self.errors, 0.0)
        least = np.where(self.plausible, ratios, np.inf).min(axis=0)
        scores: np.ndarray = np.sqrt((freedom - 0.5) * np.log1p(least**2 / freedom))
        scores[1 - AFTER :] = 0.0
        return scores


def _step(fits: _Fits, place: int, scores: np.ndarray) -> Shift:
    """Describe the step at `place` by its least favourable plausible model."""
    freedom = fits.records - 2
    model = int(np.where(fits.plausible[:, place], fits.errors[:, place], 0.0).argmax())
    lost = freedom / 2 * np.log(fits.residuals / fits.residuals[:, place : place + 1])
    near = np.flatnonzero((np.where(fits.plausible[:, place : place + 1], lost, np.inf).min(axis=0)) <= _PLACES)
    best = int(near[fits.residuals[model, near].argmin()])
    return Shift(
        at=best + BEFORE,
        earliest=int(near[0]) + BEFORE,
        latest=int(near[-1]) + BEFORE,
        found=fits.records - 1,
        size=float(fits.sizes[model, place]),
        standard_error=float(fits.errors[model, place]),
        score=float(scores[place]),
    )


@dataclass(frozen=True)
class _Basis:
    """Per noise model, for series of up to `WINDOW` records: the matrix that whitens it, whitened steps (model, record,
    place) and running sums of their products. A shorter series uses the leading parts."""

    whitening: np.ndarray
    steps: np.ndarray
    step_squares: np.ndarray
    step_constants: np.ndarray
    log_determinants: np.ndarray


@lru_cache(maxsize=1)
def _basis() -> _Basis:
    factors = np.linalg.cholesky(_covariances())
    whitening = np.tril(np.linalg.inv(factors))
    steps = np.cumsum(whitening[:, :, ::-1], axis=2)[:, :, ::-1]
    return _Basis(
        whitening=whitening,
        steps=steps,
        step_squares=np.cumsum(steps**2, axis=1),
        step_constants=np.cumsum(steps[:, :, :1] * steps, axis=1),
        log_determinants=np.cumsum(np.log(np.diagonal(factors, axis1=1, axis2=2)), axis=1),
    )


def _covariances() -> np.ndarray:
    records = np.arange(WINDOW)
    white, lags = np.eye(WINDOW), np.abs(records[:, None] - records)
    correlated = [(1 - share) * r**lags + share * white for r in _CORRELATIONS for share in _WHITE_SHARES]
    walk = np.minimum(records[:, None], records) + 1.0
    walks = [walk if math.isinf(variance) else white + variance * walk for variance in _WALKS]
    # A line of unknown slope is one more part of the noise.
    line = np.outer(records, records) * (_SLOPE / WINDOW) ** 2
    lines = [r**lags + line for r in _LINE_CORRELATIONS]
    return np.array([white, *correlated, *walks, *lines])


def _line_residuals(basis: _Basis, white: np.ndarray, constant: np.ndarray, around_mean: np.ndarray) -> np.ndarray:
    """Return (models, 1): what a mean and a straight line leave of the whitened values."""
    count = white.shape[1]
    line = _applied(basis.whitening[:, :count, :count], np.arange(count) - (count - 1) / 2)
    squares = np.sum(constant**2, axis=1)
    line = line - constant * (np.sum(constant * line, axis=1) / squares)[:, None]
    explained: np.ndarray = around_mean - (np.sum(white * line, axis=1) ** 2 / np.sum(line**2, axis=1))[:, None]
    return explained


def _applied(matrices: np.ndarray, values: np.ndarray) -> Any:
    return np.einsum("mij,j->mi", matrices, values)


def _size_at(score: float, freedom: int) -> float:
    """Return the ratio of size and standard error that has this score."""
    return math.sqrt(freedom * math.expm1(score**2 / (freedom - 0.5)))


def _moved(step: Shift, by: int) -> Shift:
    return Shift(
        step.at + by, step.earliest + by, step.latest + by, step.found + by, step.size, step.standard_error, step.score
    )
