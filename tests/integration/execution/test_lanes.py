"""Pieces of work on threads of their own."""

from __future__ import annotations

import threading

import pytest
import torch

from omni_cli.engine.recording.range_log import RangeLog
from omni_cli.execution.lanes import Lanes
from omni_cli.execution.ranges import listen, mark

pytestmark = [pytest.mark.usefixtures("num_threads"), pytest.mark.parametrize("num_threads", [4], indirect=True)]


def where() -> tuple[int, int]:
    """The thread of a piece, and its number of torch's threads."""
    return threading.get_ident(), torch.get_num_threads()


def test_pieces_run_at_the_same_time_and_share_the_threads_of_the_caller():
    meeting = threading.Barrier(2, timeout=60)

    def piece() -> tuple[int, int, bool]:
        meeting.wait()
        return *where(), torch.is_inference_mode_enabled()

    lanes: Lanes[tuple[int, int, bool]] = Lanes(4)
    for is_inference in (True, False):
        with torch.inference_mode(is_inference):
            lanes.start([piece, piece])
        lanes.settle()
        (here, *of_first), (there, *of_second) = lanes.ended()
        assert of_first == of_second == [2, is_inference]
        assert len({here, there, threading.get_ident()}) == 3
    assert torch.get_num_threads() == 4


def test_a_single_piece_and_those_of_a_single_lane_have_all_threads():
    several: Lanes[tuple[int, int]] = Lanes(4)
    several.start([where])
    ((_, num_threads),) = several.ended()
    assert num_threads == 4
    one: Lanes[tuple[int, int]] = Lanes(1)
    one.start([where, where])
    assert one.ended() == [(threading.get_ident(), 4)] * 2, "in the caller's thread"
    assert one.ended() == []


def test_a_piece_that_ends_is_returned_and_another_starts_while_the_first_goes_on():
    release = threading.Event()

    def lasts() -> str:
        assert release.wait(60)
        return "lasts"

    lanes: Lanes[str] = Lanes(2)
    lanes.start([lasts, lambda: "short"])
    assert lanes.ended() == ["short"] and lanes.num_free == 1
    lanes.start([lambda: f"short, {torch.get_num_threads()} threads"])
    assert lanes.ended() == ["short, 2 threads"]
    release.set()
    assert lanes.ended() == ["lasts"] and lanes.num_free == 2


def test_the_thread_whose_ranges_are_recorded_is_a_lane_while_they_are():
    log = RangeLog()
    log.start()
    listen(log)

    def piece() -> int:
        with mark("piece"):
            return threading.get_ident()

    lanes: Lanes[int] = Lanes(2)
    try:
        lanes.start([piece, piece])
        lanes.settle()
        here, there = lanes.ended()
    finally:
        listen(None)
    assert here == threading.get_ident() != there
    assert [each.name for each in log.stop().ranges] == ["piece"], "of one lane, which is never idle"


@pytest.mark.parametrize("is_recorded", [False, True])
@pytest.mark.parametrize("failing", [0, 1])
def test_an_error_is_raised_when_the_other_pieces_have_ended(failing, is_recorded, monkeypatch):
    monkeypatch.setattr("omni_cli.execution.lanes.is_recorded", lambda: is_recorded)
    began, ended = threading.Event(), threading.Event()

    def fails() -> None:
        began.wait(60)
        raise ValueError("no")

    def lasts() -> None:
        began.set()
        # The other piece fails meanwhile.
        for _ in range(100):
            torch.ones(100, 100) @ torch.ones(100, 100)
        ended.set()

    pieces = [lasts, lasts]
    pieces[failing] = fails
    lanes: Lanes[None] = Lanes(2)
    lanes.start(pieces)
    with pytest.raises(ValueError, match="no"):
        while True:
            lanes.ended()
    assert ended.is_set() and lanes.num_free == 2 and torch.get_num_threads() == 4
