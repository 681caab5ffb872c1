"""Reduce samples to one number per block, blocks to independent units, and a variant to its summary."""

from __future__ import annotations

import itertools
import math
import statistics
from statistics import NormalDist

import msgspec
import numpy as np
from msgspec import UNSET

from omni_cli.records.metrics import (
    ATTAINMENT,
    COUNTED_METRICS,
    E2E,
    PERCENTILES,
    RESOLUTION,
    SENTENCE,
    WAITS,
    WORD_ERRORS,
    WORDS,
    get_percentile,
    is_energy,
    is_total,
)  # fmt: skip
from omni_cli.records.record import Sample, Variant, get_failures, requests_of
from omni_cli.records.results import Bounds, Summary
from omni_cli.stats.estimate import MIN_BLOCKS, TRIM, attainment_interval, get_batches, get_centre
from omni_cli.stats.sequential import ALPHA

_MAX_CORRELATION = 0.95
_PLACES = 10  # blocks of a queue

_RESAMPLES = 2000
_MOST_SENTENCES = 250


def metric_names(variant: Variant) -> tuple[str, ...]:
    """Return the metrics that at least one sample has, `e2e_s` first, the others in order of appearance."""
    names = dict.fromkeys([E2E] if variant.samples else [])
    for sample in variant.samples:
        names.update(dict.fromkeys(sample.metrics))
    return tuple(names)


def get_values(variant: Variant, metric: str) -> list[tuple[int, float]]:
    """Return (block, value) of every sample that has the metric, in the order of the record."""
    if metric == E2E:
        return [(sample.block, sample.e2e_s) for sample in variant.samples]
    return [(sample.block, sample.metrics[metric]) for sample in variant.samples if metric in sample.metrics]


def request_values(variant: Variant, metric: str) -> list[float]:
    """Return the metric of every single request to a server; empty for all other variants."""
    columns = (sample.requests.get(metric, ()) for sample in variant.samples)
    return [value for column in columns for value in column if value is not None]


def shared_metrics(a: Variant, b: Variant) -> tuple[str, ...]:
    """Return the metrics that both have, in the order of `a`."""
    others = set(metric_names(b))
    return tuple(name for name in metric_names(a) if name in others)


class PairedBlocks(msgspec.Struct, frozen=True):
    """The logarithms of the blocks of two variants in one metric, `a` float64 (n,) and `b` (m,).

    `is_paired`: item i of both belongs together. `medians` are those of all samples, `floor` is the least standard
    error of counts, `trim` the share of blocks at either end that may be outliers. `is_lone_queue`: one side is a
    queue of requests, and the other side has none like it. `missing` is the reason if there are no blocks. Differences
    below `margin` are none. `blocks` are the numbers of each side's blocks; `num_blocks` is how many there are where
    items are something else.
    """

    a: np.ndarray
    b: np.ndarray
    medians: tuple[float | None, float | None]
    is_paired: bool
    floor: float
    trim: float
    is_lone_queue: bool
    missing: str
    margin: float = 0.0
    num_blocks: int | None = None
    blocks: tuple[np.ndarray, np.ndarray] | None = None

    def __len__(self) -> int:
        return min(len(self.a), len(self.b)) if self.num_blocks is None else self.num_blocks


