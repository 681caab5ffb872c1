"""The summary of one variant: the median with its interval, and the percentiles that the number of samples supports."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
from msgspec import UNSET

from omni_cli.metrics import ATTAINMENT, COUNTED, GOODPUT, PERCENTILES, get_percentile
from omni_cli.record import Sample, Variant, get_values, metric_names, request_values, requests_of
from omni_cli.results import Summary
from omni_cli.stats.blocks import block_medians, independent_units, is_counted
from omni_cli.stats.estimate import MIN_BLOCKS, get_centre, share_interval

_RESAMPLES = 2000


def summarise(variant: Variant, metric: str) -> Summary | None:
    """Summarise a metric; None if the variant has no sample of it."""
    pairs = get_values(variant, metric)
    if not pairs:
        return None
    values = np.array([value for _, value in pairs])
    if metric in COUNTED:
        return _count(variant, metric, values)
    if is_counted(variant, metric):
        return _rate(variant, metric, values)
    of_requests = request_values(variant, metric)
    p90, p99 = (get_percentile(of_requests or values.tolist(), percentile) for percentile in PERCENTILES)
    return Summary(
        n=len(values),
        median=float(np.median(values)),
        ci95=_median_interval(variant, metric, pairs),
        minimum=float(values.min()),
        maximum=float(values.max()),
        p90=p90,
        p99=p99,
        requests=len(of_requests) if of_requests else UNSET,
    )


def _count(variant: Variant, metric: str, values: np.ndarray) -> Summary:
    """Summarise the share of requests within the limits, or their rate, over all requests with Wilson's interval."""
    samples = [sample for sample in variant.samples if metric in sample.metrics]
    requests = [requests_of(sample) or sample.work.get("requests", 1.0) for sample in samples]
    good = sum(n * sample.metrics.get(ATTAINMENT, 0.0) for n, sample in zip(requests, samples, strict=True))
    share, scale = good / sum(requests), 1.0
    if metric == GOODPUT:
        scale = sum(requests) / sum(map(_lasted_s, samples))
    low, high = share_interval(share, int(sum(requests)))
    return Summary(
        n=len(values),
        median=share * scale,
        ci95=(low * scale, high * scale),
        minimum=float(values.min()),
        maximum=float(values.max()),
    )


def _rate(variant: Variant, metric: str, values: np.ndarray) -> Summary:
    """Summarise a rate as the amount of all windows over their time, with the interval of a ratio of two sums."""
    samples = [sample for sample in variant.samples if metric in sample.metrics]
    lasted = np.array([_lasted_s(sample) for sample in samples])
    rate = float((values * lasted).sum() / lasted.sum())
    blocks = np.array([sample.block for sample in samples])
    _, owners = np.unique(blocks, return_inverse=True)
    missing = np.bincount(owners, (values - rate) * lasted) / np.bincount(owners, lasted).mean()
    units = independent_units(missing)
    half = get_centre(units.values, units.inflation, trim=0.0).half_width(0.05)
    return Summary(
        n=len(values),
        median=rate,
        ci95=(max(rate - half, 0.0), rate + half) if len(missing) >= MIN_BLOCKS else None,
        minimum=float(values.min()),
        maximum=float(values.max()),
    )


def _lasted_s(sample: Sample) -> float:
    """Return the seconds of a window of requests, or of an iteration."""
    rate, answered = sample.metrics.get("requests_per_second"), sample.work.get("requests")
    return answered / rate if rate and answered else sample.e2e_s


def get_summaries(variant: Variant) -> dict[str, Summary]:
    """Summarise all metrics of a variant, in the order of the record."""
    summaries = {metric: summarise(variant, metric) for metric in metric_names(variant)}
    return {metric: summary for metric, summary in summaries.items() if summary is not None}


def _median_interval(variant: Variant, metric: str, pairs: list[tuple[int, float]]) -> tuple[float, float] | None:
    """Return the percentile bootstrap interval of the median, resampling whole batches of blocks."""
    blocks, medians = block_medians(variant, metric)
    # As many batches as the series has independent parts, in the order of the blocks.
    if len(blocks) < MIN_BLOCKS:
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
