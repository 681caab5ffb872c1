"""Memory of a stage over time, the phase of its peak, and the tensors held then."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from omni_cli.measure.profiling.operators import Allocation, Operators
from omni_cli.measure.profiling.ranges import ENGINE_STEP, Innermost, step_indices
from omni_cli.records.profile_record import Budget, LargeTensor, MemorySample, PhaseMemory, StageMemory, base_name
from omni_cli.stage.recording import MemoryReading, Range, Recording, StageDescription

_WARM_UP = "first request"
_BETWEEN = "between steps"
_ALL_BUT = 0.99
_MAX_SAMPLES = 400
_MAX_TENSORS = 12
_DEVICE_TYPE = {"cpu": 0, "cuda": 1}


@dataclass(frozen=True)
class _Stretch:
    """A time span within one phase: `samples` from start to end; `location` describes the phase more precisely."""

    phase: str
    location: str
    began_ns: int
    ended_ns: int
    samples: Sequence[MemoryReading]
    added_bytes: int


def stage_memory(
    description: StageDescription,
    warm_up: Recording,
    request: Recording,
    traced: Sequence[Operators],
    snapshot: str | None,
) -> StageMemory:
    """Break memory down by phase, from loading through the first request to a typical one (`request`).

    Peaks come from recordings without torch's profiler, which allocates memory itself. What each phase of a request
    adds and what is held at its peak are exact, from the allocations of the `traced` iterations.
    """
    kind = description.device.partition(":")[0]
    added = _added_by_name(traced, _DEVICE_TYPE[kind])
    load, steady = _stretches(description.load, {}, kind), _stretches(request, added, kind)
    first = [
        replace(stretch, location=f"{stretch.location} of the {_WARM_UP}") for stretch in _stretches(warm_up, {}, kind)
    ]  # fmt: skip
    whole = _stretch(_WARM_UP, _WARM_UP, warm_up.began_ns, warm_up.ended_ns, warm_up.samples, kind)
    origin_ns = description.load.began_ns
    peak, peak_location = _find_peak([*load, *first, *steady], kind)
    return StageMemory(
        measure="allocated" if kind == "cuda" else "host_rss",
        peak_bytes=peak,
        peak_phase=peak_location,
        timeline=_timeline([description.load, warm_up, request], origin_ns, kind),
        phases=_phases([*load, whole, *steady], origin_ns, kind),
        largest=_largest(description, traced, _DEVICE_TYPE[kind]),
        budgets=_budgets(description, request),
        snapshot=snapshot,
    )


def _find_peak(stretches: Sequence[_Stretch], kind: str) -> tuple[int, str]:
    """Return the peak, and where memory first comes within a page or two of it: often it keeps creeping up later."""
    highest = [max(_get_measured_bytes(sample, kind) for sample in stretch.samples) for stretch in stretches]
    peak = max(highest)
    return peak, next(s.location for s, high in zip(stretches, highest, strict=True) if high >= _ALL_BUT * peak)


def added_by_step(operators: Operators, device: str) -> list[int]:
    """Peak memory of tensors in each step of an iteration, relative to the start of the step."""
    added = _get_added_bytes(operators, _DEVICE_TYPE[device.partition(":")[0]])
    return [added[index] for index in step_indices(operators.recording)]


def _get_measured_bytes(sample: MemoryReading, kind: str) -> int:
    return sample.allocated_bytes or 0 if kind == "cuda" else sample.host_rss_bytes


def _stretches(recording: Recording, added: dict[str, int], kind: str) -> list[_Stretch]:
    """Cut the recording wherever another range becomes the innermost one."""
    innermost = Innermost(recording.ranges)
    moments = np.array([sample.at_ns for sample in recording.samples], np.int64)
    holders = innermost.at(moments)
    edges = [0, *(np.flatnonzero(np.diff(holders)) + 1), len(holders)]
    stretches = []
    for first, last in itertools.pairwise(edges):
        if first == last:
            continue
        index = int(holders[first])
        phase = recording.ranges[index].name if index >= 0 else _BETWEEN
        location = _location(recording.ranges, index, phase)
        # The sample after a stretch belongs to its end.
        samples = recording.samples[first : last + 1]
        stretches.append(
            _stretch(phase, location, samples[0].at_ns, samples[-1].at_ns, samples, kind, added.get(phase, 0))
        )
    return stretches


def _stretch(
    phase: str, location: str, began_ns: int, ended_ns: int, samples: Sequence[MemoryReading], kind: str, known: int = 0
) -> _Stretch:
    measured = [_get_measured_bytes(sample, kind) for sample in samples]
    return _Stretch(phase, location, began_ns, ended_ns, samples, max(known, max(measured) - measured[0]))


def _location(ranges: Sequence[Range], index: int, phase: str) -> str:
    """Name the phase, with the number of the engine step if there are several."""
    steps = [number for number, item in enumerate(ranges) if item.name == ENGINE_STEP]
    around = [number for number in steps if number <= index]
    if len(steps) < 2 or not around or ranges[around[-1]].ended_ns < ranges[index].ended_ns:
        return phase
    step = f"engine step {len(around)}"
    return step if phase == ENGINE_STEP else f"{phase} of {step}"


def _phases(stretches: Iterable[_Stretch], origin_ns: int, kind: str) -> tuple[PhaseMemory, ...]:
    by_name: dict[str, list[_Stretch]] = {}
    for stretch in stretches:
        by_name.setdefault(stretch.phase, []).append(stretch)
    return tuple(
        PhaseMemory(
            name=name,
            start_s=max(0, group[0].began_ns - origin_ns) / 1e9,
            duration_s=sum(stretch.ended_ns - stretch.began_ns for stretch in group) / 1e9,
            times=len(group),
            peak_host_rss_bytes=max(sample.host_rss_bytes for stretch in group for sample in stretch.samples),
            peak_allocated_bytes=_peak(group, "allocated_bytes", kind),
            peak_reserved_bytes=_peak(group, "reserved_bytes", kind),
            added_bytes=max(stretch.added_bytes for stretch in group),
        )
        for name, group in by_name.items()
    )


def _peak(stretches: Sequence[_Stretch], name: str, kind: str) -> int | None:
    if kind != "cuda":
        return None
    return max(getattr(sample, name) or 0 for stretch in stretches for sample in stretch.samples)


def _timeline(recordings: Sequence[Recording], origin_ns: int, kind: str) -> tuple[MemorySample, ...]:
    """All samples, or the highest of each group of neighbours."""
    samples = [sample for recording in recordings for sample in recording.samples]
    group = -(-len(samples) // _MAX_SAMPLES) or 1
    highest = [
        max(samples[first : first + group], key=lambda sample: _get_measured_bytes(sample, kind))
        for first in range(0, len(samples), group)
    ]
    return tuple(
        MemorySample(
            at_s=(sample.at_ns - origin_ns) / 1e9,
            host_rss_bytes=sample.host_rss_bytes,
            allocated_bytes=sample.allocated_bytes,
            reserved_bytes=sample.reserved_bytes,
        )
        for sample in highest
    )


def _track_held_bytes(allocations: Sequence[Allocation]) -> tuple[np.ndarray, np.ndarray]:
    """(moments, bytes held from then on beyond those held before the trace), int64 (n,) each."""
    moments = np.array([allocation.at_ns for allocation in allocations], np.int64)
    return moments, np.cumsum(np.array([allocation.num_bytes for allocation in allocations], np.int64))


def _of_device(operators: Operators, device_type: int) -> list[Allocation]:
    return [allocation for allocation in operators.allocations if allocation.device_type == device_type]


def _get_added_bytes(operators: Operators, device_type: int) -> list[int]:
    """Bytes added, per range of the recording."""
    moments, held = _track_held_bytes(_of_device(operators, device_type))
    added = []
    for item in operators.recording.ranges:
        first, last = np.searchsorted(moments, [item.began_ns, item.ended_ns])
        before = int(held[first - 1]) if first else 0
        added.append(max(0, int(held[first:last].max()) - before) if last > first else 0)
    return added


def _added_by_name(traced: Sequence[Operators], device_type: int) -> dict[str, int]:
    """Maximum per range name over all iterations, nested ranges included."""
    most: dict[str, int] = {}
    for operators in traced:
        own: dict[int, int] = {}
        for allocation in _of_device(operators, device_type):
            if allocation.range_index >= 0:
                own[allocation.range_index] = own.get(allocation.range_index, 0) + allocation.num_bytes
                name = operators.recording.ranges[allocation.range_index].name
                most[name] = max(most.get(name, 0), own[allocation.range_index])
    return most


def _largest(description: StageDescription, traced: Sequence[Operators], device_type: int) -> tuple[LargeTensor, ...]:
    """Tensors held at the peak of a request: the stage's own and those that the request made."""
    held = [
        LargeTensor(
            where=item.name, size_bytes=item.size_bytes, kind=item.kind, shape=item.shape, dtype=item.dtype
        )
        for item in description.residents
    ]  # fmt: skip
    if traced:
        held += _live_at_peak(traced[-1], device_type)
    return tuple(sorted(held, key=lambda tensor: -tensor.size_bytes)[:_MAX_TENSORS])


