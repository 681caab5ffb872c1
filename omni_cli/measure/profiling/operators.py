"""Operators of one profiled iteration of a stage, read from torch's trace: modules, ranges, times and copies."""

from __future__ import annotations

import math
import re
import shutil
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from omni_cli.core.errors import OutputError
from omni_cli.measure.profiling.ranges import Innermost, Interval, merge_intervals
from omni_cli.records.profile_record import Copies, CopyPlace, OperatorTime, base_name
from omni_cli.stage.recording import MODULE_PREFIX, Recording, module_kind

_DEVICE_CATEGORIES = ("kernel", "gpu_memcpy", "gpu_memset")
# What the host waits in, and without a device what reads numbers, which waits if they are on one.
_WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaMemcpy")
_READS = ("aten::_local_scalar_dense", "aten::nonzero")
_MEMORY = "[memory]"
_COPY = "aten::copy_"
_OUTSIDE = "(outside modules)"
_OUTSIDE_RANGES = "(outside ranges)"
_MAX_OPERATORS = 40
_MAX_PLACES = 20

# Per iteration, by the columns that identify a row: calls, bytes, seconds.
_Rows = dict[tuple[str, ...], list[float]]
_TYPE_BYTES = {
    "float": 4, "double": 8, "long int": 8, "int": 4, "short int": 2, "bool": 1, "unsigned char": 1, "signed char": 1,
    "c10::BFloat16": 2, "c10::Half": 2, "c10::complex<float>": 8,
}  # fmt: skip


class EventArgs(msgspec.Struct, frozen=True, omit_defaults=True):
    """Arguments of an event. Fields not listed are dropped, which halves the size of a trace.

    Operators have inputs; allocations an address and bytes; device work its launching call, device and stream.
    """

    input_dims: Any = msgspec.field(name="Input Dims", default=None)
    input_types: Any = msgspec.field(name="Input type", default=None)
    external_id: int | None = msgspec.field(name="External id", default=None)
    allocated_bytes: int | None = msgspec.field(name="Bytes", default=None)
    address: int | None = msgspec.field(name="Addr", default=None)
    device_type: int | None = msgspec.field(name="Device Type", default=None)
    total_allocated: int | None = msgspec.field(name="Total Allocated", default=None)
    total_reserved: int | None = msgspec.field(name="Total Reserved", default=None)
    copied_bytes: int | None = msgspec.field(name="bytes", default=None)
    device: Any = None
    stream: Any = None
    correlation: Any = None
    grid: Any = None
    block: Any = None
    name: str | None = None
    labels: str | None = None

    def first_input_bytes(self) -> int:
        """Bytes of the first input, which a copying operator writes to; 0 if it is not a tensor."""
        if not self.input_dims or not self.input_types:
            return 0
        dims = self.input_dims[0]
        if not all(isinstance(size, int) for size in dims):
            return 0
        return int(math.prod(dims)) * _TYPE_BYTES.get(self.input_types[0], 0)


class Event(msgspec.Struct, frozen=True, omit_defaults=True):
    """`ts` and `dur` are microseconds, `ts` from the trace's base. `id`, `bp` and `s` link events."""

    ph: str
    name: str = ""
    cat: str = ""
    ts: float | None = None
    dur: float | None = None
    pid: int | str = ""
    tid: int | str = ""
    id: int | str | None = None
    bp: str | None = None
    s: str | None = None
    args: EventArgs = EventArgs()


class TraceFile(msgspec.Struct, frozen=True):
    """A `ts` of 0 is `base_ns` on the wall clock."""

    events: tuple[Event, ...] = msgspec.field(name="traceEvents")
    base_ns: int = msgspec.field(name="baseTimeNanoseconds", default=0)

    def ns(self, ts: float) -> int:
        """Convert a trace time to the wall clock."""
        return self.base_ns + round(ts * 1000)

    def begin_ns(self, event: Event) -> int:
        assert event.ts is not None, f"{event.ph} {event.name} has no time"
        return self.ns(event.ts)

    def end_ns(self, event: Event) -> int:
        assert event.ts is not None and event.dur is not None, f"{event.ph} {event.name} has no duration"
        return self.ns(event.ts + event.dur)


_decode = msgspec.json.Decoder(TraceFile).decode


