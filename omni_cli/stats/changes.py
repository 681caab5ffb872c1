"""Change points of a series of records: steps that neither noise nor drift nor outliers explain.

A step is looked for as a nightly job meets it: after each record, among the records so far, with at least `AFTER` of
them behind it. Four guards keep the probability of a false alarm small over the whole series (measured by
`benchmarks/history_calibration.py`):

* Records close in time are alike, and how much is unknown. The step is therefore estimated by generalised least squares
  under a grid of noise models (white, autocorrelated up to 0.9, with and without a white part, and random walks, which
  are drift), and counts as much as under the least favourable of those models that the series does not rule out.
* A step has to explain the series better than a straight line, and count beside a possible one: a ramp has no commit.
* Outliers are taken as unknown values, which speak neither for a step nor against it, and `ORDINARY` records on either
  side have to be none. Replacing them by their neighbours would make records that confirm each other.
* Single records have to confirm a step of the estimated size, so that one record, or a few outliers, are none.

No library fits: those for change points (ruptures) segment a whole series for a given penalty, and leave both the
autocorrelation and the rate of false alarms over repeated looks to the caller.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist

import numpy as np

from omni_cli.stats.power import POWER

BEFORE, AFTER = 8, 5
"""Records that a step needs on either side."""

ORDINARY = 4
"""Records on either side of a step that have to be no outliers."""

WINDOW = 100
"""Records that a look takes into account."""

THRESHOLD = 5.0
"""Standard errors at which a step counts."""

Z95 = 1.96
"""Half the width of a step's 95 % interval in standard errors."""

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
_CONFIRMING = 0.75  # share of the records next to a step
_TINY = 1e-9  # of a place without a known value on one side, in the unit of whitened values


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


def get_steps(values: np.ndarray, noise: float, margin: float, threshold: float = THRESHOLD) -> Iterator[Shift]:
    """Yield the steps of float64 (n,) whose 95 % interval lies beyond `margin`, each as it was first seen.

    `noise` is the standard error of a value that is known from within the records, or 0.
    """
    start, end = 0, BEFORE + AFTER
    while end <= len(values):
        latest = look(values[start:end], noise, margin, threshold)
        step = None if latest is None else latest.step
        if step is not None and step.score > threshold and abs(step.size) - Z95 * step.standard_error > margin:
            yield _moved(step, start)
            start += step.at
            end = start + BEFORE + AFTER
        else:
            end += 1


def look(values: np.ndarray, noise: float, margin: float, threshold: float = THRESHOLD) -> Look | None:
    """Return the most significant step; None for fewer than `BEFORE + AFTER` records."""
    if len(values) < BEFORE + AFTER:
        return None
    skipped = max(len(values) - WINDOW, 0)
    kept = values[skipped:]
    outliers = get_outliers(kept)
    fits = _Fits.of(kept - np.median(kept), noise, outliers)
    score = fits.scores()
    for candidate in np.flatnonzero(score > threshold):
        if not _is_confirmed(kept, int(candidate) + BEFORE, _step(fits, int(candidate), score).size):
            score[candidate] = 0.0
    place = int(score.argmax())
    step = _step(fits, place, score)
    last = fits.plausible[:, -AFTER]
    error = float(fits.errors[last, -AFTER].max())
    needed = max(_size_at(threshold, fits.freedom) * error, margin + Z95 * error)
    return Look(_moved(step, skipped), needed + NormalDist().inv_cdf(POWER) * error)


def _is_confirmed(values: np.ndarray, at: int, size: float) -> bool:
    """Return True if single records show a step of this size: at least `AFTER`, and three of four of its neighbours."""
    shows = (values - np.median(values[at - BEFORE : at])) / size > 0.5
    shares = np.mean(~shows[at - BEFORE : at]), np.mean(shows[at : at + BEFORE])
    return bool(min(shares) >= _CONFIRMING and np.sum(shows[at:]) >= AFTER)


def get_outliers(values: np.ndarray) -> np.ndarray:
    """Return bool (n,): values beyond three robust standard deviations from the median of their neighbourhood.

    The deviation is that of the series, or of the neighbourhood where it is larger: noise may grow with a step.
    """
    away = np.abs(values - _local_medians(values))
    reach = _OUTLIER * _MAD * 1.1 * np.maximum(np.median(away), _local_medians(away))
    is_outlier: np.ndarray = away > reach
    return is_outlier


