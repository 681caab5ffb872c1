"""The referee of load tests: what made the conditions of compared servers unequal, or those of one server change.

It judges by the requests of a record, and by what a server showed beside them (`OBSERVATIONS`): how much faster it
answers prompts that it has seen, and how many requests it serves at once. Its rules are fixed, and wide enough that
noise breaks none of them.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from omni_cli.records.metrics import TPOT
from omni_cli.records.record import Variant, mapping, num_requests
from omni_cli.records.results import Difference
from omni_cli.stats.blocks import request_values
from omni_cli.stats.comparable import ABSENT, Disturbance, Kind

OBSERVATIONS = "observed"
"""The key of what a server showed, in its self-description in a record."""

_ALONE = {
    "repeated prompts": "{0.variant} is {0.amount:.3g} times as fast with them",
    "seen prompts": "{0.variant} is {0.amount:.3g} times as fast with them",
    "warming up": "{0.variant} took {0.amount:.3g} times as long at first",
    "busy client": "in {1} of the time",
    "late client": "with {1} of the requests to {0.variant}",
}
UNEQUAL = frozenset(_ALONE)
"""Conditions of one server, or of the client, under which it cannot be compared."""

_SAME_TOKENS = 0.005
_BUNDLE = 1.1
_CACHE_GAIN = 1.1
"""The least factor by which repeated prompts are faster, by the whole interval."""

_COLD_FACTOR, _LONG_COLD_FACTOR = 1.15, 1.3
_FEW_WINDOWS = 6


def conditions(variant: Variant) -> tuple[Disturbance, ...]:
    """Return what made a server's own figures those of other conditions than they seem to be."""
    observed, found = get_observed(variant), list[Disturbance]()
    again, own = _interval(observed, "again"), _interval(observed, "own")
    distinct = observed.get("distinct_requests")
    if again and again[0] > _CACHE_GAIN and isinstance(distinct, int) and distinct < num_requests(variant):
        found.append(Disturbance("repeated prompts", distinct, again[1], variant=variant.name))
    if own and own[0] > _CACHE_GAIN:
        found.append(Disturbance("seen prompts", 1.0, own[1], variant=variant.name))
    if (cold := _cold_share(variant)) is not None:
        found.append(Disturbance("warming up", 1.0, cold, variant=variant.name))
    per_chunk = tokens_per_chunk(variant)
    told = request_values(variant, "first_tokens")
    if per_chunk is not None and per_chunk > _BUNDLE and not told and request_values(variant, TPOT):
        found.append(Disturbance("estimated tpot", 1.0, per_chunk, variant=variant.name))
    return tuple(found)


def inequalities(a: Variant, b: Variant) -> tuple[Disturbance, ...]:
    """Return the conditions in which two servers under one load differ; `share` is the amount of `a`, `amount` that of
    `b`."""
    if any(a.settings.get(key) != b.settings.get(key) for key in ("concurrency", "request_rate")):
        return ()
    found: list[tuple[Kind, float, float]] = []
    columns: dict[Kind, str] = {"prompt tokens": "input_tokens", "answer tokens": "output_tokens"}
    for kind, column in columns.items():
        left, right = (_mean(request_values(variant, column)) for variant in (a, b))
        if left is not None and right is not None and not math.isclose(left, right, rel_tol=_SAME_TOKENS):
            found.append((kind, left, right))
    left, right = tokens_per_chunk(a), tokens_per_chunk(b)
    if left is not None and right is not None and max(left, right) > _BUNDLE * min(left, right):
        found.append(("bundled", left, right))
    limits, at_once = (
        [get_observed(variant).get(key) or 0 for variant in (a, b)] for key in ("parallel_limit", "served_at_once")
    )
    # Where requests arrive at given times, a server without a sign of a limit has none that it exceeded.
    if limits[0] != limits[1] and (all(limits) or not any(at_once) or at_once[limits.index(0)] > max(limits)):
        found.append(("parallel limit", limits[0], limits[1]))
    return tuple(Disturbance(kind, left, right, variant=b.name, other=a.name) for kind, left, right in found)


def as_differences(unequal: Sequence[Disturbance]) -> tuple[Difference, ...]:
    """Return conditions as fields that differ, `conditions.bundled`; those of one server have no other side."""
    return tuple(
        Difference(f"conditions.{item.kind}", ABSENT, _ALONE[item.kind].format(item, f"{item.share:.0%}"))
        if item.kind in _ALONE
        else Difference(f"conditions.{item.kind}", item.share, item.amount)
        for item in unequal
    )


def get_observed(variant: Variant) -> Mapping[str, Any]:
    """Return what the server showed beside the requests of the record; empty if nobody looked."""
    return mapping(mapping(variant.effective.get("server")).get(OBSERVATIONS))


def tokens_per_chunk(variant: Variant) -> float | None:
    """Return the mean number of output tokens in a chunk, without those that are not sent; None if either is not known,
    or with speech."""
    tokens, chunks, hidden = (request_values(variant, name) for name in ("output_tokens", "chunks", "hidden_tokens"))
    is_speech = bool(request_values(variant, "audio_s"))
    return (
        (sum(tokens) - sum(hidden)) / sum(chunks) if tokens and len(tokens) == len(chunks) and not is_speech else None
    )


def _cold_share(variant: Variant) -> float | None:
    """Return the factor by which the first windows were slower than the last ones; None unless each of the first
    quarter was slower than all of the second half, by `_COLD_FACTOR`, or each of the first half than all of the last
    quarter, by `_LONG_COLD_FACTOR`."""
    times = [sample.e2e_s for sample in sorted(variant.samples, key=lambda item: (item.block, item.position))]
    if len(times) < _FEW_WINDOWS:
        return None
    half, quarter = len(times) // 2, max(2, len(times) // 4)
    for first, rest, factor in (
        (times[:quarter], times[half:], _COLD_FACTOR),
        (times[:half], times[-quarter:], _LONG_COLD_FACTOR),
    ):
        if min(first) > factor * max(rest):
            return statistics.median(first) / statistics.median(rest)
    return None


def _mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None


def _interval(observed: Mapping[str, Any], key: str) -> tuple[float, float, float] | None:
    """Return (low, ratio, high); None unless the record has these three numbers."""
    values = observed.get(key)
    is_whole = isinstance(values, Sequence) and len(values) == 3 and all(isinstance(item, float) for item in values)
    return (values[0], values[1], values[2]) if is_whole and values is not None else None
