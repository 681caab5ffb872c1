"""An iteration on a common time axis: as spans, as seconds per stage, and as one trace of all stages."""

from __future__ import annotations

import gzip
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from omni_cli.measure.profiling.activity import windows
from omni_cli.measure.profiling.operators import Event, TraceFile
from omni_cli.measure.profiling.ranges import Interval, length, merge_intervals, within, without
from omni_cli.measure.profiling.session import Profiled
from omni_cli.records.profile_record import Span
from omni_cli.stage.recording import Range, Recording, RequestSpan

RANGES_PID = 1
_STAGE_PIDS = 100
_GZIP_LEVEL = 5

CONNECTORS = "connectors"
OTHER_PART = "other"


def merged_trace(profiled: Sequence[Profiled], traces: Mapping[int, Mapping[str, TraceFile]]) -> bytes:
    """Return a gzipped Chrome trace; `traces` holds the kept ones by iteration and stage.

    Times are microseconds since the start of the first profiled iteration.
    """
    base_ns = profiled[0].began_ns
    tids: dict[str, int] = {}
    events: list[Event | dict[str, object]] = []
    for track, name, begin_ns, end_ns, args in _range_events(profiled):
        events.append({
            "ph": "X", "cat": "omni", "name": name, "pid": RANGES_PID, "tid": tids.setdefault(track, len(tids) + 1),
            "ts": (begin_ns - base_ns) / 1000, "dur": (end_ns - begin_ns) / 1000, "args": args,
        })  # fmt: skip
    names = [_name_event("thread_name", RANGES_PID, tid, track) for track, tid in tids.items()]
    for index, stage in enumerate(profiled[0].recordings, start=1):
        events += _stage_events(stage, index * _STAGE_PIDS, [item[stage] for item in traces.values()], base_ns)
    first = _name_event("process_name", RANGES_PID, 0, "omni")
    document = {"displayTimeUnit": "ms", "baseTimeNanoseconds": base_ns, "traceEvents": [first, *names, *events]}
    return gzip.compress(msgspec.json.encode(document), compresslevel=_GZIP_LEVEL, mtime=0)


def _range_events(profiled: Sequence[Profiled]) -> Iterator[tuple[str, str, int, int, dict[str, object]]]:
    """Yield track, name, begin and end in nanoseconds, and arguments of each span."""
    for number, one in enumerate(profiled, start=1):
        yield "iterations", f"iteration {number}", one.began_ns, one.began_ns + round(one.iteration.e2e_s * 1e9), {}
        for stage, recording in one.recordings.items():
            for lane, request in _lanes(recording.requests):
                track = f"{stage}: requests" + (f" {lane + 1}" if lane else "")
                args: dict[str, object] = {"request": request.request_id}
                yield track, f"{stage} request", request.began_ns, request.ended_ns, args
            for item in recording.ranges:
                yield stage, item.name, item.began_ns, item.ended_ns, {}
        for name, begin_ns, end_ns in connectors(one.recordings):
            yield CONNECTORS, name, begin_ns, end_ns, {}


def _lanes(requests: Sequence[RequestSpan]) -> Iterator[tuple[int, RequestSpan]]:
    """Assign concurrent requests to different lanes, since events on one track must nest."""
    free_from: list[int] = []
    for request in sorted(requests, key=lambda item: item.began_ns):
        lane = next((index for index, free in enumerate(free_from) if free <= request.began_ns), len(free_from))
        free_from[lane : lane + 1] = [request.ended_ns]
        yield lane, request


def _stage_events(
    stage: str, first_pid: int, traces: Iterable[TraceFile], base_ns: int
) -> Iterator[Event | dict[str, object]]:
    """Yield a stage's own events, with process ids that are unique across stages, and their names."""
    pids: dict[int, int] = {}
    labels: dict[int, str] = {}
    threads: dict[tuple[int, int | str], str] = {}
    used = set[int]()  # a trace also names devices on which nothing ran
    for trace in traces:
        shift_us = (trace.base_ns - base_ns) / 1000
        for event in trace.events:
            if isinstance(event.pid, str):
                continue  # the profiler's own tracks, which record when it was on
            pid = pids.setdefault(event.pid, first_pid + len(pids))
            if event.ph != "M":
                used.add(pid)
                yield replace(
                    event,
                    pid=pid,
                    ts=None if event.ts is None else event.ts + shift_us,
                    id=None if event.id is None else f"{stage}-{event.id}",
                )
            elif event.name == "process_labels":
                labels[pid] = event.args.labels or ""
            elif event.name == "thread_name":
                threads[pid, event.tid] = event.args.name or ""
    for own_pid, pid in pids.items():
        if pid in used:
            yield _name_event("process_name", pid, 0, f"{stage}: {labels.get(pid) or own_pid}")
    for (pid, tid), name in threads.items():
        if pid in used:
            yield _name_event("thread_name", pid, tid, name)


def _name_event(kind: str, pid: int, tid: int | str, name: str) -> dict[str, object]:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": {"name": name}}


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
        parts[name] = merge_intervals([*parts.get(name, []), (begin, end)])
    for name, intervals in parts.items():
        own = without(within(intervals, whole), taken)
        seconds[name] = length(own) / 1e9
        taken = merge_intervals([*taken, *own])
    seconds[OTHER_PART] = length(without(whole, taken)) / 1e9
    return seconds


def _span(track: str, name: str, item: Range | RequestSpan, began_ns: int, depth: int) -> Span:
    return Span(
        track=track,
        name=name,
        start_s=(item.began_ns - began_ns) / 1e9,
        duration_s=(item.ended_ns - item.began_ns) / 1e9,
        depth=depth,
    )
