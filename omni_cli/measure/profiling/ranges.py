"""Time per range, by name and by step; and intervals of time: lookup, union, difference and total length."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from omni_cli.records.profile_record import RangeTime, Step, base_name
from omni_cli.stage.recording import Range, Recording

ENGINE_STEP = "engine step"
_STEPS = ("denoising step", ENGINE_STEP)

# Noise slows a step now and then, but hardly ever in every iteration, so each step is judged by its fastest time. An
# outlier is at least a quarter slower than its neighbours, and by more than four times the usual difference of steps.
_MIN_EXCESS = 0.25
_MIN_SCATTERS = 4.0
_NEIGHBOURS = 5
_MAD_TO_SIGMA = 1.4826

Interval = tuple[int, int]


@dataclass
class _Total:
    """The time in all ranges of a name: `own_ns` outside inner ranges, `outer_ns` in outermost ranges."""

    calls_ns: list[int] = field(default_factory=list)
    own_ns: int = 0
    outer_ns: int = 0


def range_times(recordings: Sequence[Recording]) -> tuple[RangeTime, ...]:
    """One row per name, the longest first; `fraction` is of the time in outermost ranges."""
    per_iteration = [_totals(recording.ranges) for recording in recordings]
    names = dict.fromkeys(name for totals in per_iteration for name in totals)
    everything = statistics.median(sum(total.outer_ns for total in totals.values()) for totals in per_iteration)
    rows = []
    for name in names:
        totals_of_name = [totals.get(name, _Total()) for totals in per_iteration]
        total_s = statistics.median(sum(total.calls_ns) for total in totals_of_name) / 1e9
        rows.append(
            RangeTime(
                name=name,
                calls=statistics.median(len(total.calls_ns) for total in totals_of_name),
                total_s=total_s,
                self_s=statistics.median(total.own_ns for total in totals_of_name) / 1e9,
                median_call_s=statistics.median(ns for total in totals_of_name for ns in total.calls_ns) / 1e9,
                fraction=total_s / (everything / 1e9) if everything else 0.0,
            )
        )
    return tuple(sorted(rows, key=lambda row: -row.total_s))


def _totals(ranges: Sequence[Range]) -> dict[str, _Total]:
    """By name, in the order in which the first ranges of the names end."""
    totals: dict[str, _Total] = defaultdict(_Total)
    ended: list[Range] = []
    opened: list[Range] = []
    for item in ranges:
        while opened and opened[-1].ended_ns <= item.began_ns:
            ended.append(opened.pop())
        taken_ns = item.ended_ns - item.began_ns
        total = totals[base_name(item.name)]
        total.calls_ns.append(taken_ns)
        total.own_ns += taken_ns
        if opened:
            totals[base_name(opened[-1].name)].own_ns -= taken_ns
        else:
            total.outer_ns += taken_ns
        opened.append(item)
    return {base_name(item.name): totals[base_name(item.name)] for item in (*ended, *reversed(opened))}


def step_indices(recording: Recording) -> list[int]:
    """Indices of the iteration's steps: denoising steps if there are any, else engine steps."""
    for name in _STEPS:
        indices = [index for index, item in enumerate(recording.ranges) if base_name(item.name) == name]
        if indices:
            return indices
    return []


def step_times(recordings: Sequence[Recording], added_bytes: Sequence[Sequence[int]]) -> tuple[Step, ...]:
    """Steps that every iteration has, by position, numbered from 1.

    `added_bytes` holds, for some of the iterations, each step's peak memory relative to its start.
    """
    per_iteration = [[recording.ranges[index] for index in step_indices(recording)] for recording in recordings]
    count = min(map(len, per_iteration), default=0)
    if not count:
        return ()
    name = base_name(per_iteration[0][0].name)
    seconds = np.array([[(s.ended_ns - s.began_ns) / 1e9 for s in steps[:count]] for steps in per_iteration])
    medians = np.median(seconds, axis=0)
    usual = _usual(medians)
    outliers = _outliers(seconds.min(axis=0))
    if name == ENGINE_STEP:
        # The first step of an autoregressive model is the prefill, which is not comparable with the others.
        outliers[0] = False
    return tuple(
        Step(
            name=name,
            number=index + 1,
            median_s=float(medians[index]),
            samples_s=tuple(map(float, seconds[:, index])),
            usual_s=float(usual[index]),
            outlier=bool(outliers[index]),
            added_bytes=max((steps[index] for steps in added_bytes if index < len(steps)), default=0),
        )
        for index in range(count)
    )


