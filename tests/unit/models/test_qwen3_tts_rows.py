"""Rows of requests to Qwen3-TTS: pairs of a text id and what the codec side adds to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch

from omni_cli.core.errors import InputError
from omni_cli.models.qwen3_tts.rows import RowMaker, Voice
from omni_cli.models.qwen3_tts.spoken import Spoken, frame_text, pick_language

PAD, BEGIN, END = 90, 91, 92
CODEC = {"pad": 40, "bos": 41, "think": 42, "nothink": 43, "think_bos": 44, "think_eos": 45}
TALKER: dict[str, Any] = {
    "hidden_size": 1,
    "spk_id": {"vivian": 60, "dylan": 61},
    "spk_is_dialect": {"vivian": False, "dylan": "beijing_dialect"},
    "codec_language_id": {"chinese": 50, "english": 51, "beijing_dialect": 52},
    **{f"codec_{name}_id": number for name, number in CODEC.items()},
}
CONFIG = {"tts_pad_token_id": PAD, "tts_bos_token_id": BEGIN, "tts_eos_token_id": END, "talker_config": TALKER}
TURN = "<|im_start|>assistant\n"
# A turn's marks are three tokens, the end of the text two, and the begin of the next turn three.
IDS = {
    f"{TURN}Hello.<|im_end|>\n{TURN}": [1, 2, 3, 10, 11, 12, 4, 5, 1, 2, 3],
    "<|im_start|>user\nslowly<|im_end|>\n": [7, 8],
    f"{TURN}Before.<|im_end|>\n": [1, 2, 3, 20, 4, 5],
}
NO_VOICE = Voice()
HEAD = [(1, 0), (2, 0), (3, 0)]
AUTO = [(PAD, 43), (PAD, 44), (PAD, 45)]
IN_ENGLISH = [(PAD, 42), (PAD, 44), (PAD, 51), (PAD, 45)]
FOR_EVER = [(PAD, 0)]


def column(codebook: int, ids: Sequence[int]) -> torch.Tensor:
    return torch.tensor(ids, dtype=torch.float32)[:, None] + 100 * codebook


def make(
    voice: Voice | str = NO_VOICE, *, how: str = "", language: int | None = None, text_first: bool = True
) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    codecs = [partial(column, codebook) for codebook in range(3)]
    maker = RowMaker(CONFIG, IDS.__getitem__, partial(column, 0), codecs)
    spoken = Spoken(frame_text("Hello.", raw=False), how, None, language, ())
    voice = maker.speaker(voice) if isinstance(voice, str) else voice
    prompt, later = maker.make(spoken, voice, text_first=text_first)
    return as_pairs(prompt), as_pairs(later)


def as_pairs(rows: torch.Tensor) -> list[tuple[int, int]]:
    return [(int(text), int(codec)) for text, codec in rows]


def test_a_speaker_reads_the_whole_text_before_the_first_frame() -> None:
    prompt, later = make("vivian")
    text = [(10, 40), (11, 40), (12, 40), (END, 40), (PAD, 41)]
    assert prompt == [*HEAD, *AUTO, (PAD, 60), (BEGIN, 40), *text]
    assert later == FOR_EVER


def test_without_a_speaker_there_is_no_row_for_one_and_a_language_is_another_row() -> None:
    prompt, _ = make(language=51)
    assert prompt[:8] == [*HEAD, *IN_ENGLISH, (BEGIN, 40)]


def test_an_instruction_comes_before_everything() -> None:
    prompt, _ = make("dylan", how="slowly")
    assert prompt[:6] == [(7, 0), (8, 0), *HEAD, (PAD, 43)] and (PAD, 61) in prompt


def test_beside_the_codes_a_token_of_the_text_goes_with_each_frame() -> None:
    prompt, later = make(Voice(torch.tensor([[77.0]])), text_first=False)
    assert prompt == [*HEAD, *AUTO, (PAD, 77), (BEGIN, 40), (10, 41)]
    assert later == [(11, 0), (12, 0), (END, 0), *FOR_EVER]


# Sums of 3 codes, in tables that begin at 0, 100 and 200.
FRAMES, SUMS = torch.tensor([[1, 2, 3], [4, 5, 6]]), [306, 315]


@pytest.mark.parametrize("num_frames", [2, 6])
def test_in_context_the_frames_of_the_recording_go_beside_its_words(num_frames: int) -> None:
    frames = FRAMES.repeat(num_frames // 2, 1)
    prompt, later = make(Voice(torch.tensor([[77.0]]), "Before.", frames), text_first=False)
    sound = [41, *SUMS * (num_frames // 2)]
    texts = [20, 10, 11, 12, END]
    padded = [*texts, *[PAD] * num_frames]
    assert prompt == [*HEAD, *AUTO, (PAD, 77), (BEGIN, 40), *zip(padded, sound, strict=False)]
    assert later == [*((text, 0) for text in texts[len(sound) :]), *FOR_EVER]


def test_in_context_with_the_text_first_the_frames_follow_it() -> None:
    prompt, later = make(Voice(None, "Before.", FRAMES))
    assert prompt[7:] == [*((text, 40) for text in (20, 10, 11, 12, END)), (PAD, 41), (PAD, 306), (PAD, 315)]
    assert later == FOR_EVER


@pytest.mark.parametrize(
    ("asked", "speaker", "expected"),
    [
        (None, "vivian", None),
        ("auto", None, None),
        ("en", "vivian", 51),
        ("English", None, 51),
        ("en-GB", None, 51),
        ("zh", "vivian", 50),
        ("Chinese", "dylan", 52),
        (None, "dylan", 52),
        ("english", "dylan", 51),
    ],
)
def test_a_language_has_a_name_and_a_code_and_a_speaker_a_dialect(
    asked: str | None, speaker: str | None, expected: int | None
) -> None:
    assert pick_language(TALKER, asked, speaker) == expected


@pytest.mark.parametrize("asked", ["klingon", "fr", "beijing_dialect"])
def test_an_unknown_language_names_those_that_there_are(asked: str) -> None:
    with pytest.raises(InputError, match=f"unknown language `{asked}`") as failure:
        pick_language(TALKER, asked, "vivian")
    assert failure.value.hint == "this model has chinese, english"


def test_the_texts_of_a_request_are_turns() -> None:
    asked: list[str] = []

    def tokenize(text: str) -> list[int]:
        asked.append(text)
        return list(range(len(asked) * 100, len(asked) * 100 + 10))

    maker = RowMaker(CONFIG, tokenize, partial(column, 0), [partial(column, codebook) for codebook in range(3)])
    spoken = Spoken(frame_text("Hello.", raw=False), "slowly", None, None, ())
    prompt, _ = maker.make(spoken, Voice(None, "Before."), text_first=True)
    assert asked == list(IDS)
    texts = [*range(200, 210), 100, 101, 102, *[PAD] * 3, BEGIN, *range(303, 308), 103, 104, END, PAD]
    assert [text for text, _ in as_pairs(prompt)] == texts
    maker.make(replace(spoken, instruction=""), Voice(), text_first=True)
    assert asked[3:] == list(IDS)[:1]


def test_a_raw_prompt_is_the_whole_turn() -> None:
    turn = frame_text("Hello.", raw=False)
    assert frame_text(turn, raw=True) == turn
    for wrong in ("Hello.", turn.removesuffix("\n"), frame_text("", raw=False)):
        with pytest.raises(InputError, match="a raw prompt"):
            frame_text(wrong, raw=True)
