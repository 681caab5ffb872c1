"""Reduce samples to one number per block, and blocks to independent units."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np

from omni_cli.metrics import ATTAINMENT, COUNTED, E2E, WAITS, is_total
from omni_cli.record import Sample, Variant, get_values, request_values, requests_of
from omni_cli.stats.estimate import MIN_BLOCKS

_MAX_CORRELATION = 0.95
_PLACES = 10  # blocks of a queue


def block_medians(variant: Variant, metric: str) -> tuple[np.ndarray, np.ndarray]:
    """Return (blocks int64 (n,) ascending, medians float64 (n,)) of the blocks in which the variant has the metric.

    Those of counts and rates are means.
    """
    pairs = get_values(variant, metric)
    if not pairs:
        return np.empty(0, np.int64), np.empty(0)
    blocks = np.array([block for block, _ in pairs], np.int64)
    values = np.array([value for _, value in pairs], np.float64)
    order = np.lexsort((values, blocks))
    names, starts, counts = np.unique(blocks[order], return_index=True, return_counts=True)
    ranked = values[order]
    if is_counted(variant, metric):
        return names, np.add.reduceat(ranked, starts) / counts
    return names, (ranked[starts + (counts - 1) // 2] + ranked[starts + counts // 2]) / 2


@dataclass(frozen=True)
class Total:
    """A count or rate of all windows: their amount over their seconds, or over their requests for a share.

    `values` float64 (n,) are the rate plus what each block adds to it, so that their mean is the rate and their spread
    its error. `most` is the rate if all `sent` requests had been good.
    """

    rate: float
    blocks: np.ndarray
    values: np.ndarray
    sent: float
    most: float


def get_total(variant: Variant, metric: str) -> Total:
    """Return the total of a metric that `is_counted`; the variant has it."""
    samples = [sample for sample in variant.samples if metric in sample.metrics]
    values = np.array([sample.metrics[metric] for sample in samples])
    sent = np.array([requests_of(sample) or sample.work.get("requests", 1.0) for sample in samples])
    sizes = sent if metric == ATTAINMENT else np.array([_lasted_s(sample) for sample in samples])
    rate = float((values * sizes).sum() / sizes.sum())
    blocks, owners = np.unique([sample.block for sample in samples], return_inverse=True)
    added = np.bincount(owners, (values - rate) * sizes) / np.bincount(owners, sizes).mean()
    return Total(rate, blocks, rate + added, float(sent.sum()), float(sent.sum() / sizes.sum()))


def _lasted_s(sample: Sample) -> float:
    """Return the seconds of a window of requests, or of an iteration."""
    rate, answered = sample.metrics.get("requests_per_second"), sample.work.get("requests")
    return answered / rate if rate and answered else sample.e2e_s


def queue_times(variant: Variant, metric: str) -> np.ndarray | None:
    """Return the times float64 (n,), ascending, of a window whose requests were all sent before the first answer ended.

    Each waits for those before it, so that the queue is one measurement. None for variants of several windows or with
    other requests, and for metrics without the wait.
    """
    if metric not in WAITS or len({sample.number for sample in variant.samples}) != 1:
        return None
    columns = [[sample.requests.get(name, ()) for sample in variant.samples] for name in ("start_s", E2E)]
    rows = zip(*map(itertools.chain.from_iterable, columns), strict=False)
    sent = [(start, start + time) for start, time in rows if start is not None and time is not None]
    is_queue = bool(sent) and max(sent)[0] < min(end for _, end in sent)
    return np.sort(request_values(variant, metric)) if is_queue else None


def compare_queues(a: Variant, b: Variant, metric: str) -> np.ndarray | None:
    """Return the log ratio of the mean times of two queues, plus what each tenth of their places adds to it.

    Neighbours in a queue have nearly all of their wait in common. What is independent is the gap between one answer and
    the next, for which all later requests wait. None without a queue; empty if there is one that has no equal: another
    length, or fewer than ten requests.
    """
    queues = [times for variant in (a, b) if (times := queue_times(variant, metric)) is not None]
    count = len(queues[0]) if queues else 0
    if [len(times) for times in queues] != [count, count] or count < _PLACES:
        return np.empty(0) if queues else None
    waits = [np.diff(times, prepend=0.0) * np.arange(count, 0, -1) / times.sum() for times in queues]
    added: np.ndarray = np.add.reduceat(waits[1] - waits[0], np.arange(_PLACES) * count // _PLACES)
    return math.log(queues[1].sum() / queues[0].sum()) + _PLACES * added


def block_logs(variant: Variant, metric: str) -> tuple[np.ndarray, np.ndarray, float]:
    """Return (blocks, logs float64 (n,), least error) of the values of blocks; of counts the logarithm for all windows
    plus what each block adds, since a window may have none, and the error by two requests of another outcome."""
    if metric not in COUNTED:
        blocks, medians = block_medians(variant, metric)
        if (queue := queue_times(variant, metric)) is not None:
            blocks, medians = blocks[:1], np.median(queue, keepdims=True)
        with np.errstate(divide="ignore"):
            return blocks, np.log(medians), 0.0
    total = get_total(variant, metric)
    rate = max(total.rate, 2 * total.most / (total.sent + 4))
    logs = math.log(rate) + (total.values - total.rate) / rate
    return total.blocks, logs, math.sqrt(2) * total.most / total.sent / rate


def is_counted(variant: Variant, metric: str) -> bool:
    """True for counts of requests, and rates of windows of requests, which have no median but a total."""
    return metric in COUNTED or (is_total(metric) and any(sample.requests for sample in variant.samples))


def are_interleaved(a: Variant, b: Variant) -> bool:
    """True if two variants of one record ran in the same blocks, and never at the same position of one."""
    slots_a = {(sample.block, sample.position) for sample in a.samples}
    slots_b = {(sample.block, sample.position) for sample in b.samples}
    return slots_a.isdisjoint(slots_b) and not {s.block for s in a.samples}.isdisjoint(s.block for s in b.samples)


@dataclass(frozen=True)
class Units:
    """`values` float64 (m,): means of batches of consecutive blocks, m <= n. `inflation`, 1 or more, is the factor by
    which the standard error of their centre is too small because longer batches would have left too few."""

    values: np.ndarray
    inflation: float


def independent_units(values: np.ndarray) -> Units:
    """Batch the blocks over the length of their correlation, but into no fewer than `MIN_BLOCKS` batches.

    Interleaving removes most of the drift, but not all correlation: on a machine with a busy core, the variant that is
    preempted more often stays the same for seconds. Any correlation in the series is therefore treated as real.
    """
    count = len(values)
    wanted = _batch_length(values)
    length = max(1, min(wanted, count // MIN_BLOCKS))
    inflation = math.sqrt(wanted / length)
    if length == 1:
        return Units(values, inflation)
    # The remainder belongs to the last batch, so that every block counts.
    edges = np.arange(count // length) * length
    return Units(np.add.reduceat(values, edges) / np.diff(np.append(edges, count)), inflation)


def _batch_length(values: np.ndarray) -> int:
    """Return the length of a batch: twice the correlation time of an AR(1) series, (1 + r) / (1 - r).

    r is the lag-1 autocorrelation. With once that time, neighbouring batches are so alike that the intervals of two
    records contain the true value in 91 % instead of 94 % of the cases (noise with an autocorrelation of 0.75 from run
    to run).
    """
    count = len(values)
    if count < 4 or np.ptp(values) == 0:
        return 1
    # Ranks, because a single disturbed block would hide the correlation of all the others. Equal values share their
    # mean rank: in the order of the series, they would seem to be correlated.
    _, owners, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts + count) / 2)[owners]
    correlation = float(ranks[:-1] @ ranks[1:]) / float(ranks @ ranks)
    correlation += (1 + 3 * correlation) / count  # the bias of a short series
    correlation = min(max(correlation, 0.0), _MAX_CORRELATION)
    return round(4 * correlation / (1 - correlation)) + 1
