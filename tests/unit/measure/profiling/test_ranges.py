"""Marks and listeners; intervals; the times of ranges, step by step."""

from __future__ import annotations

import itertools
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from omni_cli.backends.execution import ranges
from omni_cli.backends.execution.ranges import Consecutive, listen, mark
from omni_cli.measure.profiling.ranges import (
    Innermost,
    length,
    merge_intervals,
    range_times,
    step_times,
    within,
    without,
)
from omni_cli.records.profile_record import base_name
from omni_cli.stage.recording import Range, Recording


class Heard:
    """Records its calls."""

    def __init__(self) -> None:
        self.words: list[str] = []

    def begin(self, name: str) -> None:
        self.words.append(f"<{name}")

    def end(self) -> None:
        self.words.append(">")

    def request_began(self, request_id: str) -> None:
        self.words.append(f"[{request_id}")

    def request_ended(self, request_id: str) -> None:
        self.words.append("]")


@pytest.fixture
def heard():
    listener = Heard()
    listen(listener)
    yield listener
    listen(None)


def test_marks_are_nested_and_end_with_an_error(heard: Heard) -> None:
    with pytest.raises(ValueError), mark("outer"), mark("inner", 2):
        raise ValueError
    assert heard.words == ["<outer", "<inner 2", ">", ">"]


def test_consecutive_ranges_end_where_the_next_begins(heard: Heard) -> None:
    steps = Consecutive()
    steps.next("step", 1)
    steps.next("step", 2)
    steps.close()
    steps.close()
    assert heard.words == ["<step 1", ">", "<step 2", ">"]


def test_other_threads_are_ignored(heard: Heard) -> None:
    thread = threading.Thread(target=lambda: mark("elsewhere").__enter__())
    thread.start()
    thread.join()
    assert heard.words == []


def test_a_mark_without_a_listener_is_always_the_same_object() -> None:
    listen(None)
    assert mark("a") is mark("b", 3)
    ranges.request_began("1")
    ranges.request_ended("1")


intervals = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20)).map(lambda pair: (pair[0], sum(pair))))


@given(intervals, intervals)
def test_intervals_against_counting_moments(some: list, others: list) -> None:
    def moments(found: list) -> set[int]:
        return {moment for begin, end in found for moment in range(begin, end)}

    a, b = merge_intervals(some), merge_intervals(others)
    assert moments(a) == moments(some) and length(a) == len(moments(some))
    assert moments(without(a, b)) == moments(a) - moments(b)
    assert moments(within(a, b)) == moments(a) & moments(b)


@st.composite
def nested(draw: st.DrawFn, begin: int = 0, end: int = 100, depth: int = 0) -> list[Range]:
    """Ranges of one thread, sorted, outer ones first."""
    found = []
    at = begin
    while at < end and draw(st.booleans()):
        first = draw(st.integers(at, end))
        last = draw(st.integers(first, end))
        found.append(Range(f"range {first}", first, last, depth))
        if depth < 3:
            found += draw(nested(first, last, depth + 1))
        at = max(last, at + 1)
    return found


@given(nested())
def test_the_innermost_range_at_each_moment(found: list[Range]) -> None:
    moments = np.arange(-1, 102)
    for moment, index in zip(moments, Innermost(found).at(moments), strict=True):
        around = [number for number, item in enumerate(found) if item.began_ns <= moment < item.ended_ns]
        assert index == (around[-1] if around else -1)


def recording(*found: tuple[str, int, int, int]) -> Recording:
    """Build ranges from (name, begin, end, depth) in milliseconds."""
    items = tuple(Range(name, begin * 10**6, end * 10**6, depth) for name, begin, end, depth in found)
    return Recording(0, 10**9, (), items, (), 0, None)


def test_range_times_are_medians_and_their_own_times_add_up() -> None:
    first = recording(("engine step", 0, 10, 0), ("model forward", 1, 5, 1), ("engine step", 10, 16, 0))
    second = recording(("engine step", 0, 12, 0), ("model forward", 1, 7, 1), ("engine step", 12, 20, 0))
    steps, forward = range_times([first, second])
    assert (steps.name, steps.calls, forward.name) == ("engine step", 2, "model forward")
    assert steps.total_s == pytest.approx(0.018) and steps.fraction == 1
    assert steps.self_s == pytest.approx(0.013) and forward.self_s == pytest.approx(0.005)
    assert forward.fraction == pytest.approx(0.005 / 0.018)


def get_steps(*milliseconds: float) -> Recording:
    ends = np.cumsum([0, *milliseconds])
    items = [(f"denoising step {n + 1}", a, b, 1) for n, (a, b) in enumerate(itertools.pairwise(ends))]
    return recording(*items)


def test_a_step_that_is_always_slow_is_an_outlier_but_noise_is_not() -> None:
    rng = np.random.default_rng(0)
    usual = np.full(8, 10.0)
    slow = usual + 20 * (np.arange(8) == 4)
    # Each iteration is put off for as long as the slow step takes longer, somewhere.
    iterations = [get_steps(*(slow + rng.exponential(0.5, 8) + 30 * (np.arange(8) == i))) for i in range(6)]
    found = step_times(iterations, [])
    assert [step.number for step in found if step.outlier] == [5]
    assert found[4].median_s == pytest.approx(0.030, abs=0.002) and found[4].usual_s == pytest.approx(0.010, abs=0.002)
    quiet = [get_steps(*(usual + rng.exponential(0.5, 8) + 30 * (np.arange(8) == i))) for i in range(6)]
    assert not any(step.outlier for step in step_times(quiet, []))


def test_steps_that_grow_and_a_first_one_that_reads_the_prompt_are_no_outliers() -> None:
    growing = recording(*(("engine step", 10 * n * n, 10 * n * n + 20 + n + 100 * (n == 0), 0) for n in range(30)))
    found = step_times([growing] * 3, [[7] * 30])
    assert not any(step.outlier for step in found)
    assert {step.added_bytes for step in found} == {7}


def test_numbers_are_no_part_of_a_kind() -> None:
    assert base_name("denoising step 12") == "denoising step"
    assert base_name("vae decode") == "vae decode"
