"""Operators of one profiled iteration of one stage, with their modules and ranges."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from omni_cli.profiling.trace_file import Event, TraceFile
from omni_cli.profiling.tracks import Innermost, Interval, merged
from omni_cli.stage.recording import MODULE_PREFIX, Recording

_DEVICE_CATEGORIES = ("kernel", "gpu_memcpy", "gpu_memset")
_MEMORY = "[memory]"


class Operator(msgspec.Struct, frozen=True, gc=False):
    """One call. `self_ns` excludes the operators that it called; `outermost` is the operator that began the call chain.

    `range_index` points into the recording's ranges, -1 for none. `is_outermost`, `begin_ns` and `end_ns` tell when
    the thread was inside any operator.
    """

    event: Event
    begin_ns: int
    end_ns: int
    self_ns: int
    module: str | None
    outermost: str
    is_outermost: bool
    range_index: int


class Allocation(msgspec.Struct, frozen=True, gc=False):
    """Memory of a tensor allocated (`num_bytes` > 0) or freed, in time order. `operator` is the outermost one."""

    at_ns: int
    num_bytes: int
    address: int
    device_type: int
    module: str | None
    operator: str | None
    range_index: int


@dataclass(frozen=True)
class DeviceWork:
    """A kernel or copy on a CUDA device, and the operator that launched it if known."""

    event: Event
    begin_ns: int
    end_ns: int
    operator: Operator | None


@dataclass(frozen=True)
class Operators:
    """Operators, allocations and device work; `recording` holds the ranges they point into."""

    recording: Recording
    calls: Sequence[Operator]
    allocations: Sequence[Allocation]
    device_work: Sequence[DeviceWork]

    def outermost_intervals(self) -> list[Interval]:
        """Intervals during which the thread was inside an operator."""
        return merged((call.begin_ns, call.end_ns) for call in self.calls if call.is_outermost)

    def device_intervals(self) -> list[Interval]:
        """Intervals during which the device was running anything."""
        return merged((work.begin_ns, work.end_ns) for work in self.device_work)


class _Frame(msgspec.Struct):
    event: Event
    begin_ns: int
    end_ns: int
    is_module: bool
    # The nearest enclosing operator, past any modules in between, and the outermost one.
    parent: _Frame | None
    top: _Frame | None
    module: str | None
    inside_ns: int = 0


def read_operators(trace: TraceFile, recording: Recording) -> Operators:
    """Read the main thread's operators and, for a CUDA device, the work that ran there."""
    thread = _main_thread(trace.events)
    events = [
        event
        for event in trace.events
        if event.tid == thread and (event.cat == "cpu_op" or (event.ph == "i" and event.name == _MEMORY))
    ]
    events.sort(key=lambda event: (event.ts, -(event.dur or 0)))
    frames, allocations = _nested(trace, events)
    innermost = Innermost(recording.ranges)
    middles = np.array([(frame.begin_ns + frame.end_ns) // 2 for frame in frames], np.int64)
    held_by = innermost.at(middles)
    calls = [_operator(frame, int(index)) for frame, index in zip(frames, held_by, strict=True)]
    moments = np.array([trace.begin_ns(event) for event, _ in allocations], np.int64)
    placed = [
        _allocation(trace, event, frame, int(index))
        for (event, frame), index in zip(allocations, innermost.at(moments), strict=True)
    ]
    return Operators(recording, calls, placed, _device_work(trace, calls))


def _main_thread(events: Sequence[Event]) -> int | str:
    """Return the thread that calls most operators."""
    counts: dict[int | str, float] = {}
    for event in events:
        if event.cat == "cpu_op":
            counts[event.tid] = counts.get(event.tid, 0) + 1
    return max(counts, key=counts.__getitem__, default=0)


def _nested(trace: TraceFile, events: Sequence[Event]) -> tuple[list[_Frame], list[tuple[Event, _Frame | None]]]:
    """Operators with their enclosing frames, and allocations with the operator or module they happened in."""
    opened: list[_Frame] = []
    operators: list[_Frame] = []
    allocations: list[tuple[Event, _Frame | None]] = []
    for event in events:
        begin_ns = trace.begin_ns(event)
        while opened and opened[-1].end_ns <= begin_ns:
            opened.pop()
        around = opened[-1] if opened else None
        if event.ph == "i":
            allocations.append((event, around))
            continue
        is_module = event.name.startswith(MODULE_PREFIX)
        parent = around.parent if around is not None and around.is_module else around
        module = event.name.removeprefix(MODULE_PREFIX) if is_module else (around.module if around else None)
        top = None if parent is None else parent.top or parent
        frame = _Frame(event, begin_ns, trace.end_ns(event), is_module, parent, top, module)
        opened.append(frame)
        if not is_module:
            operators.append(frame)
            if parent is not None:
                parent.inside_ns += frame.end_ns - begin_ns
    return operators, allocations


def _operator(frame: _Frame, range_index: int) -> Operator:
    top = frame.top or frame
    self_ns = max(0, frame.end_ns - frame.begin_ns - frame.inside_ns)
    return Operator(
        frame.event, frame.begin_ns, frame.end_ns, self_ns, frame.module, top.event.name, top is frame, range_index
    )


def _allocation(trace: TraceFile, event: Event, around: _Frame | None, range_index: int) -> Allocation:
    operator = None
    if around is not None:
        inside = around.parent if around.is_module else around
        operator = None if inside is None else (inside.top or inside).event.name
    return Allocation(
        trace.begin_ns(event),
        event.args.allocated_bytes or 0,
        event.args.address or 0,
        event.args.device_type or 0,
        None if around is None else around.module,
        operator,
        range_index,
    )


def _device_work(trace: TraceFile, calls: Sequence[Operator]) -> list[DeviceWork]:
    by_id: dict[int | None, Operator] = {call.event.args.external_id: call for call in calls}
    by_id.pop(None, None)
    return [
        DeviceWork(event, trace.begin_ns(event), trace.end_ns(event), by_id.get(event.args.external_id))
        for event in trace.events
        if event.cat in _DEVICE_CATEGORIES
    ]