def pair_blocks(a: Variant, b: Variant, metric: str, *, interleaved: bool) -> PairedBlocks | None:
    """Pair the blocks of two variants, of those that ran `interleaved` the common ones.

    Word errors are paired by sentences. None for a metric that is 0 throughout, so that it was not measured, unless it
    is usually 0, or energy.
    """
    if metric in WORD_ERRORS and (sentences := _pair_sentences(a, b, metric)) is not None:
        return sentences
    pairs = [get_values(variant, metric) for variant in (a, b)]
    if metric not in RESOLUTION and not is_energy(metric) and not any(value for values in pairs for _, value in values):
        return None
    queues = [queue_times(variant, metric) for variant in (a, b)]
    (blocks_a, logs_a, floor_a), (blocks_b, logs_b, floor_b) = map(_block_logs, (a, b), queues, [metric] * 2)
    places = compare_queues(*queues)
    has_places = places is not None and places.size > 0
    if places is not None and queues[0] is not None and has_places:
        level = math.log(float(queues[0].mean()))
        logs_a, logs_b = level + 0 * places, level + places
    elif interleaved:
        common, in_a, in_b = np.intersect1d(blocks_a, blocks_b, return_indices=True)
        blocks_a, blocks_b, logs_a, logs_b = common, common, logs_a[in_a], logs_b[in_b]
    # `numpy.median` would import NumPy's masked arrays.
    first, second = (statistics.median(value for _, value in values) if values else None for values in pairs)
    reasons = (item.energy.absent for item in (a, b) if is_energy(metric) and item.energy)
    return PairedBlocks(
        logs_a, logs_b, (first, second), interleaved or has_places, math.hypot(floor_a, floor_b),
        # The few windows in which requests failed are no outliers.
        0.0 if has_places or is_counted(a, metric) else TRIM,
        places is not None and not has_places and max(len(a.samples), len(b.samples)) > 1,
        next(reasons, None) or "no block has both",
        blocks=None if has_places else (blocks_a, blocks_b),
    )  # fmt: skip


