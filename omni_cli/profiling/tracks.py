"""Time intervals: lookup, union, difference and total length."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from omni_cli.stage.recording import Range

Interval = tuple[int, int]


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


def merged(intervals: Iterable[Interval]) -> list[Interval]:
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
