"""Prompts with an exact number of tokens: new ones for each iteration, the same for every variant."""

from __future__ import annotations

import random
from collections.abc import Callable
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

    def draw(self, number: int, index: int, input_len: int | None = None) -> str:
        """Return the prompt of request `index` of iteration `number`; `input_len` is another length for it.

        Raises `CheckpointError` if the tokenizer makes that impossible.
        """
        length = input_len or self._input_len
        added = 0 if self._tokenizer is None else len(self._tokenizer.encode(self._before + self._after).ids)
        num_kept = max(0, length - added)
        source = random.Random(f"{self._salt}{number}/{index}")
        for _ in range(_ATTEMPTS):
            words = " ".join(source.choices(_WORDS, k=length))
            if self._tokenizer is None:
                return self._before + words + self._after
            # A word is one or more tokens, and cutting some may change how the rest is split, hence the attempts.
            kept = self._tokenizer.encode(words, add_special_tokens=False).ids[:num_kept]
            middle: str = self._tokenizer.decode(kept, skip_special_tokens=False)
            text = self._before + middle + self._after
            # With the special tokens that the engine's tokenizer adds as well.
            if middle and len(self._tokenizer.encode(text).ids) == length:
                return text
        raise CheckpointError(
            f"found no prompt of exactly {length} tokens for this tokenizer",
            hint=f"try an `--input-len` above {added}" if length <= added else "try another `--input-len`",
        )


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
