"""Comparisons and gates as records and `omni compare --json` keep them, back as what they were printed from.

A verdict against a baseline, or by a limit, cannot be computed anew without the other record and the gate's file.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec

from omni_cli.config.gate_file import GateLimits
from omni_cli.record import Variant
from omni_cli.report.bench_json import COMPARE_SCHEMA
from omni_cli.stats.comparable import Difference
from omni_cli.stats.compare import Comparison, Verdict, reversed_verdict
from omni_cli.stats.findings import Pair
from omni_cli.stats.gate import Gate, GateMetric, GateVerdict, MemoryPeak, Outputs
from omni_cli.stats.payback import Payback

Bounds = tuple[float, float]
Ratio = Annotated[float, msgspec.Meta(ge=1e-30, le=1e30)]


class StoredOutputs(msgspec.Struct, frozen=True):
    identical: bool | None = None
    max_abs_diff: float | None = None


class StoredPayback(msgspec.Struct, frozen=True, kw_only=True):
    mode: str
    other: str
    gained_s: float
    ci95: Bounds | None = None
    bytes_more: int | None = None
    preparation_s: float
    requests: int | None = None


class StoredComparison(msgspec.Struct, frozen=True, kw_only=True):
    """An entry of `comparisons`. One without a `ratio` key says only whether outputs agree."""

    metric: str
    a: str
    b: str
    a_median: float | None = None
    b_median: float | None = None
    ratio: Ratio | msgspec.UnsetType | None = msgspec.UNSET
    ci95: tuple[Ratio, Ratio] | None = None
    verdict: Verdict = "inconclusive"
    margin: Annotated[float, msgspec.Meta(ge=0, le=100)] = 0.0
    blocks: int = 0
    interleaved: bool = False
    blocks_needed: int | None = None
    reason: str | None = None
    outputs: StoredOutputs = StoredOutputs()
    payback: StoredPayback | None = None


class StoredMemory(msgspec.Struct, frozen=True, kw_only=True):
    metric: str
    a: str
    b: str
    a_bytes: int
    b_bytes: int


class StoredDifference(msgspec.Struct, frozen=True):
    field: str
    a: Any = None
    b: Any = None


class StoredGateMetric(msgspec.Struct, frozen=True, kw_only=True):
    metric: str
    a: str
    b: str
    verdict: GateVerdict
    limit: float
    change: float | None = None
    ci95: Bounds | None = None
    detectable: float | None = None
    p_value: float | None = None
    place: str | None = None
    reason: str | None = None
    blocks_needed: int | None = None


class StoredGate(msgspec.Struct, frozen=True, kw_only=True):
    verdict: GateVerdict
    max_abs_diff: float | None = None
    metrics: tuple[StoredGateMetric, ...] = ()
    mismatches: tuple[StoredDifference, ...] = ()
    reasons: tuple[str, ...] = ()


class Source(msgspec.Struct, frozen=True):
    path: str
    created: str = ""


class CompareDocument(msgspec.Struct, frozen=True, kw_only=True):
    """What `omni compare --json` prints."""

    schema: Literal["omni.compare/1"] = COMPARE_SCHEMA
    a: Source
    b: Source
    comparable: bool
    mismatches: tuple[StoredDifference, ...] = ()
    differences: tuple[StoredDifference, ...] = ()
    unmatched: tuple[str, ...] = ()
    failures: tuple[str, ...] = ()
    comparisons: tuple[StoredComparison, ...] = ()
    memory: tuple[StoredMemory, ...] = ()
    gate: StoredGate | None = None


@dataclass(frozen=True)
class Compared:
    """A pair, and whether the mode that it is about is worth its cost."""

    pair: Pair
    payback: Payback | None = None


def compared_of(comparisons: Sequence[StoredComparison], memory: Sequence[StoredMemory] = ()) -> tuple[Compared, ...]:
    """Entries of the same two variants make a pair, in order of appearance."""
    by_names: dict[tuple[str, str], list[StoredComparison]] = {}
    for item in comparisons:
        if item.ratio is not msgspec.UNSET:
            by_names.setdefault((item.a, item.b), []).append(item)
    return tuple(
        _compared(items, [peak for peak in memory if (peak.a, peak.b) == names]) for names, items in by_names.items()
    )


def gate_of(stored: StoredGate, values: Mapping[tuple[str, str, str], tuple[float, float]]) -> Gate:
    """`values` are both sides' by metric and names of the variants; a gate's entries do not repeat them."""
    metrics = tuple(_gate_metric(item, values.get((item.metric, item.a, item.b))) for item in stored.metrics)
    limits = GateLimits({item.metric: item.limit for item in stored.metrics}, stored.max_abs_diff)
    return Gate(stored.verdict, limits, metrics, differences_of(stored.mismatches), stored.reasons)


def differences_of(stored: Sequence[StoredDifference]) -> tuple[Difference, ...]:
    return tuple(Difference(item.field, item.a, item.b) for item in stored)


def _compared(items: Sequence[StoredComparison], memory: Sequence[StoredMemory]) -> Compared:
    a, b = items[0].a, items[0].b
    outputs = Outputs(a, b, items[0].outputs.identical, items[0].outputs.max_abs_diff)
    peaks = tuple(MemoryPeak(peak.metric, a, b, peak.a_bytes, peak.b_bytes) for peak in memory)
    pair = Pair(Variant(name=a), Variant(name=b), tuple(map(_comparison, items)), peaks, outputs)
    return Compared(pair, next((_payback(item) for item in items if item.payback), None))


def _comparison(item: StoredComparison) -> Comparison:
    return Comparison(
        item.metric, item.a, item.b,
        a_median=math.nan if item.a_median is None else item.a_median,
        b_median=math.nan if item.b_median is None else item.b_median,
        ratio=None if item.ratio is msgspec.UNSET else item.ratio,
        ci95=item.ci95, verdict=item.verdict, margin=item.margin, blocks=item.blocks, paired=item.interleaved,
        level=0.05, blocks_needed=item.blocks_needed, reason=item.reason,
    )  # fmt: skip


def _payback(item: StoredComparison) -> Payback | None:
    worth = item.payback
    if worth is None:
        return None
    verdict = item.verdict if worth.mode == item.b else reversed_verdict(item.verdict)
    return Payback(
        worth.mode, worth.other, verdict, worth.gained_s, worth.ci95, worth.bytes_more, worth.preparation_s,
        worth.requests,
    )  # fmt: skip


def _gate_metric(item: StoredGateMetric, values: tuple[float, float] | None) -> GateMetric:
    a_value, b_value = values or (None, None)
    return GateMetric(
        item.metric, item.a, item.b, item.verdict, item.limit, a_value=a_value, b_value=b_value, change=item.change,
        interval=item.ci95, p_value=item.p_value, detectable=item.detectable, blocks_needed=item.blocks_needed,
        place=item.place, reason=item.reason,
    )  # fmt: skip