def _pair_sentences(a: Variant, b: Variant, metric: str) -> PairedBlocks | None:
    """Pair the sentences that two variants said in the same windows, so that what a recogniser hears wrong in both
    cancels; an item is a sentence, or several of a long series. None if there are none.

    A sentence that comes again is one item: its errors are not independent.
    """
    errors: dict[float, np.ndarray] = {}  # words and errors of a, then of b
    windows = [{sample.number: sample for sample in variant.samples} for variant in (a, b)]
    shared = [number for number in windows[0] if number in windows[1]]
    for number in shared:
        names = (SENTENCE, WORDS, metric)
        rows = [zip(*(side[number].requests.get(name, ()) for name in names), strict=False) for side in windows]
        for (sentence, *first), (_, *second) in zip(*rows, strict=False):
            if sentence is not None and None not in (*first, *second):
                (words_a, share_a), (words_b, share_b) = first, second
                counts = np.array([words_a, words_a * share_a, words_b, words_b * share_b])
                errors[sentence] = errors.get(sentence, 0.0) + counts
    if not errors:
        return None
    table = np.array(list(errors.values()))
    table = np.add.reduceat(table, np.arange(0, len(table), -(-len(table) // _MOST_SENTENCES)))
    logs, rates, floors = [], [], []
    for words, wrong in (table.T[:2], table.T[2:]):
        rates.append(float(wrong.sum() / max(words.sum(), 1)))
        least = max(rates[-1], RESOLUTION[metric])
        logs.append(math.log(least) + (wrong - rates[-1] * words) / max(words.mean(), 1) / least)
        floors.append(math.sqrt(2) / max(words.sum(), 1) / least)
    margin = RESOLUTION[metric] / max(rates[0], RESOLUTION[metric])
    blocks = len({windows[0][number].block for number in shared})
    medians = rates[0], rates[1]
    return PairedBlocks(logs[0], logs[1], medians, True, math.hypot(*floors), 0.0, False, "", margin, blocks)


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


class Total(msgspec.Struct, frozen=True):
    """A count or rate of all windows: their amount over their seconds, or over their requests for a share or a mean.

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
    sizes = sent if metric == ATTAINMENT else np.array([lasted_s(sample) for sample in samples])
    if metric in RESOLUTION:
        size = WORDS if metric in WORD_ERRORS else "requests"
        sizes = np.array([sample.work.get(size, 1.0) for sample in samples])
    rate = float((values * sizes).sum() / sizes.sum())
    blocks, owners = np.unique([sample.block for sample in samples], return_inverse=True)
    added = np.bincount(owners, (values - rate) * sizes) / np.bincount(owners, sizes).mean()
    return Total(rate, blocks, rate + added, float(sent.sum()), float(sent.sum() / sizes.sum()))


def lasted_s(sample: Sample) -> float:
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


def compare_queues(a: np.ndarray | None, b: np.ndarray | None) -> np.ndarray | None:
    """Return the log ratio of the mean times of two queues, plus what each tenth of their places adds to it.

    Neighbours in a queue have nearly all of their wait in common. What is independent is the gap between one answer and
    the next, for which all later requests wait. None without a queue; empty if there is one that has no equal: another
    length, or fewer than ten requests.
    """
    if a is None or b is None or len(a) != len(b) or len(a) < _PLACES:
        return None if a is None and b is None else np.empty(0)
    count = len(a)
    waits = [np.diff(times, prepend=0.0) * np.arange(count, 0, -1) / times.sum() for times in (a, b)]
    added: np.ndarray = np.add.reduceat(waits[1] - waits[0], np.arange(_PLACES) * count // _PLACES)
    return math.log(b.sum() / a.sum()) + _PLACES * added


def _block_logs(variant: Variant, queue: np.ndarray | None, metric: str) -> tuple[np.ndarray, np.ndarray, float]:
    """Return (blocks, logs float64 (n,), least error) of the values of blocks; of counts the logarithm for all windows
    plus what each block adds, since a window may have none, and the error by two requests of another outcome."""
    if metric not in COUNTED_METRICS:
        blocks, medians = block_medians(variant, metric)
        if queue is not None:
            blocks, medians = blocks[:1], np.median(queue, keepdims=True)
        with np.errstate(divide="ignore"):
            return blocks, np.log(np.maximum(medians, RESOLUTION.get(metric, 0.0))), 0.0
    total = get_total(variant, metric)
    rate = max(total.rate, 2 * total.most / (total.sent + 4))
    logs = math.log(rate) + (total.values - total.rate) / rate
    return total.blocks, logs, math.sqrt(2) * total.most / total.sent / rate


def is_counted(variant: Variant, metric: str) -> bool:
    """True for counts of requests, and rates of windows of requests, which have no median but a total."""
    return metric in COUNTED_METRICS or (is_total(metric) and any(sample.requests for sample in variant.samples))


def are_interleaved(a: Variant, b: Variant) -> bool:
    """True if two variants of one record ran in the same blocks, and never at the same position of one."""
    slots_a = {(sample.block, sample.position) for sample in a.samples}
    slots_b = {(sample.block, sample.position) for sample in b.samples}
    return slots_a.isdisjoint(slots_b) and not {s.block for s in a.samples}.isdisjoint(s.block for s in b.samples)


class Units(msgspec.Struct, frozen=True):
    """`values` float64 (m,): means of batches of consecutive blocks, m <= n. `inflation`, 1 or more, is the factor by
    which the standard error of their centre is too small because batches of more than `length` blocks left too few."""

    values: np.ndarray
    inflation: float
    length: int = 1


def independent_units(values: np.ndarray) -> Units:
    """Batch the blocks over the length of their correlation, but into no fewer than `MIN_BLOCKS` batches.

    Interleaving removes most of the drift, but not all correlation: on a machine with a busy core, the variant that is
    preempted more often stays the same for seconds. Any correlation in the series is therefore treated as real.
    """
    count = len(values)
    wanted = _batch_length(values)
    length = max(1, min(wanted, count // MIN_BLOCKS))
    inflation = math.sqrt(wanted / length)
    return Units(get_batches(values, length), inflation, length)


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


def summarise(variant: Variant, metric: str) -> Summary | None:
    """Summarise a metric; None if the variant has no sample of it."""
    pairs = get_values(variant, metric)
    if not pairs:
        return None
    values = np.array([value for _, value in pairs])
    low, high = float(values.min()), float(values.max())
    summary = Summary(n=len(values), median=float(np.median(values)), minimum=low, maximum=high)
    if is_counted(variant, metric):
        rate, ci95 = _total(variant, metric)
        return msgspec.structs.replace(summary, median=rate, ci95=ci95)
    of_requests = request_values(variant, metric)
    spread = of_requests or values.tolist()
    p90, p99 = (get_percentile(spread, percentile) for percentile in PERCENTILES)
    summary = msgspec.structs.replace(
        summary,
        minimum=min(spread),
        maximum=max(spread),
        ci95=_median_interval(variant, metric, pairs),
        p90=p90,
        p99=p99,
        requests=len(of_requests) if of_requests else UNSET,
    )
    failed = sum(item.count for item in get_failures(variant.samples).values())
    if not (of_requests and failed):
        return summary
    # A failed request is slower than all others.
    ranked = [get_percentile([*of_requests, *[math.inf] * failed], percentile) for percentile in PERCENTILES]
    p90, p99 = (value if value is not None and math.isfinite(value) else None for value in ranked)
    return msgspec.structs.replace(summary, p90_of_all=p90, p99_of_all=p99)


def _total(variant: Variant, metric: str) -> tuple[float, Bounds | None]:
    """Return a count or a rate of all windows, with its interval from blocks of windows."""
    total = get_total(variant, metric)
    if len(total.blocks) < MIN_BLOCKS:
        return total.rate, None
    if metric in COUNTED_METRICS:
        low, high = attainment_interval(total.values / total.most, total.sent, ALPHA)
        low, high = low * total.most, (min(high, 1.0) if metric == ATTAINMENT else high) * total.most
    else:
        units = independent_units(total.values)
        low, high = get_centre(units.values, units.inflation, trim=0.0).interval(ALPHA)
        if not math.isfinite(high):
            return total.rate, None
    return total.rate, (max(low, 0.0), high)


def get_summaries(variant: Variant) -> dict[str, Summary]:
    """Summarise all metrics of a variant, in the order of the record."""
    found = ((metric, summarise(variant, metric)) for metric in metric_names(variant))
    return {metric: summary for metric, summary in found if summary is not None}


def _median_interval(variant: Variant, metric: str, pairs: list[tuple[int, float]]) -> tuple[float, float] | None:
    """Return the percentile bootstrap interval of the median, resampling whole batches of blocks."""
    blocks, medians = block_medians(variant, metric)
    # As many batches as the series has independent parts, in the order of the blocks.
    if len(blocks) < MIN_BLOCKS or queue_times(variant, metric) is not None:
        return None
    batches = independent_units(medians)
    units = len(batches.values)
    get_unit = dict(zip(blocks.tolist(), (np.arange(len(blocks)) * units // len(blocks)).tolist(), strict=True))
    order = np.argsort([value for _, value in pairs])
    ranked = np.array([value for _, value in pairs])[order]
    owners = np.array([get_unit[block] for block, _ in pairs])[order]
    picks = np.random.default_rng(0).integers(units, size=(_RESAMPLES, units))
    flat = (picks + units * np.arange(_RESAMPLES)[:, None]).ravel()
    counts = np.bincount(flat, minlength=_RESAMPLES * units).reshape(_RESAMPLES, units)
    cumulated = counts[:, owners].cumsum(axis=1)
    total = cumulated[:, -1:]
    low = (cumulated > (total - 1) // 2).argmax(axis=1)
    high = (cumulated > total // 2).argmax(axis=1)
    resampled = (ranked[low] + ranked[high]) / 2
    # Widened as t is wider than the normal, because with few units the plain percentiles are too narrow.
    z = NormalDist().inv_cdf(0.975) * (1 + 1.6 / units) * math.sqrt(units / (units - 1)) * batches.inflation
    tail = 100 * (1 - NormalDist().cdf(z))
    bounds = np.percentile(resampled, [tail, 100 - tail])
    return float(bounds[0]), float(bounds[1])
