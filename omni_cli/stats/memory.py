"""Peaks of memory, variant against variant: exact if an allocator counts them, else with an interval.

Host RSS is the size of a process, and differs between two loads of the same code: the peak while loading hardly
(0.2 MiB), the peak while running by an eighth of what running adds, depending on which threads' buffers exist at the
same time (`benchmarks/equal_variants.py`). A variant is usually loaded once, so its samples do not show this noise.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from omni_cli.metrics import HOST_RSS, REPORTED_MEMORY
from omni_cli.record import Variant
from omni_cli.results import Bounds, MemoryPeak, MemoryVerdict

RUN_NOISE = 0.12
"""Standard deviation between loads, as a share of what running adds to the peak of loading; measured: 0.119."""

LOAD_NOISE_BYTES = 2**20
"""Standard deviation of the peak while loading, per process; measured: 0.2 MiB."""

REACH = 3.0
"""Width of the interval to either side in standard deviations: one comparison of equal code in several hundred
exceeds it."""


def memory_peaks(a: Variant, b: Variant, margin: float) -> tuple[MemoryPeak, ...]:
    """Compare the peaks that both variants measured."""
    peaks = []
    for metric in REPORTED_MEMORY:
        a_bytes, b_bytes = getattr(a.memory, metric), getattr(b.memory, metric)
        if a_bytes and b_bytes:
            peak = MemoryPeak(
                metric=metric, a=a.name, b=b.name, a_bytes=a_bytes, b_bytes=b_bytes, ratio=b_bytes / a_bytes,
                verdict="same" if a_bytes == b_bytes else "more memory" if b_bytes > a_bytes else "less memory",
            )  # fmt: skip
            peaks.append(_with_bounds(peak, a, b, margin) if metric == HOST_RSS else peak)
    return tuple(peaks)


def _with_bounds(peak: MemoryPeak, a: Variant, b: Variant, margin: float) -> MemoryPeak:
    reach = REACH * math.hypot(_noise_bytes(a), _noise_bytes(b))
    bounds = (max(0.0, peak.b_bytes - reach) / peak.a_bytes, (peak.b_bytes + reach) / peak.a_bytes)
    return MemoryPeak(
        metric=peak.metric, a=peak.a, b=peak.b, a_bytes=peak.a_bytes, b_bytes=peak.b_bytes, ratio=peak.ratio,
        verdict=_verdict(bounds, margin), bounds=bounds,
    )  # fmt: skip


def _verdict(bounds: Bounds, margin: float) -> MemoryVerdict:
    """Judge as for times: a verdict needs the whole interval beyond the margin, no difference all of it within."""
    low, high = bounds
    if low > 1 + margin:
        return "more memory"
    if high < 1 / (1 + margin):
        return "less memory"
    return "no difference" if 1 / (1 + margin) <= low and high <= 1 + margin else "inconclusive"


def _noise_bytes(variant: Variant) -> float:
    """Return the standard deviation of a variant's host RSS between loads, over all its processes."""
    stages = [stage for stage in variant.memory.stages.values() if isinstance(stage, Mapping)]
    added = [_peak(stage, "run") - _peak(stage, "load") for stage in stages if _peak(stage, "run")]
    if not added:
        # The share of loading is unknown, so all of it may be what running added.
        added = [float(variant.memory.peak_host_rss_bytes or 0)]
    return math.hypot(*(math.hypot(RUN_NOISE * max(0.0, more), LOAD_NOISE_BYTES) for more in added))


def _peak(stage: Mapping[str, object], phase: str) -> float:
    peaks = stage.get(phase)
    value = peaks.get(HOST_RSS) if isinstance(peaks, Mapping) else None
    return float(value) if isinstance(value, int | float) else 0.0