def _live_at_peak(operators: Operators, device_type: int) -> list[LargeTensor]:
    allocations = _of_device(operators, device_type)
    if not allocations:
        return []
    _, held = _track_held_bytes(allocations)
    live: dict[int, Allocation] = {}
    for allocation in allocations[: int(held.argmax()) + 1]:
        if allocation.num_bytes > 0:
            live[allocation.address] = allocation
        else:
            live.pop(allocation.address, None)
    ranges = operators.recording.ranges
    return [
        LargeTensor(where=_allocated_in(allocation, ranges), size_bytes=allocation.num_bytes, kind="activation")
        for allocation in live.values()
    ]


def _allocated_in(allocation: Allocation, ranges: Sequence[Range]) -> str:
    """Return for example `vae decode: vae.decoder.conv_in (aten::conv3d)`."""
    where = base_name(ranges[allocation.range_index].name) if allocation.range_index >= 0 else _BETWEEN
    if allocation.module is not None:
        where += f": {allocation.module}"
    return f"{where} ({allocation.operator})" if allocation.operator is not None else where


def _budgets(description: StageDescription, request: Recording) -> tuple[Budget, ...]:
    budgets = []
    for budget in description.budgets:
        used_bytes = budget.used_bytes
        if used_bytes is None:
            used_bytes = round((request.kv_cache_usage or 0.0) * budget.budget_bytes)
        budgets.append(
            Budget(
                what=budget.what, budget_bytes=budget.budget_bytes, used_bytes=used_bytes,
                used_fraction=used_bytes / budget.budget_bytes,
            )
        )  # fmt: skip
    return tuple(budgets)
