"""Pieces of work on threads of their own."""

from __future__ import annotations

import threading

import pytest
import torch

from omni_cli.execution.lanes import Lanes


@pytest.mark.usefixtures("num_threads")
@pytest.mark.parametrize("num_threads", [4], indirect=True)
def test_pieces_run_at_the_same_time_and_share_the_threads_of_the_caller():
    meeting = threading.Barrier(2, timeout=60)

    def piece() -> tuple[int, int, bool]:
        meeting.wait()
        return threading.get_ident(), torch.get_num_threads(), torch.is_inference_mode_enabled()

    lanes = Lanes(4)
    with torch.inference_mode():
        (here, *of_first), (there, *of_second) = lanes.run([piece, piece])
        assert of_first == of_second == [2, True]
    assert here == threading.get_ident() != there
    (_, num_threads, is_inference), _ = lanes.run([piece, piece])
    assert (num_threads, is_inference) == (2, False)
    assert torch.get_num_threads() == 4


@pytest.mark.usefixtures("num_threads")
@pytest.mark.parametrize("num_threads", [4], indirect=True)
def test_a_single_piece_and_those_of_a_single_lane_have_all_threads():
    def piece() -> tuple[int, int]:
        return threading.get_ident(), torch.get_num_threads()

    mine = (threading.get_ident(), 4)
    assert Lanes(4).run([piece]) == [mine]
    assert Lanes(1).run([piece, piece]) == [mine, mine]
    assert Lanes(4).run([]) == []


@pytest.mark.usefixtures("num_threads")
@pytest.mark.parametrize("num_threads", [4], indirect=True)
@pytest.mark.parametrize("failing", [0, 1])
def test_an_error_is_raised_when_the_other_pieces_have_ended(failing):
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
    with pytest.raises(ValueError, match="no"):
        Lanes(2).run(pieces)
    assert ended.is_set() and torch.get_num_threads() == 4
