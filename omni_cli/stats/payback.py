"""Whether a faster mode is worth what it costs: seconds to prepare it, bytes to keep it, requests to earn it back."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from omni_cli.record import E2E, Variant
from omni_cli.stats.compare import Comparison, Verdict, reversed_verdict

PREPARATION = ("capture_s", "compile_s")
"""Counters of seconds that are spent once, so that later runs are faster."""

PREPARED_MODES = frozenset({"execution", "cudagraph_mode"})
MODES = PREPARED_MODES | {"output_copy"}


@dataclass(frozen=True)
class Payback:
    """What `mode` gains and costs against `other`, the other variant of the pair.

    `gained_s` are seconds a request, below 0 where it is slower; `interval` is theirs, where there is one. `bytes_more`
    is of device memory allocated, or of resident host memory where there is no device. `requests` is how many of them
    earn `preparation_s` back: None where it is not faster, or not surely so.
    """

    mode: str
    other: str
    verdict: Verdict
    gained_s: float
    interval: tuple[float, float] | None
    bytes_more: int | None
    preparation_s: float
    requests: int | None


def payback(a: Variant, b: Variant, comparison: Comparison) -> Payback | None:
    """Of the variant that had more to prepare; None where neither had anything, and no mode was compared."""
    prepared = {variant.name: _preparation_s(variant) for variant in (a, b)}
    varied = _varied_keys(a, b)
    more_s = prepared[b.name] - prepared[a.name]
    if all(prepared.values()) and not varied & PREPARED_MODES:
        more_s = 0.0  # both prepare the same, and each time it takes a little more or less
    if comparison.metric != E2E or comparison.ratio is None or not (more_s or varied & MODES):
        return None
    per_request = comparison.a_median / _requests(a)
    gained_s = per_request * (1 - comparison.ratio)
    interval = None
    if comparison.ci95 is not None:
        interval = (per_request * (1 - comparison.ci95[1]), per_request * (1 - comparison.ci95[0]))
    bytes_more = _bytes_more(a, b)
    mode, other, verdict = b.name, a.name, comparison.verdict
    if more_s < 0:
        mode, other, more_s, gained_s = other, mode, -more_s, -gained_s
        interval = None if interval is None else (-interval[1], -interval[0])
        bytes_more = None if bytes_more is None else -bytes_more
        verdict = reversed_verdict(verdict)
    requests = math.ceil(more_s / gained_s) if verdict == "faster" else None
    return Payback(mode, other, verdict, gained_s, interval, bytes_more, more_s, requests)


def counters_of(variant: Variant) -> Mapping[str, Mapping[str, float]]:
    """By stage, what had happened since it began to load when the variant's last run ended."""
    engagement = variant.effective.get("engagement")
    if not isinstance(engagement, Mapping):
        return {}
    return {stage: counters for stage, counters in engagement.items() if isinstance(counters, Mapping)}


def _preparation_s(variant: Variant) -> float:
    return sum(
        float(counters.get(name, 0.0)) for counters in counters_of(variant).values() for name in PREPARATION
    )  # fmt: skip


def _varied_keys(a: Variant, b: Variant) -> set[str]:
    """Keys of stages that the variants differ in."""
    keys = a.settings.keys() | b.settings.keys()
    return {str(key).rpartition(".")[2] for key in keys if a.settings.get(key) != b.settings.get(key)}


def _requests(variant: Variant) -> float:
    """Requests in one run."""
    return next((sample.work["requests"] for sample in variant.samples if sample.work.get("requests")), 1.0)


def _bytes_more(a: Variant, b: Variant) -> int | None:
    for name in ("peak_allocated_bytes", "peak_reserved_bytes", "peak_host_rss_bytes"):
        in_a, in_b = getattr(a.memory, name), getattr(b.memory, name)
        if in_a and in_b:
            return int(in_b - in_a)
    return None
