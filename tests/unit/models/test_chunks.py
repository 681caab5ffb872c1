"""Chunks of codes: each code is used once, with all the context that it needs."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from omni_cli.models.qwen2_5_omni.token2wav.request import Chunk, Chunker, ChunkSizes

BLOCK = 12


@st.composite
def speeches(draw: st.DrawFn) -> tuple[ChunkSizes, list[list[int]]]:
    """Sizes in whole blocks, and codes in parts as they may come."""
    first, chunk, look_ahead = (draw(st.integers(1, 4)) * BLOCK for _ in range(3))
    sizes = ChunkSizes(first, chunk, draw(st.integers(0, 3)) * BLOCK, look_ahead, draw(st.integers(0, BLOCK - 1)))
    lengths = draw(st.lists(st.integers(0, 40), min_size=1, max_size=12))
    numbers = iter(range(sum(lengths)))
    return sizes, [[next(numbers) for _ in range(length)] for length in lengths]


def chunks_of(sizes: ChunkSizes, parts: list[list[int]]) -> list[Chunk]:
    chunker = Chunker(sizes)
    made = [chunk for part in parts[:-1] for chunk in chunker.add(part, is_last=False)]
    return made + chunker.add(parts[-1], is_last=True)


@given(speeches())
def test_every_code_is_used_once_and_in_order(speech: tuple[ChunkSizes, list[list[int]]]) -> None:
    sizes, parts = speech
    num_codes = sum(map(len, parts))
    chunks = chunks_of(sizes, parts)
    assert [place for chunk in chunks for place in range(chunk.start, chunk.end)] == list(range(num_codes))


@given(speeches())
def test_a_chunk_has_its_context_on_both_sides(speech: tuple[ChunkSizes, list[list[int]]]) -> None:
    sizes, parts = speech
    num_codes = sum(map(len, parts))
    begins_at = 0
    for chunk in chunks_of(sizes, parts):
        assert chunk.codes == tuple(range(chunk.codes_start, chunk.codes_start + len(chunk.codes)))
        assert chunk.codes_start == max(0, begins_at - sizes.context)
        assert chunk.codes_start % BLOCK == 0, "blocks of attention begin where they do in the whole"
        if chunk.continues_at is None:
            assert (chunk.end, chunk.codes[-1] + 1) == (num_codes, num_codes)
        else:
            assert chunk.codes[-1] + 1 == chunk.continues_at + sizes.look_ahead
            assert chunk.end == chunk.continues_at - sizes.held_back
            begins_at = chunk.continues_at


@given(speeches())
def test_chunks_do_not_depend_on_how_codes_arrive(speech: tuple[ChunkSizes, list[list[int]]]) -> None:
    """So a request gets the same audio, bit for bit, alone and under load."""
    sizes, parts = speech
    together = [code for part in parts for code in part]
    one_by_one = [[code] for code in together] + [[]]
    assert chunks_of(sizes, parts) == chunks_of(sizes, one_by_one) == chunks_of(sizes, [together])


def test_the_first_chunk_waits_for_its_own_codes_and_those_after_it_alone() -> None:
    chunker = Chunker(ChunkSizes(first_chunk=24, chunk=48, context=24, look_ahead=12))
    assert chunker.add(range(35), is_last=False) == []
    (chunk,) = chunker.add([35], is_last=False)
    assert (chunk.start, chunk.end, chunk.continues_at, len(chunk.codes)) == (0, 22, 24, 36)


def test_chunks_grow_so_that_little_is_computed_twice() -> None:
    chunks = chunks_of(ChunkSizes(), [list(range(1_000))])
    assert [chunk.continues_at for chunk in chunks] == [12, 36, 96, 240, 432, 624, 816, None]
    four_seconds = chunks_of(ChunkSizes(context=0), [list(range(200))])
    assert [(chunk.start, chunk.end) for chunk in four_seconds] == [(0, 10), (10, 34), (34, 94), (94, 200)]
    for num_codes in range(180, 2_000):
        chunks = chunks_of(ChunkSizes(context=0), [list(range(num_codes))])
        assert sum(len(chunk.codes) for chunk in chunks) <= 1.2 * num_codes


def test_playback_of_a_chunk_lasts_until_the_next_if_codes_arrive_in_two_fifths_of_its_time() -> None:
    sizes = ChunkSizes()
    chunks = chunks_of(sizes, [list(range(1_000))])
    # In codes' time of playback, in which two and a half arrive.
    begin = (sizes.first_chunk + sizes.look_ahead) * 0.4
    for chunk in chunks[1:]:
        arrived = (chunk.codes[-1] + 1) * 0.4
        assert arrived <= begin + chunk.start