def _outliers(fastest: np.ndarray) -> np.ndarray:
    """Return bool (n,) for the fastest time of each step, float64 (n,)."""
    usual = _usual(fastest)
    scatter = _MAD_TO_SIGMA * float(np.median(np.abs(fastest - usual)))
    is_slow: np.ndarray = (fastest - usual > np.maximum(_MIN_EXCESS * usual, _MIN_SCATTERS * scatter)) & (
        len(fastest) > 2
    )
    return is_slow


def _usual(times: np.ndarray) -> np.ndarray:
    """Typical time of the steps around each one, rather than of all: times drift along a sequence."""
    usual = np.array(times)
    for index in range(len(times)):
        around = np.r_[times[max(0, index - _NEIGHBOURS) : index], times[index + 1 : index + 1 + _NEIGHBOURS]]
        if len(around):
            usual[index] = np.median(around)
    return usual


class Innermost:
    """The innermost of nested ranges at a given moment."""

    def __init__(self, ranges: Sequence[Range]) -> None:
        """`ranges` of one thread, sorted by start, outer ones first."""
        self.ranges = ranges
        starts: list[int] = []
        holders: list[int] = []
        opened: list[int] = []

        def note(at_ns: int) -> None:
            starts.append(at_ns)
            holders.append(opened[-1] if opened else -1)

        for index, item in enumerate(ranges):
            while opened and ranges[opened[-1]].ended_ns <= item.began_ns:
                note(ranges[opened.pop()].ended_ns)
            opened.append(index)
            note(item.began_ns)
        while opened:
            note(ranges[opened.pop()].ended_ns)
        self._starts = np.array(starts, np.int64)
        self._holders = np.array(holders, np.int64)

    def at(self, moments_ns: np.ndarray) -> np.ndarray:
        """Return indices into `ranges` int64 (n,) for moments int64 (n,); -1 outside all ranges."""
        if not len(self._starts):
            return np.full(len(moments_ns), -1, np.int64)
        starts = np.searchsorted(self._starts, moments_ns, side="right") - 1
        return np.where(starts < 0, -1, self._holders[starts])


def merge_intervals(intervals: Iterable[Interval]) -> list[Interval]:
    """Merge into sorted intervals that neither touch nor overlap."""
    union: list[Interval] = []
    for begin, end in sorted(intervals):
        if union and begin <= union[-1][1]:
            union[-1] = (union[-1][0], max(union[-1][1], end))
        elif end > begin:
            union.append((begin, end))
    return union


def length(intervals: Iterable[Interval]) -> int:
    return sum(end - begin for begin, end in intervals)


def without(intervals: Sequence[Interval], taken: Sequence[Interval]) -> list[Interval]:
    """Subtract merged `taken` from merged `intervals`."""
    left: list[Interval] = []
    for begin, end in intervals:
        for low, high in taken:
            if high <= begin or low >= end:
                continue
            if low > begin:
                left.append((begin, low))
            begin = high
            if begin >= end:
                break
        if begin < end:
            left.append((begin, end))
    return left


def within(intervals: Sequence[Interval], bounds: Sequence[Interval]) -> list[Interval]:
    """Intersect merged `intervals` with merged `bounds`."""
    return without(intervals, without(intervals, bounds))
