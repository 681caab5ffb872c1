"""Facts about a metric that follow from its name: whether more is better, and the samples that a percentile needs."""

from __future__ import annotations

import math

HOST_RSS = "peak_host_rss_bytes"
ALLOCATED = "peak_allocated_bytes"
GATED_MEMORY = (ALLOCATED, HOST_RSS)
REPORTED_MEMORY = (ALLOCATED, "peak_reserved_bytes", HOST_RSS)

PERCENTILES = (90, 99)
_CONFIDENCE = 0.99


def higher_is_better(metric: str) -> bool:
    """True for rates, `rtfx` (seconds of audio per second) and the share of requests within their limits
    (`slo_attainment`); everything else is a time or a ratio to one."""
    return metric.endswith("_per_second") or metric.rpartition(".")[2] in ("rtfx", "slo_attainment")


def samples_for(percentile: int) -> int:
    """Return the number of samples of which, with 99 % confidence, at least one exceeds the percentile (90: 44)."""
    return math.ceil(math.log(1 - _CONFIDENCE) / math.log(percentile / 100))
