"""What is known of a metric from its name: which direction is good, and whether it is a size."""

from __future__ import annotations

GATED_MEMORY = ("peak_allocated_bytes", "peak_host_rss_bytes")
REPORTED_MEMORY = ("peak_allocated_bytes", "peak_reserved_bytes", "peak_host_rss_bytes")


def higher_is_better(metric: str) -> bool:
    """Rates, `rtfx` (seconds of audio a second) and the share of requests that keep their limits (`slo_attainment`);
    everything else is a time or a ratio to time."""
    return metric.endswith("_per_second") or metric.rpartition(".")[2] in ("rtfx", "slo_attainment")
