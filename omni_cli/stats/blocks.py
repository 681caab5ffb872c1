"""From samples to one number a block, and to units that are independent of each other."""

from __future__ import annotations

import math

import numpy as np

from omni_cli.record import Variant, values_of

MAX_BATCH_SHARE = 4
"""Batches are never longer than a fourth of the blocks: correlation over a longer time cannot be told from drift."""


def block_medians(variant: Variant, metric: str) -> tuple[np.ndarray, np.ndarray]:
    """(blocks int64 (n,) ascending, medians float64 (n,)) of the blocks in which the variant has the metric."""
    pairs = values_of(variant, metric)
    if not pairs:
        return np.empty(0, np.int64), np.empty(0)
    blocks = np.array([block for block, _ in pairs], np.int64)
    values = np.array([value for _, value in pairs], np.float64)
    order = np.lexsort((values, blocks))
    names, starts, counts = np.unique(blocks[order], return_index=True, return_counts=True)
    ranked = values[order]
    return names, (ranked[starts + (counts - 1) // 2] + ranked[starts + counts // 2]) / 2


def took_turns(a: Variant, b: Variant) -> bool:
    """Whether two variants of one record ran interleaved: in the same blocks, never at the same position of one."""
    slots_a = {(sample.block, sample.position) for sample in a.samples}
    slots_b = {(sample.block, sample.position) for sample in b.samples}
    return slots_a.isdisjoint(slots_b) and not {s.block for s in a.samples}.isdisjoint(s.block for s in b.samples)


def independent_units(values: np.ndarray, *, cautious: bool) -> np.ndarray:
    """Means of batches of consecutive blocks, float64 (m,), m <= n: as many blocks a batch as stay correlated.

    `cautious` takes any correlation that the series shows for real, as is right for runs that share the drift of
    their time; otherwise only one that chance does not explain (interleaving has removed the drift already).
    """
    count = len(values)
    length = _batch_length(values, cautious=cautious)
    if length == 1:
        return values
    whole = count // length
    # What is left over belongs to the last batch: no block is thrown away.
    edges = np.arange(whole) * length
    return np.add.reduceat(values, edges) / np.diff(np.append(edges, count))


def _batch_length(values: np.ndarray, *, cautious: bool) -> int:
    """(1 + r) / (1 - r), the time over which an AR(1) series with lag-1 autocorrelation r forgets itself."""
    count = len(values)
    if count < 4:
        return 1
    # Ranks, because a single disturbed block would hide the correlation of all the others.
    ranks = np.argsort(np.argsort(values)) - (count - 1) / 2
    spread = float(ranks @ ranks)
    correlation = float(ranks[:-1] @ ranks[1:]) / spread if np.ptp(values) > 0 else 0.0
    if not cautious and correlation < 2.5 / math.sqrt(count):
        return 1
    if cautious:
        correlation += (1 + 3 * correlation) / count  # the estimate of a short series is too low by this much
    correlation = min(max(correlation, 0.0), 0.95)
    length = math.ceil((1 + correlation) / (1 - correlation) - 0.25)
    return max(1, min(length, count // MAX_BATCH_SHARE))
