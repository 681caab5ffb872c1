"""Token ids as text and the other way, and the probabilities of tokens by the engine and by its reference."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from omni_cli.config.families import get_family_of_stages
from omni_cli.config.schema import EngineConfig
from omni_cli.measure.verify.verdicts import Decode
from omni_cli.models.scores import EngineOutput, EngineTokens, Expected
from omni_cli.openai_api.reading import ScoredToken
from omni_cli.records.verify_record import TokenProbability


def make_decoder(folder: Path, config: EngineConfig) -> Decode:
    """Return a decoder of the stage that makes text, by the checkpoint's `tokenizer.json`."""
    family = get_family_of_stages(str(folder), config.stages)
    role = None if family is None else family.role(config.stages[0].name)
    path = folder / "tokenizer.json"
    if role is None or role.makes != "text" or not path.is_file():
        return lambda stage, token_ids: None
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(path))

    def decode(stage: str, token_ids: Sequence[int]) -> str | None:
        if stage != config.stages[0].name:
            return None
        text: str = tokenizer.decode(list(token_ids), skip_special_tokens=False)
        return text

    return decode


def get_probabilities(
    outputs: Sequence[EngineOutput], expected: Sequence[Expected | str], decode: Decode
) -> list[TokenProbability]:
    """Return the log-probability of every token by the engine and by the reference."""
    found = []
    for output, scores in zip(outputs, expected, strict=True):
        if isinstance(scores, str):
            continue
        for stage, tokens in output.tokens.items():
            if stage not in scores.scores:
                continue
            rows = zip(tokens.token_ids, tokens.logprobs[:, 0], scores.scores[stage].logprobs[:, 0], strict=False)
            for position, (token_id, engine, reference) in enumerate(rows):
                if math.isfinite(engine) and math.isfinite(reference):
                    found.append(
                        TokenProbability(
                            request=output.request.request_id,
                            stage=stage,
                            position=position,
                            token_id=int(token_id),
                            token=decode(stage, [int(token_id)]),
                            engine_logprob=float(engine),
                            reference_logprob=float(reference),
                            ratio=math.exp(min(float(reference - engine), 700.0)),
                        )
                    )
    return found


def make_tokens(
    rows: Sequence[Sequence[tuple[int | None, float]]], codes: tuple[tuple[int, ...], ...] | None = None
) -> EngineTokens:
    """Return tokens of rows of (id, log-probability), that of the token itself first; candidates may have no id."""
    width = max((len(row) for row in rows), default=1)
    candidates = np.full((len(rows), width), -1, np.int64)
    logprobs = np.full((len(rows), width), np.nan)
    for position, row in enumerate(rows):
        for column, (token_id, logprob) in enumerate(row):
            if token_id is not None:
                candidates[position, column], logprobs[position, column] = token_id, logprob
    return EngineTokens(tuple(candidates[:, 0].tolist()), candidates, logprobs, codes)


class TokenIds:
    """Finds the ids of a server's tokens: as it returns them, by their texts, or of the whole text."""

    def __init__(self, folder: Path) -> None:
        from tokenizers import Tokenizer

        path = folder / "tokenizer.json"
        self._tokenizer: Any = Tokenizer.from_file(str(path)) if path.is_file() else None
        self._by_text: dict[str, set[int]] = {}
        if self._tokenizer is not None:
            for text, number in self._tokenizer.get_vocab().items():
                decoded = self._tokenizer.decode([number], skip_special_tokens=False)
                for name in (decoded, text):
                    self._by_text.setdefault(name, set()).add(number)

    def find(self, tokens: Sequence[ScoredToken], token_ids: Sequence[int] | None) -> EngineTokens | str:
        """Return tokens with their log-probabilities; a sentence if their ids cannot be found."""
        ids: Sequence[int | None] = token_ids or [self._id(token.token, token.id) for token in tokens]
        if None in ids or len(ids) < len(tokens):
            return "the texts of the server's tokens do not tell their ids"
        rows: list[list[tuple[int | None, float]]] = [[(number, math.nan)] for number in ids]
        for row, token in zip(rows, tokens, strict=False):
            row[0] = row[0][0], token.logprob
            row += [(self._id(top.token, None), top.logprob) for top in token.top_logprobs]
        return make_tokens(rows)

    def find_in_text(self, text: str, num_tokens: int | None) -> EngineTokens | str:
        """Return the tokens of a whole text; a sentence if they are not as many as the server counts."""
        if self._tokenizer is None:
            return "the checkpoint has no tokenizer.json"
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        # An end token may be counted.
        if num_tokens not in (None, len(ids), len(ids) + 1):
            return "the server gives no token ids, and its text does not tell them"
        return EngineTokens.without_logprobs(ids)

    def _id(self, text: str, token_id: int | None) -> int | None:
        if token_id is not None:
            return token_id
        if text.startswith("token_id:"):
            return int(text.removeprefix("token_id:"))
        found = self._by_text.get(text, set())
        return next(iter(found)) if len(found) == 1 else None
