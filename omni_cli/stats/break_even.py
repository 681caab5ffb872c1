"""The price of a faster mode: seconds to prepare it, bytes to keep it, requests to earn it back."""

from __future__ import annotations

import math
from collections.abc import Sequence

from omni_cli.metrics import E2E
from omni_cli.record import Variant, get_counters
from omni_cli.results import BreakEven, Comparison, MemoryPeak, Verdict
from omni_cli.stats.compare import reversed_verdict

PREPARATION = ("capture_s", "compile_s")
"""Counters of seconds that are spent once, so that later runs are faster."""

PREPARED_MODES = frozenset({"execution", "cudagraph_mode"})
MODES = PREPARED_MODES | {"output_copy"}


def break_even(a: Variant, b: Variant, comparison: Comparison, memory: Sequence[MemoryPeak]) -> BreakEven | None:
    """Return the break-even point of the variant that took longer to prepare; None without preparation and modes."""
    prepared = {variant.name: _preparation_s(variant) for variant in (a, b)}
    varied = _varied_keys(a, b)
    more_s = prepared[b.name] - prepared[a.name]
    if all(prepared.values()) and not varied & PREPARED_MODES:
        more_s = 0.0  # equal preparation, whose time varies
    if comparison.metric != E2E or comparison.ratio is None or not (more_s or varied & MODES):
        return None
    per_request = (comparison.a_median or 0.0) / _requests(a)
    gained_s = per_request * (1 - comparison.ratio)
    interval = None
    if comparison.ci95 is not None:
        interval = (per_request * (1 - comparison.ci95[1]), per_request * (1 - comparison.ci95[0]))
    bytes_more = _bytes_more(memory)
    mode, other, wanted = b.name, a.name, "faster"
    if more_s < 0:
        mode, other, more_s, gained_s = other, mode, -more_s, -gained_s
        interval = None if interval is None else (-interval[1], -interval[0])
        bytes_more = None if bytes_more is None else -bytes_more
        wanted = "slower"
    requests = math.ceil(more_s / gained_s) if comparison.verdict == wanted else None
    return BreakEven(
        mode=mode, other=other, gained_s=gained_s, ci95=interval, bytes_more=bytes_more, preparation_s=more_s,
        requests=requests,
    )  # fmt: skip


def verdict_on_mode(comparison: Comparison, item: BreakEven) -> Verdict:
    """Return the verdict on the mode, which may be either side of the comparison."""
    return comparison.verdict if item.mode == comparison.b else reversed_verdict(comparison.verdict)


def _preparation_s(variant: Variant) -> float:
    return sum(
        float(counters.get(name, 0.0)) for counters in get_counters(variant).values() for name in PREPARATION
    )  # fmt: skip


def _varied_keys(a: Variant, b: Variant) -> set[str]:
    """Return the keys of stages in which the variants differ."""
    keys = a.settings.keys() | b.settings.keys()
    return {str(key).rpartition(".")[2] for key in keys if a.settings.get(key) != b.settings.get(key)}


def _requests(variant: Variant) -> float:
    """Return the number of requests in one run."""
    return next((sample.work["requests"] for sample in variant.samples if sample.work.get("requests")), 1.0)


def _bytes_more(memory: Sequence[MemoryPeak]) -> int | None:
    """Return the difference of the first measured peak; None if it may be noise."""
    peak = next(iter(memory), None)
    return None if peak is None or peak.verdict in ("inconclusive", "no difference") else peak.b_bytes - peak.a_bytes
