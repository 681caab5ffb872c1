"""Byte-level BPE tokenizer like Qwen2's, trained in place; the special tokens have the last ids."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from tokenizers import AddedToken, Tokenizer
from transformers import Qwen2Tokenizer

from omni_cli.checkpoints.corpus import training_text


@dataclass(frozen=True)
class TokenSet:
    """The added tokens of a model.

    `special` tokens are omitted from decoded text, `plain` ones are kept. `roles` are the names by which the model's
    processor looks up placeholders in its tokenizer.
    """

    special: tuple[str, ...]
    plain: tuple[str, ...] = ()
    roles: Mapping[str, str] = field(default_factory=dict)

    @property
    def tokens(self) -> tuple[str, ...]:
        """All added tokens in the order of their ids."""
        return (*self.special, *self.plain)


QWEN2_5_OMNI = TokenSet(
    special=(
        "<|endoftext|>",
        "<|im_start|>",
        "<|im_end|>",
        "<|AUDIO|>",
        "<|audio_bos|>",
        "<|audio_eos|>",
        "<|vision_bos|>",
        "<|vision_eos|>",
        "<|vision_pad|>",
        "<|IMAGE|>",
        "<|VIDEO|>",
        "<|tts_pad|>",
        "<|tts_bos|>",
        "<|tts_eos|>",
        "<|tts_bos_chelsie|>",
        "<|tts_bos_ethan|>",
    ),
    roles={
        "image_token": "<|IMAGE|>",
        "audio_token": "<|AUDIO|>",
        "video_token": "<|VIDEO|>",
        "vision_bos_token": "<|vision_bos|>",
        "vision_eos_token": "<|vision_eos|>",
        "audio_bos_token": "<|audio_bos|>",
        "audio_eos_token": "<|audio_eos|>",
    },
)


def train_tokenizer(vocab_size: int, model_max_length: int, tokens: TokenSet = QWEN2_5_OMNI) -> Qwen2Tokenizer:
    """Train a tokenizer with exactly `vocab_size` ids, those of `tokens` last.

    Raises `ValueError` if the training text has too few words for that many ids, or if there are too few ids for words.
    """
    num_merges = vocab_size - 256 - len(tokens.tokens)
    if num_merges < 128:
        raise ValueError(f"a vocabulary of {vocab_size} is too small; the minimum is {256 + len(tokens.tokens) + 128}")
    vocab, merges = train_bpe(vocab_size - len(tokens.tokens))
    if len(merges) != num_merges:
        raise ValueError(f"a vocabulary of {vocab_size} is too large for the training text")
    vocab |= {token: len(vocab) + index for index, token in enumerate(tokens.tokens)}
    tokenizer = Qwen2Tokenizer(
        vocab=vocab,
        merges=merges,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        unk_token=None,
        extra_special_tokens=dict(tokens.roles),
        model_max_length=model_max_length,
        clean_up_tokenization_spaces=False,
    )
    tokenizer.add_tokens([AddedToken(token, special=token in tokens.special) for token in tokens.tokens])
    return tokenizer


def byte_level_tokenizer() -> Tokenizer:
    """Return an untrained tokenizer with Qwen2's normalizer and pre-tokenizer."""
    untrained = Qwen2Tokenizer(vocab={}, merges=[], eos_token=None, pad_token=None, unk_token=None)
    backend: Tokenizer = untrained.backend_tokenizer
    return backend


def train_bpe(vocab_size: int) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Return the vocabulary in id order and the merges in rank order."""
    from tokenizers import trainers
    from tokenizers.pre_tokenizers import ByteLevel

    backend = byte_level_tokenizer()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, initial_alphabet=sorted(ByteLevel.alphabet()), show_progress=False
    )
    backend.train_from_iterator(training_text(num_words=vocab_size), trainer)
    model = json.loads(backend.to_str())["model"]
    vocab = dict(sorted(model["vocab"].items(), key=lambda item: item[1]))
    return vocab, [tuple(merge) for merge in model["merges"]]


def unreadable_token_ids(tokenizer: Qwen2Tokenizer) -> list[int]:
    """Return added tokens, and tokens that are not whole characters or not printable on their own."""
    added = tokenizer.added_tokens_decoder.keys()
    texts = tokenizer.batch_decode([[token_id] for token_id in range(len(tokenizer))])
    return [
        token_id
        for token_id, text in enumerate(texts)
        if token_id in added or "\ufffd" in text or not text.replace("\n", " ").isprintable()
    ]
