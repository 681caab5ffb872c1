"""Our part of a vLLM request, in `extra_args` or `extra_kwargs`; it is decoded once per request."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from omni_cli.stage.payloads import (
    DEFAULT_LIMITS,
    PayloadError,
    PayloadLimits,
    decode_additional_information,
    encode_additional_information,
    get_integer,
    get_integers,
    get_tensor,
)

_EMBEDS = "prompt_embeds"
WANTS_HIDDEN_STATES = "omni_wants_hidden_states"
ADDITIONAL_INFORMATION = "omni_additional_information"
# In the information: `decode_embeds` is only a beginning (`Arrived`).
MORE_EMBEDS_FOLLOW = "more_embeds_follow"
# In the information: prompt positions whose rows are hidden states, for models that project them in another way.
HIDDEN_POSITIONS = "hidden_positions"

Projection = Callable[[torch.Tensor, Sequence[int]], torch.Tensor]
"""Rows (num_rows, embedding_size), and which of them are hidden states -> rows (num_rows, hidden_size)."""


def payload_arguments(
    prompt_embeds: torch.Tensor, information: dict[str, object], limits: PayloadLimits
) -> dict[str, object]:
    """Return vLLM's `extra_args` for a request with `prompt_embeds` (num_prompt_tokens, embedding_size).

    Raises `PayloadError` for what the worker would reject, because a request that is rejected here fails alone.
    """
    return {ADDITIONAL_INFORMATION: encode_additional_information({_EMBEDS: prompt_embeds, **information}, limits)}


@dataclass(frozen=True)
class EmbeddedPrompt:
    """A prompt's token ids, their input rows (num_prompt_tokens, embedding_size), and those of later steps.

    Without rows `later` (num_rows, embedding_size), the worker makes those of later steps. To the rows of the first
    `tokens_without_embedding` ids, the model adds none of its own. Rows at `hidden_positions` are hidden states, and
    the others embeddings. `mrope_positions` (3, num_prompt_tokens) int64; None if they count up from 0. `more` are
    further values for the model.
    """

    prompt_token_ids: list[int]
    prompt_embeds: torch.Tensor
    later: torch.Tensor | None = None
    tokens_without_embedding: int = 0
    hidden_positions: Sequence[int] = ()
    mrope_positions: torch.Tensor | None = None
    more: Mapping[str, object] = field(default_factory=dict)

    @property
    def decode_embeds(self) -> torch.Tensor:
        """The rows `later`; a row of zeros where the worker makes them, to which it adds its own."""
        return torch.zeros_like(self.prompt_embeds[:1]) if self.later is None else self.later

    def information(self) -> dict[str, object]:
        """Return the values sent beside the prompt embeddings."""
        values = {"tokens_without_embedding": [self.tokens_without_embedding], **self.more}
        if self.hidden_positions:
            values[HIDDEN_POSITIONS] = list(self.hidden_positions)
        if self.mrope_positions is not None:
            values["mrope_positions"] = self.mrope_positions
        return {"decode_embeds": self.decode_embeds, **values}


@dataclass
class RequestPayload:
    """`prompt_embeds` (num_prompt_tokens, embedding_size) or None; `information` tensors and lists by name.

    Input embeddings move from the host to the device when they are first needed. Raises `PayloadError` for information
    of a wrong type or one that does not fit the embeddings.
    """

    wants_hidden_states: bool = False
    prompt_embeds: torch.Tensor | None = None
    information: dict[str, object] = field(default_factory=dict)
    _arrived: list[torch.Tensor] = field(default_factory=list)
    _embeds: torch.Tensor | None = None
    _num_embeds: int = 0
    _is_whole: bool = True
    _tokens_without_embedding: int = 0

    def __post_init__(self) -> None:
        self._tokens_without_embedding = get_integer(self.information, "tokens_without_embedding", 0)
        if "mrope_positions" in self.information:
            _check_positions(self.information)
        if self.prompt_embeds is None:
            return
        rows = get_tensor({_EMBEDS: self.prompt_embeds}, _EMBEDS, num_dims=2)
        if not rows.numel() or not rows.is_floating_point():
            raise PayloadError(f"{_EMBEDS}: expected rows of floats, got {tuple(rows.shape)} of {rows.dtype}")
        size = rows.shape[1:]
        tail = get_tensor({"decode_embeds": self.prompt_embeds[:0], **self.information}, "decode_embeds", num_dims=2)
        if tail.shape[1:] != size:
            raise PayloadError(
                f"decode_embeds {tuple(tail.shape)} do not fit prompt_embeds {tuple(self.prompt_embeds.shape)}"
            )
        self._arrived = [self.prompt_embeds, tail]
        self._is_whole = not get_integer(self.information, MORE_EMBEDS_FOLLOW, 0)

    def append_embeds(self, rows: torch.Tensor, *, is_last: bool) -> None:
        """Append `decode_embeds` rows (num_rows, embedding_size) on the host."""
        self._arrived.append(rows)
        self._is_whole = is_last

    def tokens_without_embedding(self, start: int, length: int) -> int:
        """Count the positions in [start, start + length) that are prompt tokens without their own embedding."""
        return max(0, min(length, self._tokens_without_embedding - start))

    def input_embeds(
        self,
        start: int,
        length: int,
        device: torch.device,
        dtype: torch.dtype | None = None,
        project: Projection | None = None,
    ) -> torch.Tensor | None:
        """Return the input embeddings (length, embedding_size) of positions [start, start + length); None without any.

        Position p takes row p of the prompt embeddings followed by `decode_embeds`. Positions past the end repeat the
        last row, the producer's padding. `dtype` None keeps the rows' dtype. `project` is applied once to each row.
        Raises `RuntimeError` for a position whose row has not arrived.
        """
        if self.prompt_embeds is None:
            return None
        if self._arrived:
            self._to_device(torch.cat(self._arrived), device, dtype, project)
            self._arrived = []
        assert self._embeds is not None  # with prompt embeddings there are rows
        missing = min(length, start + length - self._num_embeds)
        if missing <= 0:
            return self._embeds[start : start + length]
        if not self._is_whole:
            raise RuntimeError(
                f"positions {start} to {start + length - 1}: {missing} input embeddings have not arrived"
            )
        # No index tensors: copying one to the device would wait for its queue in every step.
        last = self._embeds[self._num_embeds - 1].expand(missing, -1)
        return last if missing == length else torch.cat([self._embeds[start : self._num_embeds], last])

    def _to_device(
        self, rows: torch.Tensor, device: torch.device, dtype: torch.dtype | None, project: Projection | None
    ) -> None:
        """Append `rows` to a device buffer whose capacity doubles, so that each row is moved only a few times."""
        rows = rows.to(dtype or rows.dtype)
        if device.type == "cuda":
            rows = rows.pin_memory()  # otherwise the copy would wait for the device's queue
        if project is not None:
            # Positions in the prompt: all of it arrives at first.
            hidden = get_integers(self.information, HIDDEN_POSITIONS) if HIDDEN_POSITIONS in self.information else []
            rows = project(rows.to(device, non_blocking=True), hidden if self._embeds is None else [])
        end = self._num_embeds + rows.shape[0]
        if self._embeds is None or end > self._embeds.shape[0]:
            room = max(end, 2 * self._num_embeds)
            grown = torch.empty((room, rows.shape[1]), dtype=rows.dtype, device=device)
            if self._embeds is not None:
                grown[: self._num_embeds] = self._embeds[: self._num_embeds]
            self._embeds = grown
        self._embeds[self._num_embeds : end].copy_(rows, non_blocking=True)
        self._num_embeds = end


def _check_positions(information: dict[str, object]) -> None:
    positions = get_tensor(information, "mrope_positions", num_dims=2)
    if positions.dtype != torch.int64 or positions.shape[0] != 3 or not positions.shape[1]:
        raise PayloadError(
            f"mrope_positions: expected (3, num_prompt_tokens) of int64, got {tuple(positions.shape)} of "
            f"{str(positions.dtype).removeprefix('torch.')}"
        )


def read_request_payload(
    sampling_params: object, pooling_params: object, limits: PayloadLimits = DEFAULT_LIMITS
) -> RequestPayload:
    """Return the payload of a new request, empty if it carries none. Raises `PayloadError`."""
    extra = getattr(sampling_params, "extra_args", None) or getattr(pooling_params, "extra_kwargs", None) or {}
    raw = extra.get(ADDITIONAL_INFORMATION)
    information = {} if raw is None else decode_additional_information(raw, limits)
    return RequestPayload(bool(extra.get(WANTS_HIDDEN_STATES)), information.pop(_EMBEDS, None), information)
