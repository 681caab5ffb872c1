"""One iteration as spans on a common time axis, and the share of each stage."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from omni_cli.profile_record import Span
from omni_cli.profiling.activity import windows
from omni_cli.profiling.tracks import Interval, length, merged, without
from omni_cli.stage.recording import Range, Recording, RequestSpan

CONNECTORS = "connectors"
OTHER = "other"


def waterfall(began_ns: int, recordings: Mapping[str, Recording]) -> tuple[Span, ...]:
    """Return spans of the stages' requests, their ranges and the connectors; `recordings` in chain order."""
    spans = []
    for name, recording in recordings.items():
        spans += [_span(name, "request", request, began_ns, 0) for request in recording.requests]
        spans += [_span(name, item.name, item, began_ns, item.depth + 1) for item in recording.ranges]
    spans += [
        Span(track=CONNECTORS, name=name, start_s=(begin - began_ns) / 1e9, duration_s=(end - begin) / 1e9)
        for name, begin, end in connectors(recordings)
    ]
    return tuple(sorted(spans, key=lambda span: (span.start_s, span.depth)))


def connectors(recordings: Mapping[str, Recording]) -> list[tuple[str, int, int]]:
    """Return (name, begin, end) from a request's end in one stage to its start in the next, unless they overlap."""
    spans = []
    names = list(recordings)
    for before, after in itertools.pairwise(names):
        begun = {request.request_id: request.began_ns for request in recordings[after].requests}
        for request in recordings[before].requests:
            end = begun.get(request.request_id, 0)
            if end > request.ended_ns:
                spans.append((f"{before} -> {after}", request.ended_ns, end))
    return spans


def stage_seconds(began_ns: int, e2e_s: float, recordings: Mapping[str, Recording]) -> dict[str, float]:
    """Seconds of an iteration per stage and connector, and `other`; the sum is `e2e_s`.

    Time shared by several stages counts for the first of them in the chain.
    """
    whole = [(began_ns, began_ns + round(e2e_s * 1e9))]
    taken: list[Interval] = []
    seconds: dict[str, float] = {}
    parts = {name: windows(recording) for name, recording in recordings.items()}
    for name, begin, end in connectors(recordings):
        parts[name] = merged([*parts.get(name, []), (begin, end)])
    for name, intervals in parts.items():
        own = without(_clipped(intervals, whole[0]), taken)
        seconds[name] = length(own) / 1e9
        taken = merged([*taken, *own])
    seconds[OTHER] = length(without(whole, taken)) / 1e9
    return seconds


def _clipped(intervals: Sequence[Interval], bounds: Interval) -> list[Interval]:
    low, high = bounds
    return [(max(begin, low), min(end, high)) for begin, end in intervals if end > low and begin < high]


def _span(track: str, name: str, item: Range | RequestSpan, began_ns: int, depth: int) -> Span:
    return Span(
        track=track,
        name=name,
        start_s=(item.began_ns - began_ns) / 1e9,
        duration_s=(item.ended_ns - item.began_ns) / 1e9,
        depth=depth,
    )
