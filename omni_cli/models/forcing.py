"""Lead a model of transformers through given tokens. Imports nothing of omni's, for Pythons that have none of it."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from transformers import LogitsProcessor, LogitsProcessorList

if TYPE_CHECKING:
    from omni_cli.models.scores import EngineTokens, TokenScores


class ForcedTokens(LogitsProcessor):
    """Leads `generate` through given tokens, and notes how probable the model finds them.

    It must be the last processor. `note_logits` receives the model's logits before all processors. `suppressed` are ids
    that can never be chosen, which engines leave out of log-probabilities.
    """

    def __init__(self, token_ids: Sequence[int], candidates: np.ndarray | None = None) -> None:
        """`candidates` (num_tokens, num_candidates) are ids to note log-probabilities of; negative ones are NaN."""
        super().__init__()
        self.token_ids = list(token_ids)
        own = np.array(self.token_ids, np.int64)[:, None]
        self._candidates = own if candidates is None else candidates
        self.suppressed: list[int] = []
        self._raw: torch.Tensor | None = None
        self._logprobs: list[np.ndarray] = []
        self._top_ids: list[int] = []
        self._gaps: list[float] = []
        self._margins: list[float] = []

    @classmethod
    def of(cls, tokens: EngineTokens) -> ForcedTokens:
        """Follow an engine's tokens."""
        return cls(tokens.token_ids, tokens.candidates)

    @property
    def is_at_end(self) -> bool:
        return len(self._top_ids) == len(self.token_ids)

    def note_logits(self, logits: torch.Tensor) -> None:
        """Note logits (1, num_positions, vocab_size), of which the last position counts."""
        self._raw = logits[0, -1]

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        position = len(self._top_ids)
        token_id = self.token_ids[position]
        raw = (scores[0] if self._raw is None else self._raw).to(torch.float64, copy=True)
        raw[self.suppressed] = -torch.inf
        wanted = torch.from_numpy(self._candidates[position])
        logprobs = raw.log_softmax(-1)[wanted.clamp(min=0).to(raw.device)].cpu()
        self._logprobs.append(torch.where(wanted < 0, torch.nan, logprobs).numpy())
        processed = scores[0].double().log_softmax(-1)
        (first, second), (top_id, _) = (part.tolist() for part in processed.topk(2))
        self._top_ids.append(top_id)
        self._margins.append(first - second)
        self._gaps.append(first - float(processed[token_id]))
        forced = torch.full_like(scores, -torch.inf)
        forced[:, token_id] = 0.0
        return forced

    @property
    def notes(self) -> dict[str, np.ndarray]:
        """Return what was noted so far, by the names of `TokenScores`."""
        return {
            "logprobs": np.array(self._logprobs, np.float64).reshape(len(self._top_ids), self._candidates.shape[1]),
            "top_ids": np.array(self._top_ids, np.int64),
            "gaps": np.array(self._gaps, np.float64),
            "margins": np.array(self._margins, np.float64),
        }

    @property
    def scores(self) -> TokenScores:
        from omni_cli.models.scores import TokenScores

        return TokenScores(**self.notes)


@contextlib.contextmanager
def replace_attribute(owner: Any, name: str, value: object) -> Iterator[None]:
    """Give an object another attribute for a while."""
    is_own, before = name in vars(owner), getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if is_own:
            setattr(owner, name, before)
        else:
            delattr(owner, name)


@contextlib.contextmanager
def record_calls(model: Any) -> Iterator[list[tuple[dict[str, Any], Any]]]:
    """Note the keyword arguments and the result of each call of `model.generate`."""
    calls: list[tuple[dict[str, Any], Any]] = []
    generate = model.generate

    def record_output(**kwargs: Any) -> Any:
        calls.append((kwargs, generate(**kwargs)))
        return calls[-1][1]

    with replace_attribute(model, "generate", record_output):
        yield calls


@contextlib.contextmanager
def led_by(model: Any, tokens: ForcedTokens | None, *, ends: bool = True) -> Iterator[None]:
    """Make `model.generate` follow tokens, and end with them if it `ends`; without any, leave it as it is."""
    if tokens is None:
        yield
        return
    generate = model.generate

    @functools.wraps(generate)
    def lead_generate(*args: Any, **kwargs: Any) -> Any:
        tokens.suppressed += kwargs.get("suppress_tokens") or []
        led_kwargs: dict[str, Any] = {"logits_processor": LogitsProcessorList([tokens])}
        if ends:
            led_kwargs["max_new_tokens"] = len(tokens.token_ids)
        return generate(*args, **{**kwargs, **led_kwargs})

    def note(_model: Any, _args: Any, output: Any) -> None:
        tokens.note_logits(output.logits)

    hook = model.register_forward_hook(note)
    try:
        with replace_attribute(model, "generate", lead_generate):
            yield
    finally:
        hook.remove()


class ForcedCodes:
    """Leads the model that predicts the codes of a frame after its first, one call of `generate` per frame."""

    def __init__(self, frames: Sequence[Sequence[int]]) -> None:
        self._codes = [ForcedTokens(frame[1:]) for frame in frames]
        self._num_led = 0

    def leading(self, model: Any) -> AbstractContextManager[None]:
        """Make `model.generate` follow the next frame at each call; after the last frame, leave it as it is."""
        generate = model.generate

        @functools.wraps(generate)
        def lead_generate(*args: Any, **kwargs: Any) -> Any:
            if self._num_led < len(self._codes):
                kwargs["logits_processor"] = LogitsProcessorList([self._codes[self._num_led]])
                self._num_led += 1
            return generate(*args, **kwargs)

        return replace_attribute(model, "generate", lead_generate)

    @property
    def notes(self) -> dict[str, np.ndarray]:
        """Return what was noted so far, by the names of `TokenScores`."""
        found = [codes.notes for codes in self._codes[: self._num_led]]
        names = {"code_ids": "top_ids", "code_gaps": "gaps", "code_margins": "margins"}
        return {name: np.array([item[own] for item in found]) for name, own in names.items()}

    def added_to(self, scores: TokenScores) -> TokenScores:
        """Return the scores of the first codes with those of the others."""
        return replace(scores, **self.notes)
