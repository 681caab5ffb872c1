"""Prompts of an exact length, for tokenizers with and without special tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from omni_cli.core.errors import CheckpointError
from omni_cli.measure.bench.prompts import Prompts

tokenizers = pytest.importorskip("tokenizers")


def save_tokenizer(folder: Path, *, adds_begin: bool) -> Any:
    """One token per character; with `adds_begin`, and one before all others."""
    characters = "abcdefghijklmnopqrstuvwxyz "
    vocab = {"<s>": 0, **{character: index for index, character in enumerate(characters, start=1)}}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocab, merges=[]))
    tokenizer.decoder = tokenizers.decoders.Fuse()
    if adds_begin:
        tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", 0)]
        )
    tokenizer.save(str(folder / "tokenizer.json"))
    return tokenizer


@pytest.mark.parametrize("adds_begin", [False, True])
def test_the_special_tokens_count(tmp_path: Path, adds_begin: bool) -> None:
    tokenizer = save_tokenizer(tmp_path, adds_begin=adds_begin)
    prompts = [Prompts(str(tmp_path), 40).draw(0, index) for index in range(3)]
    assert [len(tokenizer.encode(prompt).ids) for prompt in prompts] == [40, 40, 40]
    assert len(set(prompts)) == 3
    assert not any("<s>" in prompt for prompt in prompts)


def test_the_text_around_the_words_counts(tmp_path: Path) -> None:
    tokenizer = save_tokenizer(tmp_path, adds_begin=False)
    prompts = [Prompts(str(tmp_path), 40, frame=("user ", " assistant")).draw(0, index) for index in range(3)]
    assert [len(tokenizer.encode(prompt).ids) for prompt in prompts] == [40, 40, 40]
    assert all(prompt.startswith("user ") and prompt.endswith(" assistant") for prompt in prompts)
    assert len(set(prompts)) == 3
    assert Prompts(None, 2, frame=("a ", " z")).draw(0, 0).split()[::3] == ["a", "z"]


def test_blocks_are_shared_by_prompts_of_an_iteration(tmp_path: Path) -> None:
    tokenizer = save_tokenizer(tmp_path, adds_begin=True)
    prompts = Prompts(str(tmp_path), 1)
    one, two, three = (
        prompts.draw(0, 0, length, hashes, 16) for length, hashes in ((40, [1, 2]), (40, [1, 3]), (33, [1, 2]))
    )
    assert [len(tokenizer.encode(prompt).ids) for prompt in (one, two, three)] == [40, 40, 33]
    assert one[:14] == two[:14] and one[:30] == three[:30] and one[16:32] != two[16:32]
    assert prompts.draw(1, 0, 40, [1, 2], 16)[:14] != one[:14]
    full = Prompts(None, 1).draw(0, 0, 32, [1, 2], 16)
    assert len(full.split()) == 32 and full == Prompts(None, 1).draw(0, 1, 32, [1, 2], 16)


def test_a_length_without_room_for_a_word(tmp_path: Path) -> None:
    save_tokenizer(tmp_path, adds_begin=True)
    with pytest.raises(CheckpointError, match="no prompt of exactly 1 tokens") as raised:
        Prompts(str(tmp_path), 1).draw(0, 0)
    assert raised.value.hint == "try an `--input-len` above 1"
