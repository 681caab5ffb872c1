"""The length of a measurement: looks at its interval with the error of a single look, and the blocks that decide.

Stopping as soon as a 95 % interval excludes a value is wrong far more often than in 5 % of the cases. Here the error
of the whole run, `alpha`, is spent over its looks (Lan and DeMets 1983): after a share t of the blocks that fit into
the budget, alpha * ln(1 + (e - 1) t) of it, which is close to Pocock's equal bounds. Each look gets the level that
spends its part, given the looks before it. All intervals of a run then hold together with probability 1 - alpha
(repeated confidence intervals, Jennison and Turnbull 1989), for any reason to stop.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from statistics import NormalDist

import numpy as np

from omni_cli.stats.estimate import MIN_BLOCKS, Estimate

ALPHA = 0.05
GROWTH = 1.5
POWER = 0.8
MAX_BLOCKS = 100_000
"""Above this number of blocks, the effect lies on the bound, and no number is reported."""

_GRID = 161
_REACH = 8.0  # standard deviations; no statistic lies beyond


def plan_looks(max_blocks: int, orders: int = 1) -> tuple[int, ...]:
    """Return the numbers of blocks after which to look: `max_blocks` last, each 1.5 times the one before, none below
    `MIN_BLOCKS`; a single look if `max_blocks` is not above that. Raises `ValueError` below 1.

    Of several `orders` of loading, each has that many blocks, and an equal share of those before the last look."""
    if max_blocks < 1:
        raise ValueError(f"a plan of {max_blocks} blocks")
    looks = [max_blocks]
    while looks[-1] / GROWTH >= MIN_BLOCKS * orders:
        looks.append(math.floor(looks[-1] / GROWTH / orders) * orders)
    return tuple(reversed(looks))


def level_at(looks: Sequence[int], blocks: int, alpha: float = ALPHA) -> float:
    """Return the two-sided level of the interval after `blocks` blocks, which has coverage 1 - level at that look.

    `looks` is the plan. It is empty for a run whose length did not depend on its data, whose level is `alpha`. At a
    number of blocks that was not planned, the run ended, and the rest of `alpha` is spent there.
    """
    before = tuple(look for look in looks if look < blocks)
    if not looks or (not before and blocks not in looks):
        return alpha
    is_last = blocks not in looks or blocks == looks[-1]
    end = max(looks[-1], blocks)
    shares = tuple(look / end for look in (*before, blocks))
    return _levels(shares, is_last, alpha)[-1]


def spend_alpha(share: float, alpha: float = ALPHA) -> float:
    """Return the part of `alpha` that may be spent after this share (0 to 1) of the planned blocks."""
    return alpha * math.log(1 + (math.e - 1) * min(share, 1.0))


def minimum_detectable(estimate: Estimate, blocks: int, planned: int, level: float = ALPHA) -> float:
    """Return the smallest slowdown (0.02 is 2 %) whose interval excludes 0 in 80 % of the runs of `planned` blocks.

    `estimate` is of the log ratio over `blocks` blocks. Infinite if these are too few.
    """
    error = estimate.standard_error * math.sqrt(blocks / planned)
    if error == 0:
        return 0.0
    reach = (_quantile(level, planned) + NormalDist().inv_cdf(POWER)) * error
    return math.expm1(reach) if reach < 100 else math.inf


def blocks_needed(estimate: Estimate, blocks: int, gap: float, level: float) -> int | None:
    """Estimate how many more blocks decide in 80 % of the cases, for a bound that is `gap` away (log units, above 0).

    None if the estimate lies on the bound, so that no sensible number would decide.
    """
    scale = estimate.standard_error * math.sqrt(blocks)
    if not math.isfinite(scale) or gap <= 0:
        return None
    needed = float(blocks)
    for _ in range(3):  # the quantile falls slightly with more blocks
        reach = _quantile(level, needed) + NormalDist().inv_cdf(POWER)
        needed = max((reach * scale / gap) ** 2, MIN_BLOCKS)
    return max(math.ceil(needed) - blocks, 1) if needed <= MAX_BLOCKS else None


def _quantile(level: float, blocks: float) -> float:
    """Estimate the half width of an interval over that many blocks in standard errors."""
    return NormalDist().inv_cdf(1 - level / 2) * (1 + 3 / blocks)


@lru_cache(maxsize=256)
def _levels(shares: tuple[float, ...], is_last: bool, alpha: float) -> tuple[float, ...]:
    """Return two-sided levels of successive looks, by Armitage, McPherson and Rowe's recursion.

    Follows the distribution of the score process (Brownian motion at the times `shares`) among the runs that no look
    has stopped yet, and sets each bound so that the probability beyond it is what may be spent now.
    """
    normal = NormalDist()
    levels: list[float] = []
    total, density, points, time = 0.0, np.ones(1), np.zeros(1), 0.0
    for number, share in enumerate(shares):
        target = alpha if is_last and number == len(shares) - 1 else spend_alpha(share, alpha)
        allowed = max(target - total, 1e-12)
        step = math.sqrt(share - time)
        bound = _find_bound(density, points, step, math.sqrt(share), allowed)
        levels.append(2 * (1 - normal.cdf(bound)))
        total += allowed
        edge = bound * math.sqrt(share)
        grid = np.linspace(-edge, edge, _GRID)
        gaps = (grid[:, None] - points[None, :]) / step
        moved = np.exp(-gaps * gaps / 2) / (step * math.sqrt(2 * math.pi))
        weights = np.full(_GRID, grid[1] - grid[0])
        weights[[0, -1]] /= 2
        density = np.einsum("ij,j->i", moved, density) * weights
        points, time = grid, share
    return tuple(levels)


def _find_bound(density: np.ndarray, points: np.ndarray, step: float, scale: float, allowed: float) -> float:
    """Return the bound, in standard deviations, that the score crosses with probability `allowed`; by bisection."""
    low, high = 0.0, _REACH
    for _ in range(36):
        middle = (low + high) / 2
        if _crossing(density, points, step, middle * scale) > allowed:
            low = middle
        else:
            high = middle
    return high


def _crossing(density: np.ndarray, points: np.ndarray, step: float, edge: float) -> float:
    upper = _normal_tail((edge - points) / step)
    lower = _normal_tail((edge + points) / step)
    return float(np.sum(density * (upper + lower)))


def _normal_tail(values: np.ndarray) -> np.ndarray:
    """P(Z > values), because NumPy has no error function."""
    return np.array([math.erfc(value / math.sqrt(2)) / 2 for value in values.tolist()])
