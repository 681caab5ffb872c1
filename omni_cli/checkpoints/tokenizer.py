"""Byte-level BPE tokenizer like Qwen2's, trained on the text in this module; the special tokens have the last ids."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from tokenizers import AddedToken, Tokenizer
from transformers import Qwen2Tokenizer

# Words that must be single tokens are frequent here: the roles of the chat template, and the fixed instruction before
# every prompt of Qwen-Image, from which diffusers drops a fixed number of tokens.
ROLES = "system\nuser\nassistant\n"
IMAGE_INSTRUCTION = (
    "Describe the image by detailing the color, shape, size, texture, quantity, text, spatial relationships "
    "of the objects and background:"
)

_SENTENCES = """
Hello, and welcome! How are you today? I am fine, thank you, and you?
You are a helpful assistant. You listen to what people say and look at what they show.
What do you hear in this recording? I hear rain on the roof and a dog that barks far away.
What do you see in this picture? I see a red house, a green field and a small boat on a blue lake.
Please tell me a short story about the sea. Once upon a time there was a ship with white sails.
The weather is warm and the sky is clear. In the evening the wind comes from the north.
Can you count to ten? One, two, three, four, five, six, seven, eight, nine, ten.
A bird sings in the tree before the sun comes up, and the town is still asleep.
Where is the train to the city? It leaves at noon, and it takes two hours and thirty minutes.
Could you say that again, a little more slowly? Of course; here it is once more, word for word.
My friend plays the piano, her brother plays the drums, and both of them sing well.
The quick answer is yes. The long answer needs more time, more paper and a cup of tea.
A model reads some words, thinks about them and then speaks with a clear and friendly voice.
Write a poem about winter: snow falls on the hill, the river is still, the night is long.
In the kitchen there is bread, butter, cheese, an apple, a lemon and some cold water.
The numbers are 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and then 10, 20, 50, 100 and 1000.
A photo of a cat on a chair. A drawing of a mountain at sunset. A painting of a quiet street.
Does this work? If it does not, please write what happened, what you did and what you expected.
"""

_ONSETS = [*"bcdfghklmnprstvwz", "br", "cl", "dr", "fl", "gr", "pl", "st", "tr"]
_VOWELS = [*"aeiou", "ai", "ea", "ou"]
_CODAS = [*"nrstlm", "nd", "st"]


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


def split_names(names: str) -> tuple[str, ...]:
    """Return the names of tokens, which contain no spaces, from one text."""
    return tuple(names.split())


def media_roles(names: str) -> dict[str, str]:
    """Return the roles of the placeholders of images, audio and video and of the tokens around them."""
    roles = "image_token audio_token video_token vision_bos_token vision_eos_token audio_bos_token audio_eos_token"
    return dict(zip(roles.split(), names.split(), strict=True))


QWEN2_5_OMNI = TokenSet(
    special=split_names(
        "<|endoftext|> <|im_start|> <|im_end|> <|AUDIO|> <|audio_bos|> <|audio_eos|> <|vision_bos|> <|vision_eos|> "
        "<|vision_pad|> <|IMAGE|> <|VIDEO|> <|tts_pad|> <|tts_bos|> <|tts_eos|> <|tts_bos_chelsie|> <|tts_bos_ethan|>"
    ),
    roles=media_roles("<|IMAGE|> <|AUDIO|> <|VIDEO|> <|vision_bos|> <|vision_eos|> <|audio_bos|> <|audio_eos|>"),
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


def training_text(num_words: int) -> list[str]:
    """Return lines to train on: real words, then `num_words` made-up ones to fill a large vocabulary."""
    lines = [ROLES + IMAGE_INSTRUCTION] * 8 + [ROLES] * 8 + _SENTENCES.strip().splitlines() * 2
    syllables = [f"{onset}{vowel}" for onset, vowel in itertools.product(_ONSETS, _VOWELS)]
    for index in range(num_words):
        lap, position = divmod(index, len(syllables))
        second = syllables[(position + lap * 37) % len(syllables)]
        lines.append(f" {syllables[position]}{second}{_CODAS[lap % len(_CODAS)]}")
    return lines