def _local_medians(values: np.ndarray) -> np.ndarray:
    span = 2 * _HALF_SPAN + 1
    medians = np.median(np.lib.stride_tricks.sliding_window_view(values, span), axis=1)
    around: np.ndarray = medians[np.clip(np.arange(len(values)) - _HALF_SPAN, 0, len(medians) - 1)]
    return around


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
    is_step: np.ndarray
    records: int
    freedom: int

    @classmethod
    def of(cls, values: np.ndarray, noise: float, outliers: np.ndarray) -> _Fits:
        count, basis = len(values), _basis()
        freedom = count - 2 - int(outliers.sum())
        whitening = basis.whitening[:, :count, :count]
        white = np.einsum("mij,j->mi", whitening, values)[:, :, None]
        columns = slice(0, 2 + count - BEFORE)
        regressors = basis.regressors[:, :count, columns]
        # Each outlier has a parameter of its own: what these explain is subtracted from all products.
        free, scale = np.linalg.qr(whitening[:, :, outliers])
        free = free.transpose(0, 2, 1)
        lost, lost_values = free @ regressors, free @ white
        squares = basis.squares[:, count - 1, columns] - np.sum(lost**2, axis=1)
        with_constant = basis.with_constant[:, count - 1, columns] - np.sum(lost[:, :, :1] * lost, axis=1)
        along = np.einsum("mik,mij->mj", white, regressors) - np.sum(lost_values * lost, axis=1)
        total = np.sum(white**2, axis=1) - np.sum(lost_values**2, axis=1)
        # Beside a mean, which is column 0: column 1 is the line, the others are the places.
        ratio = with_constant[:, 1:] / squares[:, :1]
        spread = np.maximum(squares[:, 1:] - ratio * with_constant[:, 1:], _TINY)
        sizes = (along[:, 1:] - along[:, :1] * ratio) / spread
        left = total - along[:, :1] ** 2 / squares[:, :1] - sizes**2 * spread
        residuals = np.maximum(left[:, 1:], max(freedom * noise**2, 1e-300))
        free_determinants = np.log(np.abs(np.diagonal(scale, axis1=1, axis2=2))).sum(axis=1)
        determinants = (basis.log_determinants[:, count - 1] + free_determinants)[:, None]
        likelihoods = -freedom / 2 * np.log(residuals) - determinants - np.log(squares[:, :1] * spread[:, 1:]) / 2
        ordinary = np.cumsum(~outliers)
        before = ordinary[BEFORE - 1 : -1]
        return cls(
            sizes=sizes[:, 1:],
            errors=np.sqrt(residuals / freedom / spread[:, 1:]),
            plausible=likelihoods >= likelihoods.max(axis=0) - _PLAUSIBLE,
            beats_line=left[:, :1] >= residuals,
            residuals=residuals,
            is_step=(before >= ORDINARY) & (ordinary[-1] - before >= ORDINARY),
            records=count,
            freedom=freedom,
        )

    def scores(self) -> np.ndarray:
        """Return (places,): the score under the least favourable plausible model; 0 for places that are no steps."""
        ratios = np.where(self.beats_line, np.abs(self.sizes) / self.errors, 0.0)
        least = np.where(self.plausible, ratios, np.inf).min(axis=0)
        scores: np.ndarray = np.sqrt((self.freedom - 0.5) * np.log1p(least**2 / self.freedom))
        scores[1 - AFTER :] = 0.0
        return np.where(self.is_step, scores, 0.0)


def _step(fits: _Fits, place: int, scores: np.ndarray) -> Shift:
    """Describe the step at `place` by its least favourable plausible model."""
    model = int(np.where(fits.plausible[:, place], fits.errors[:, place], 0.0).argmax())
    lost = fits.freedom / 2 * np.log(fits.residuals / fits.residuals[:, place : place + 1])
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
    """Per noise model, for series of up to `WINDOW` records: the matrix that whitens it, the whitened regressors
    (model, record, column) and running sums of their products. A shorter series uses the leading parts.

    Columns: a mean, a straight line, and a step at each place."""

    whitening: np.ndarray
    regressors: np.ndarray
    squares: np.ndarray
    with_constant: np.ndarray
    log_determinants: np.ndarray


@lru_cache(maxsize=1)
def _basis() -> _Basis:
    factors = np.linalg.cholesky(_covariances())
    whitening = np.tril(np.linalg.inv(factors))
    records = np.arange(WINDOW)
    steps = records[:, None] >= records[BEFORE:]
    regressors = whitening @ np.column_stack([np.ones(WINDOW), records - (WINDOW - 1) / 2, steps])
    return _Basis(
        whitening=whitening,
        regressors=regressors,
        squares=np.cumsum(regressors**2, axis=1),
        with_constant=np.cumsum(regressors[:, :, :1] * regressors, axis=1),
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


def _size_at(score: float, freedom: int) -> float:
    """Return the ratio of size and standard error that has this score."""
    return math.sqrt(freedom * math.expm1(score**2 / (freedom - 0.5)))


def _moved(step: Shift, by: int) -> Shift:
    return Shift(
        step.at + by, step.earliest + by, step.latest + by, step.found + by, step.size, step.standard_error, step.score
    )
