"""Peaks of memory, variant against variant: exact where an allocator counts them, with an interval where not.

Host RSS is the size of a process, and two loads of the same code differ in it: the peak of loading hardly (0.2 MiB),
that of running by an eighth of what running adds, since it depends on which threads' buffers are alive at once
(`benchmarks/host_rss_noise.py`). A variant is usually loaded once: its own samples say nothing about this noise.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from omni_cli.record import Variant
from omni_cli.results import Bounds, MemoryPeak, MemoryVerdict
from omni_cli.stats.metrics import HOST_RSS, REPORTED_MEMORY

RUN_NOISE = 0.12
"""Standard deviation between loads, as a share of what running adds to the peak of loading: 0.119 was measured."""

LOAD_NOISE_BYTES = 2**20
"""The same of the peak of loading, per process; 0.2 MiB was measured."""

REACH = 3.0
"""Standard deviations to either side: one comparison in several hundred of equal code lies beyond."""


def memory_peaks(a: Variant, b: Variant, margin: float) -> tuple[MemoryPeak, ...]:
    """The peaks that both variants measured."""
    found = []
    for metric in REPORTED_MEMORY:
        a_bytes, b_bytes = getattr(a.memory, metric), getattr(b.memory, metric)
        if a_bytes and b_bytes:
            peak = MemoryPeak(
                metric=metric, a=a.name, b=b.name, a_bytes=a_bytes, b_bytes=b_bytes, ratio=b_bytes / a_bytes,
                verdict="same" if a_bytes == b_bytes else "more memory" if b_bytes > a_bytes else "less memory",
            )  # fmt: skip
            found.append(_with_bounds(peak, a, b, margin) if metric == HOST_RSS else peak)
    return tuple(found)


def _with_bounds(peak: MemoryPeak, a: Variant, b: Variant, margin: float) -> MemoryPeak:
    reach = REACH * math.hypot(_noise_bytes(a), _noise_bytes(b))
    bounds = (max(0.0, peak.b_bytes - reach) / peak.a_bytes, (peak.b_bytes + reach) / peak.a_bytes)
    return MemoryPeak(
        metric=peak.metric, a=peak.a, b=peak.b, a_bytes=peak.a_bytes, b_bytes=peak.b_bytes, ratio=peak.ratio,
        verdict=_verdict(bounds, margin), bounds=bounds,
    )  # fmt: skip


def _verdict(bounds: Bounds, margin: float) -> MemoryVerdict:
    """As for times: a verdict needs the whole interval beyond the margin, no difference the whole one within it."""
    low, high = bounds
    if low > 1 + margin:
        return "more memory"
    if high < 1 / (1 + margin):
        return "less memory"
    return "no difference" if 1 / (1 + margin) <= low and high <= 1 + margin else "inconclusive"


def _noise_bytes(variant: Variant) -> float:
    """The standard deviation of a variant's host RSS between loads, of all its processes together."""
    stages = [stage for stage in variant.memory.stages.values() if isinstance(stage, Mapping)]
    added = [_peak(stage, "run") - _peak(stage, "load") for stage in stages if _peak(stage, "run")]
    if not added:
        # What loading took is unknown: all of it may be what running added.
        added = [float(variant.memory.peak_host_rss_bytes or 0)]
    return math.hypot(*(math.hypot(RUN_NOISE * max(0.0, more), LOAD_NOISE_BYTES) for more in added))


def _peak(stage: Mapping[str, object], phase: str) -> float:
    peaks = stage.get(phase)
    value = peaks.get(HOST_RSS) if isinstance(peaks, Mapping) else None
    return float(value) if isinstance(value, int | float) else 0.0