def read_trace(path: Path, stage: str) -> TraceFile:
    """Read a trace. Raises `OutputError` for a truncated file: torch does not report a full disk."""
    try:
        return _decode(path.read_bytes())
    except (OSError, msgspec.DecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is truncated"
        if shutil.disk_usage(path.parent).free < 2**20:  # torch may also have created no file at all
            reason = "No space left on device"
        raise OutputError(
            f"could not save the trace of stage `{stage}`: {reason}",
            hint="check for a full disk, or choose another folder with `--output-dir DIR`",
        ) from error


class Operator(msgspec.Struct, gc=False):
    """One call, or a module in which operators are called; `parent` is the operator that called it, past any modules in
    between, and `top` the one that began the call chain, None for that one itself.

    `inside_ns` is the time in the operators that it called; `range_index` points into the recording's ranges, -1 for
    none.
    """

    event: Event
    begin_ns: int
    end_ns: int
    is_module: bool
    module: str | None
    parent: Operator | None
    top: Operator | None
    inside_ns: int = 0
    range_index: int = -1

    @property
    def self_ns(self) -> int:
        return max(0, self.end_ns - self.begin_ns - self.inside_ns)

    @property
    def outermost(self) -> str:
        return (self.top or self).event.name


class Allocation(msgspec.Struct, gc=False):
    """Memory of a tensor allocated (`num_bytes` > 0) or freed, in time order. `operator` is the outermost one."""

    at_ns: int
    num_bytes: int
    address: int
    device_type: int
    module: str | None
    operator: str | None
    range_index: int = -1


@dataclass(frozen=True)
class DeviceWork:
    """A kernel or copy on a CUDA device, or a call of its library, and the operator that launched it if known."""

    event: Event
    begin_ns: int
    end_ns: int
    operator: Operator | None


@dataclass(frozen=True)
class Operators:
    """Operators, allocations and device work; `recording` holds the ranges they point into.

    `waits` are (moment, operator) where the host waits for the device, or reads a number if the stage has none.
    """

    recording: Recording
    calls: Sequence[Operator]
    allocations: Sequence[Allocation]
    device_work: Sequence[DeviceWork]
    waits: Sequence[tuple[int, str]] = ()

    def outermost_intervals(self) -> list[Interval]:
        """Intervals during which the thread was inside an operator."""
        return merge_intervals((call.begin_ns, call.end_ns) for call in self.calls if call.top is None)

    def device_intervals(self) -> list[Interval]:
        """Intervals during which the device was running anything."""
        return merge_intervals((work.begin_ns, work.end_ns) for work in self.device_work)


def read_operators(trace: TraceFile, recording: Recording) -> Operators:
    """Read the main thread's operators and, for a CUDA device, the work that ran there."""
    # The main thread is the one that calls most operators.
    counts = Counter(event.tid for event in trace.events if event.cat == "cpu_op")
    thread = max(counts, key=counts.__getitem__, default=0)
    events = [
        event
        for event in trace.events
        if event.tid == thread and (event.cat == "cpu_op" or (event.ph == "i" and event.name == _MEMORY))
    ]
    events.sort(key=lambda event: (event.ts, -(event.dur or 0)))
    calls, allocations = _nest_events(trace, events)
    middles = [(call.begin_ns + call.end_ns) // 2 for call in calls]
    moments = np.array([*middles, *(item.at_ns for item in allocations)], np.int64)
    items: list[Operator | Allocation] = [*calls, *allocations]
    for item, index in zip(items, Innermost(recording.ranges).at(moments), strict=True):
        item.range_index = int(index)
    launched = _find_launches(trace, calls)
    work = [item for item in launched if item.event.cat in _DEVICE_CATEGORIES]
    waits = [(call.begin_ns, call.outermost) for call in calls if call.event.name in _READS]
    if work:
        called = [item for item in launched if item.event.name in _WAITS]
        waits = [(item.begin_ns, item.operator.outermost if item.operator else item.event.name) for item in called]
    return Operators(recording, calls, allocations, work, waits)


def _nest_events(trace: TraceFile, events: Sequence[Event]) -> tuple[list[Operator], list[Allocation]]:
    """Operators with those around them, and allocations with the operator or module they happened in."""
    opened: list[Operator] = []
    operators: list[Operator] = []
    allocations: list[Allocation] = []
    for event in events:
        begin_ns, args = trace.begin_ns(event), event.args
        while opened and opened[-1].end_ns <= begin_ns:
            opened.pop()
        around = opened[-1] if opened else None
        parent = around.parent if around is not None and around.is_module else around
        module = None if around is None else around.module
        if event.ph == "i":
            sizes = args.allocated_bytes or 0, args.address or 0, args.device_type or 0
            allocations.append(Allocation(begin_ns, *sizes, module, None if parent is None else parent.outermost))
            continue
        is_module = event.name.startswith(MODULE_PREFIX)
        module = event.name.removeprefix(MODULE_PREFIX) if is_module else module
        top = None if parent is None else parent.top or parent
        opened.append(Operator(event, begin_ns, trace.end_ns(event), is_module, module, parent, top))
        if not is_module:
            operators.append(opened[-1])
            if parent is not None:
                parent.inside_ns += opened[-1].end_ns - begin_ns
    return operators, allocations


def _find_launches(trace: TraceFile, calls: Sequence[Operator]) -> list[DeviceWork]:
    by_id: dict[int | None, Operator] = {call.event.args.external_id: call for call in calls}
    by_id.pop(None, None)
    return [
        DeviceWork(event, trace.begin_ns(event), trace.end_ns(event), by_id.get(event.args.external_id))
        for event in trace.events
        if event.cat in _DEVICE_CATEGORIES or event.name in _WAITS
    ]


def operator_times(traced: Sequence[Operators]) -> tuple[OperatorTime, ...]:
    """Operators with the most self time, by kind of module; `fraction` is of the time of all operators."""
    rows = _medians([_by_module(operators) for operators in traced])
    everything = sum(seconds for _, _, seconds in rows.values())
    largest = sorted(rows.items(), key=lambda row: -row[1][2])[:_MAX_OPERATORS]
    return tuple(
        OperatorTime(
            module=module, operator=name, calls=calls, seconds=seconds,
            fraction=seconds / everything if everything else 0.0,
        )
        for (module, name), (calls, _, seconds) in largest
    )  # fmt: skip


def get_copies(traced: Sequence[Operators], counters: Sequence[Mapping[str, float]]) -> Copies:
    """Places where copies are made; `counters` are those of each profiled iteration."""
    rows = _medians([_copies(operators) for operators in traced])
    largest = sorted(rows.items(), key=lambda row: (-row[1][1], -row[1][2]))[:_MAX_PLACES]
    return Copies(
        output_copies=_get_median(counters, "copies"),
        output_bytes=_get_median(counters, "copied_bytes"),
        hidden_s=_get_median(counters, "copy_hidden_s"),
        exposed_s=_get_median(counters, "copy_exposed_s"),
        places=tuple(
            CopyPlace(
                range=place, operator=operator, module=module or None, calls=calls, copied_bytes=num_bytes,
                seconds=seconds,
            )
            for (place, operator, module), (calls, num_bytes, seconds) in largest
        ),
    )  # fmt: skip


def kernel_name(name: str) -> str:
    """Shorten `void at::native::vectorized_kernel<4, ...>(int, ...)` to `at::native::vectorized_kernel`."""
    plain = name.removeprefix("void ").replace("(anonymous namespace)::", "")
    return re.split(r"[<(]", plain, maxsplit=1)[0] or name


def _by_module(operators: Operators) -> _Rows:
    rows: _Rows = defaultdict(lambda: [0.0, 0.0, 0.0])
    if operators.device_work:
        for work in operators.device_work:
            module = None if work.operator is None else work.operator.module
            name = kernel_name(work.event.name) if work.operator is None else work.operator.event.name
            _add(rows[module_kind(module or _OUTSIDE), name], 0, work.end_ns - work.begin_ns)
        return rows
    for call in operators.calls:
        _add(rows[module_kind(call.module or _OUTSIDE), call.event.name], 0, call.self_ns)
    return rows


def _copies(operators: Operators) -> _Rows:
    rows: _Rows = defaultdict(lambda: [0.0, 0.0, 0.0])
    for place, operator, module, num_bytes, ns in _copy_calls(operators):
        _add(rows[place, operator, module_kind(module or "")], num_bytes, ns)
    return rows


def _copy_calls(operators: Operators) -> Iterator[tuple[str, str, str | None, int, int]]:
    """Yield (range, operator, module, bytes, nanoseconds) of each copy."""
    ranges = operators.recording.ranges

    def place(index: int) -> str:
        return ranges[index].name if index >= 0 else _OUTSIDE_RANGES

    if not operators.device_work:
        for call in operators.calls:
            if call.event.name == _COPY:
                num_bytes = call.event.args.first_input_bytes()
                yield base_name(place(call.range_index)), call.outermost, call.module, num_bytes, call.self_ns
        return
    for work in operators.device_work:
        if work.event.cat == "gpu_memcpy":
            launcher = work.operator
            where = _OUTSIDE_RANGES if launcher is None else base_name(place(launcher.range_index))
            module = None if launcher is None else launcher.module
            yield where, work.event.name, module, work.event.args.copied_bytes or 0, work.end_ns - work.begin_ns


def _add(row: list[float], num_bytes: int, ns: int) -> None:
    row[0] += 1
    row[1] += num_bytes
    row[2] += ns / 1e9


def _medians(iterations: Sequence[_Rows]) -> dict[tuple[str, ...], tuple[float, float, float]]:
    keys = dict.fromkeys(key for rows in iterations for key in rows)
    nothing = [0.0, 0.0, 0.0]

    def median(key: tuple[str, ...], column: int) -> float:
        return statistics.median(rows.get(key, nothing)[column] for rows in iterations)

    return {key: (median(key, 0), median(key, 1), median(key, 2)) for key in keys}


def _get_median(iterations: Sequence[Mapping[str, float]], name: str) -> float:
    return statistics.median([counters.get(name, 0.0) for counters in iterations] or [0.0])
