"""Pieces of long sounds, and the texts at their seams."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from omni_cli.models.transcription.cutting import cut, find_seam

RATE = 1000


def speech(*pauses_s: tuple[float, float], seconds: float = 100.0) -> np.ndarray:
    samples = np.random.default_rng(1).uniform(-0.5, 0.5, round(seconds * RATE)).astype(np.float32)
    for begin_s, end_s in pauses_s:
        samples[round(begin_s * RATE) : round(end_s * RATE)] *= 0.001
    return samples


@pytest.mark.parametrize("pause_s", [25.5, 27.0, 29.8])
def test_a_piece_ends_in_a_pause_wherever_it_is_in_the_last_stretch(pause_s: float) -> None:
    first, second, *_ = cut(speech((pause_s, pause_s + 0.2)), RATE, 30)
    assert pause_s < first.end / RATE < pause_s + 0.2
    assert (second.begin, second.overlaps) == (first.end, False)


def test_pieces_without_a_pause_overlap_and_leave_nothing_out() -> None:
    for samples in (speech(), speech((10, 12)), speech(seconds=31.0), speech(seconds=30.0)):
        pieces = list(cut(samples, RATE, 30))
        assert pieces[0].begin == 0 and pieces[-1].end == len(samples)
        assert all(piece.end - piece.begin <= 30 * RATE for piece in pieces)
        for before, piece in pairwise(pieces):
            assert piece.overlaps and before.end - piece.begin == 3 * RATE


@pytest.mark.parametrize(
    ("left", "right", "joined"),
    [
        ("the tide was coming in and the gul", "was coming in, and the gulls", "the tide was coming in and the gulls"),
        ("to the house behind", "The House behind the church", "to the house behind the church"),
        ("paid with a silver", "watch that had belonged", "paid with a silver watch that had belonged"),
        ("under the lighthouse", "Lighthouse had no lamp", "under the lighthouse had no lamp"),
        ("", "It begins", "It begins"),
        ("It ends", "", "It ends"),
    ],
)  # fmt: skip
def test_words_at_a_seam_are_neither_doubled_nor_lost(left: str, right: str, joined: str) -> None:
    end, begin = find_seam(left, right, has_spaces=True)
    assert f"{left[:end]} {right[begin:].strip()}".strip() == joined


def test_a_seam_of_a_language_without_spaces() -> None:
    end, begin = find_seam("船が港に着いたので", "港に着いた時、人々は", has_spaces=False)
    assert "船が港に着いたので"[:end] + "港に着いた時、人々は"[begin:] == "船が港に着いた時、人々は"
