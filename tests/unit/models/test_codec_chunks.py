"""The chunks of streamed speech grow, and each is there before those before it have been played."""

from __future__ import annotations

import pytest

from omni_cli.models.codec.settings import CodecConfig, growing_chunks

FRAME_S = 0.08


@pytest.mark.parametrize(
    ("first", "most", "sizes"),
    [
        (1, 12, (1, 2, 4, 12)),
        (2, 12, (2, 4, 12)),
        (4, 12, (4, 12)),
        (12, 12, (12, 12)),
        (12, 4, (12, 4)),
        (1, 1, (1, 1)),
        (1, 24, (1, 2, 4, 8, 24)),
    ],
)
def test_chunks_double_up_to_half_of_the_largest(first: int, most: int, sizes: tuple[int, ...]) -> None:
    assert growing_chunks(first, most) == sizes
    config = CodecConfig.create("codec", stream_first_chunk_frames=first, stream_chunk_frames=most)
    assert config.chunk_sizes == sizes


def lateness_s(config: CodecConfig, factor: float) -> float:
    """Return by how many seconds the latest of 20 chunks misses its time, below 0 if none does.

    A frame is made in `factor` of the time for which it plays, without the time of decoding.
    """
    first, *others = (*config.chunk_sizes, *[config.stream_chunk_frames] * 16)
    heard_s, made, lateness = first * factor * FRAME_S, first, []
    for frames in others:
        played_until_s = heard_s + made * FRAME_S
        made += frames
        lateness.append(made * factor * FRAME_S - played_until_s)
    return max(lateness)


def test_each_chunk_is_there_before_the_ones_before_it_have_been_played() -> None:
    config = CodecConfig.create("codec")
    assert config.chunk_sizes[0] == 1
    assert lateness_s(config, 0.1) == pytest.approx(-0.8 * FRAME_S)
    assert lateness_s(config, 0.3) == pytest.approx(-0.4 * FRAME_S)
    assert lateness_s(config, 0.55) > 0
