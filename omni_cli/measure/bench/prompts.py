"""Prompts with an exact number of tokens: new ones for each iteration, the same for every variant."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from omni_cli.core.errors import CheckpointError

# fmt: off
_WORDS = (
    "rain", "river", "stone", "light", "morning", "garden", "window", "paper", "music", "table", "silver", "summer",
    "letter", "street", "winter", "forest", "bridge", "colour", "number", "island", "kitchen", "market", "station",
    "teacher", "village", "yellow", "answer", "basket", "camera", "doctor", "engine", "family", "ground", "hammer",
    "insect", "jacket", "ladder", "mirror", "needle", "orange", "pencil",
)
# fmt: on
_ATTEMPTS = 200
_BLOCKS_KEPT = 4096
_TOKENIZERS = ("tokenizer.json", "tokenizer/tokenizer.json", "processor/tokenizer.json")


class Prompts:
    """Draws prompts for the tokenizer of the checkpoint in the folder `model`; `input_len` is in tokens.

    Without a `tokenizer.json` (or with None), a prompt has as many words instead, and the record has their number of
    tokens. Other seeds give other prompts. `frame` is the text around the words; its tokens count.
    """

    def __init__(
        self, model: str | None, input_len: int, *, seed: int | None = None, frame: tuple[str, str] = ("", "")
    ) -> None:
        self._input_len = input_len
        self._before, self._after = frame
        self._tokenizer: Any = None if model is None else _load_tokenizer(Path(model))
        self._salt = "" if seed is None else f"{seed}/"
        self._block = lru_cache(_BLOCKS_KEPT)(self._draw_block)

    def draw(
        self, number: int, index: int, input_len: int | None = None, shared: Sequence[int] = (), block_len: int = 0
    ) -> str:
        """Return the prompt of request `index` of iteration `number`; `input_len` is another length for it.

        It begins with a block of `block_len` for each number in `shared`; equal numbers are equal text in all prompts
        of an iteration.

        Raises `CheckpointError` if the tokenizer makes that impossible.
        """
        length = input_len or self._input_len
        added = 0 if self._tokenizer is None else len(self._tokenizer.encode(self._before + self._after).ids)
        num_kept = max(0, length - added)
        source = random.Random(f"{self._salt}{number}/{index}")
        blocks = [self._block(number, block, block_len) for block in shared]
        # What the blocks do not fill, and a few words more, since pieces of text may share tokens where they meet.
        num_own = max(0, length - len(blocks) * block_len) + 2 * len(blocks) if blocks else length
        for attempt in range(_ATTEMPTS):
            words = " ".join([*blocks, *source.choices(_WORDS, k=num_own)])
            if self._tokenizer is None:
                return self._before + " ".join(words.split()[:length]) + self._after
            # A word is one or more tokens, and cutting some may change how the rest is split, hence the attempts. A
            # prompt of nothing but blocks comes out the same, unless a few tokens fewer or more are kept.
            shift = (attempt + 1) // 2 * (-1) ** attempt if blocks else 0
            kept = self._tokenizer.encode(words, add_special_tokens=False).ids[: num_kept + shift]
            middle: str = self._tokenizer.decode(kept, skip_special_tokens=False)
            text = self._before + middle + self._after
            # With the special tokens that the engine's tokenizer adds as well.
            if middle and len(self._tokenizer.encode(text).ids) == length:
                return text
        raise CheckpointError(
            f"found no prompt of exactly {length} tokens for this tokenizer",
            hint=f"try an `--input-len` above {added}" if length <= added else "try another `--input-len`",
        )

    def _draw_block(self, number: int, block: int, block_len: int) -> str:
        words = " ".join(random.Random(f"{self._salt}{number}/block/{block}").choices(_WORDS, k=block_len))
        if self._tokenizer is None:
            return words
        kept = self._tokenizer.encode(words, add_special_tokens=False).ids[:block_len]
        return str(self._tokenizer.decode(kept, skip_special_tokens=False)).strip()


def _load_tokenizer(folder: Path) -> Any | None:
    from tokenizers import Tokenizer

    path = next((folder / name for name in _TOKENIZERS if (folder / name).is_file()), None)
    return None if path is None else Tokenizer.from_file(str(path))


def token_counter(model: str | None) -> Callable[[str], int]:
    """Return the counter of a text's tokens, without special ones; of its words if there is no tokenizer."""
    tokenizer = None if model is None else _load_tokenizer(Path(model))
    if tokenizer is None:
        return lambda text: len(text.split())
    return lambda text: len(tokenizer.encode(text, add_special_tokens=False).ids)
