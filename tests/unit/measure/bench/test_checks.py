"""Conditions that make a measurement untrustworthy."""

from __future__ import annotations

import pytest

from omni_cli.measure.bench.checks import (
    Free,
    find_unaccounted_time,
    ineffective,
    lacking,
    setting_not_in_effect,
    warnings,
)
from omni_cli.measure.bench.protocol import LoadedStage, StagePeaks
from omni_cli.measure.bench.record_builder import get_memory
from omni_cli.measure.bench.variant_configs import VariantConfig

STAGE = LoadedStage(
    "thinker",
    "ar",
    1.0,
    requested={"max_num_seqs": 8, "output_copy": "async"},
    settings={"max_num_seqs": 8, "num_threads": 2},
    effective={"output_copy": "sync"},
)


def test_ineffective_settings() -> None:
    (found,) = ineffective([STAGE])
    assert (found.key, found.requested, found.effective) == ("output_copy", "async", "sync")


def test_a_variant_whose_setting_is_not_in_effect() -> None:
    on = VariantConfig("copy", overrides=("thinker.output_copy=async",))
    assert setting_not_in_effect(on, [STAGE]) == "thinker.output_copy is sync, not async as requested"
    other = VariantConfig("seqs", overrides=("thinker.max_num_seqs=8",))
    assert setting_not_in_effect(other, [STAGE]) is None
    assert warnings(other, [STAGE]) == []


def test_threads_that_the_engine_chose_itself() -> None:
    one = VariantConfig("one", environment={"OMP_NUM_THREADS": "1"})
    assert any("the engine chose 2 threads itself" in text for text in warnings(one, [STAGE]))
    two = VariantConfig("two", environment={"OMP_NUM_THREADS": "2"})
    assert not any("OMP_NUM_THREADS" in text for text in warnings(two, [STAGE]))


@pytest.mark.parametrize(
    ("kind", "share", "is_off"),
    [("stages", 0.95, False), ("stages", 0.5, True), ("steps", 0.05, True), ("steps", 1.2, True)],
)
def test_parts_have_to_make_up_the_whole(kind: str, share: float, is_off: bool) -> None:
    reason = find_unaccounted_time({kind: [share] * 5})
    assert (reason is not None) is is_off
    if reason:
        assert f"{share:.0%}" in reason


@pytest.mark.parametrize("shares", [[0.99, 0.4, 0.98], [0.99, 0.67], [0.99, 1.4]])
def test_one_run_in_which_something_else_was_going_on_is_no_fault(shares: list[float]) -> None:
    assert find_unaccounted_time({"stages": shares}) is None


def test_parts_that_are_missing_in_most_runs_are_a_fault() -> None:
    assert "make up 80% of the" in (find_unaccounted_time({"stages": [0.99, 0.8, 0.4]}) or "")


GIB = 2**30


@pytest.mark.parametrize(
    ("used", "free", "copies", "part"),
    [
        (Free(4 * GIB), Free(10 * GIB), 1, None),
        (Free(4 * GIB), Free(4 * GIB), 1, "4.0 GiB of memory for 1 more"),
        (Free(4 * GIB), Free(10 * GIB), 3, "12.0 GiB of memory for 3 more"),
        (Free(1, (60 * GIB,)), Free(10 * GIB, (20 * GIB,)), 1, "device 0's memory"),
        (Free(1, (0, 5 * GIB)), Free(10 * GIB, (1, 4 * GIB)), 1, "device 1's memory"),
    ],
)
def test_whether_more_copies_fit(used: Free, free: Free, copies: int, part: str | None) -> None:
    reason = lacking(used, free, copies)
    assert reason is None if part is None else part in reason


def test_peaks_are_summed_over_stages_and_kept_apart_by_phase() -> None:
    stages = {
        "a": StagePeaks({"device": 5, "reserved": 6, "host": 7}, {"device": 1, "reserved": 2, "host": 3}),
        "b": StagePeaks({"device": 50, "reserved": 60, "host": 70}, {"device": 10, "reserved": 20, "host": 30}),
    }
    memory = get_memory(stages)
    assert (memory.peak_allocated_bytes, memory.peak_reserved_bytes, memory.peak_host_rss_bytes) == (11, 22, 33)
    assert memory.stages["a"]["load"]["peak_allocated_bytes"] == 5
    assert memory.stages["b"]["run"]["peak_host_rss_bytes"] == 30


def test_without_a_device_there_is_no_peak_of_one() -> None:
    memory = get_memory({"a": StagePeaks({"device": 0, "host": 1}, {"device": 0, "host": 2})})
    assert memory.peak_allocated_bytes is None and memory.peak_host_rss_bytes == 2
