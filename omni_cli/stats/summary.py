"""The summary of one variant: the median with its interval, and the percentiles that the number of samples supports."""

from __future__ import annotations

import math
from statistics import NormalDist

import msgspec
import numpy as np
from msgspec import UNSET

from omni_cli.metrics import ATTAINMENT, COUNTED, PERCENTILES, get_percentile
from omni_cli.record import Variant, get_values, metric_names, request_values
from omni_cli.results import Bounds, Summary
from omni_cli.stats.blocks import block_medians, get_total, independent_units, is_counted, queue_times
from omni_cli.stats.estimate import MIN_BLOCKS, attainment_interval, get_centre
from omni_cli.stats.sequential import ALPHA

_RESAMPLES = 2000


def summarise(variant: Variant, metric: str) -> Summary | None:
    """Summarise a metric; None if the variant has no sample of it."""
    pairs = get_values(variant, metric)
    if not pairs:
        return None
    values = np.array([value for _, value in pairs])
    summary = Summary(
        n=len(values),
        median=float(np.median(values)),
        minimum=float(values.min()),
        maximum=float(values.max()),
    )
    if is_counted(variant, metric):
        rate, ci95 = _total(variant, metric)
        return msgspec.structs.replace(summary, median=rate, ci95=ci95)
    of_requests = request_values(variant, metric)
    p90, p99 = (get_percentile(of_requests or values.tolist(), percentile) for percentile in PERCENTILES)
    return msgspec.structs.replace(
        summary,
        ci95=_median_interval(variant, metric, pairs),
        p90=p90,
        p99=p99,
        requests=len(of_requests) if of_requests else UNSET,
    )


def _total(variant: Variant, metric: str) -> tuple[float, Bounds | None]:
    """Return a count or a rate of all windows, with its interval from blocks of windows."""
    total = get_total(variant, metric)
    if len(total.blocks) < MIN_BLOCKS:
        return total.rate, None
    if metric in COUNTED:
        low, high = attainment_interval(total.values / total.most, total.sent, ALPHA)
        low, high = low * total.most, (min(high, 1.0) if metric == ATTAINMENT else high) * total.most
    else:
        units = independent_units(total.values)
        low, high = get_centre(units.values, units.inflation, trim=0.0).interval(ALPHA)
    return total.rate, (max(low, 0.0), high)


def get_summaries(variant: Variant) -> dict[str, Summary]:
    """Summarise all metrics of a variant, in the order of the record."""
    summaries = {metric: summarise(variant, metric) for metric in metric_names(variant)}
    return {metric: summary for metric, summary in summaries.items() if summary is not None}


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
