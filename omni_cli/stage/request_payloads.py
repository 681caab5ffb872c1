"""Our part of a vLLM request, in `extra_args` or `extra_kwargs`; it is decoded once per request."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from omni_cli.stage.payloads import (
    DEFAULT_LIMITS,
    PayloadError,
    PayloadLimits,
    decode_additional_information,
    decode_prompt_embeds,
    encode_additional_information,
    encode_prompt_embeds,
    integer_of,
    integers_of,
    tensor_of,
)

WANTS_HIDDEN_STATES = "omni_wants_hidden_states"
# Holds a `DirectPayload` in place of the two encoded parts.
DIRECT_PAYLOAD = "omni_direct_payload"
PROMPT_EMBEDS = "omni_prompt_embeds"
ADDITIONAL_INFORMATION = "omni_additional_information"
# In the information: `decode_conditions` is only a beginning (`arriving_conditions`).
MORE_CONDITIONS_FOLLOW = "more_conditions_follow"
# In the information: prompt positions whose rows are hidden states, for models that project them in another way.
HIDDEN_POSITIONS = "hidden_positions"

Projection = Callable[[torch.Tensor, Sequence[int]], torch.Tensor]
"""Rows (num_rows, embedding_size), and which of them are hidden states -> rows (num_rows, hidden_size)."""


@dataclass(frozen=True)
class DirectPayload:
    """The parts of a payload, not encoded, for a worker in the same process; clients cannot send one."""

    prompt_embeds: torch.Tensor
    information: dict[str, object]


def payload_arguments(
    prompt_embeds: torch.Tensor, information: dict[str, object], limits: PayloadLimits, *, same_process: bool
) -> dict[str, object]:
    """vLLM's `extra_args` for a request: encoded, unless its worker is in the same process.

    `prompt_embeds` are (num_prompt_tokens, embedding_size). Raises `PayloadError` for what the worker would reject,
    because a request that is rejected here fails alone.
    """
    if same_process:
        for part in ({"prompt_embeds": prompt_embeds}, information):
            limits.check_values(part)
            size_bytes = sum(value.nbytes for value in part.values() if isinstance(value, torch.Tensor))
            limits.check("max_payload_bytes", size_bytes, "bytes")
        return {DIRECT_PAYLOAD: DirectPayload(prompt_embeds, information)}
    return {
        PROMPT_EMBEDS: encode_prompt_embeds(prompt_embeds, limits),
        ADDITIONAL_INFORMATION: encode_additional_information(information, limits),
    }


@dataclass
class RequestPayload:
    """`prompt_embeds` (num_prompt_tokens, embedding_size) or None; `information` tensors and lists by name.

    Condition rows move from the host to the device when they are first needed. Raises `PayloadError` for information of
    a wrong type or one that does not fit the embeddings.
    """

    wants_hidden_states: bool = False
    prompt_embeds: torch.Tensor | None = None
    information: dict[str, object] = field(default_factory=dict)
    _arrived: list[torch.Tensor] = field(default_factory=list)
    _conditions: torch.Tensor | None = None
    _num_conditions: int = 0
    _is_whole: bool = True
    _num_bare_tokens: int = 0

    def __post_init__(self) -> None:
        self._num_bare_tokens = integer_of(self.information, "num_bare_tokens", 0)
        if "mrope_positions" in self.information:
            _check_positions(self.information)
        if self.prompt_embeds is None:
            return
        size = self.prompt_embeds.shape[1:]
        tail = tensor_of(
            {"decode_conditions": self.prompt_embeds[:0], **self.information}, "decode_conditions", num_dims=2
        )
        if tail.shape[1:] != size:
            raise PayloadError(
                f"decode_conditions {tuple(tail.shape)} do not fit prompt_embeds {tuple(self.prompt_embeds.shape)}"
            )
        self._arrived = [self.prompt_embeds, tail]
        self._is_whole = not integer_of(self.information, MORE_CONDITIONS_FOLLOW, 0)

    def append_conditions(self, rows: torch.Tensor, *, is_last: bool) -> None:
        """Append `decode_conditions` rows (num_rows, embedding_size) on the host."""
        self._arrived.append(rows)
        self._is_whole = is_last

    def num_bare(self, start: int, length: int) -> int:
        """Count the positions in [start, start + length) that are prompt tokens without their own embedding."""
        return max(0, min(length, self._num_bare_tokens - start))

    def conditions(
        self,
        start: int,
        length: int,
        device: torch.device,
        dtype: torch.dtype | None = None,
        project: Projection | None = None,
    ) -> torch.Tensor | None:
        """Return the condition rows (length, embedding_size) of positions [start, start + length); None if it has none.

        Position p is conditioned on row p of the prompt embeddings followed by the `decode_conditions` rows. Positions
        past the end repeat the last row, the producer's padding. `dtype` None keeps the rows' dtype. `project` is
        applied once to each row. Raises `RuntimeError` for a position whose row has not arrived.
        """
        if self.prompt_embeds is None:
            return None
        if self._arrived:
            self._to_device(torch.cat(self._arrived), device, dtype, project)
            self._arrived = []
        assert self._conditions is not None  # with prompt embeddings there are rows
        rows = self._conditions[start : min(start + length, self._num_conditions)]
        missing = length - rows.shape[0]
        if not missing:
            return rows
        if not self._is_whole:
            raise RuntimeError(f"positions {start} to {start + length - 1}: {missing} condition rows have not arrived")
        # No index tensors: copying one to the device would wait for its queue in every step.
        last = self._conditions[self._num_conditions - 1].expand(missing, -1)
        return last if missing == length else torch.cat([rows, last])

    def _to_device(
        self, rows: torch.Tensor, device: torch.device, dtype: torch.dtype | None, project: Projection | None
    ) -> None:
        """Append `rows` to a device buffer whose capacity doubles, so that each row is moved only a few times."""
        rows = rows.to(dtype or rows.dtype)
        if device.type == "cuda":
            rows = rows.pin_memory()  # otherwise the copy would wait for the device's queue
        if project is not None:
            # Positions in the prompt: all of it arrives at first.
            hidden = integers_of(self.information, HIDDEN_POSITIONS) if HIDDEN_POSITIONS in self.information else []
            rows = project(rows.to(device, non_blocking=True), hidden if self._conditions is None else [])
        end = self._num_conditions + rows.shape[0]
        if self._conditions is None or end > self._conditions.shape[0]:
            room = max(end, 2 * self._num_conditions)
            grown = torch.empty((room, rows.shape[1]), dtype=rows.dtype, device=device)
            if self._conditions is not None:
                grown[: self._num_conditions] = self._conditions[: self._num_conditions]
            self._conditions = grown
        self._conditions[self._num_conditions : end].copy_(rows, non_blocking=True)
        self._num_conditions = end


def _check_positions(information: dict[str, object]) -> None:
    positions = tensor_of(information, "mrope_positions", num_dims=2)
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
    direct = extra.get(DIRECT_PAYLOAD)
    if isinstance(direct, DirectPayload):
        return RequestPayload(bool(extra.get(WANTS_HIDDEN_STATES)), direct.prompt_embeds, {**direct.information})
    embeds = extra.get(PROMPT_EMBEDS)
    information = extra.get(ADDITIONAL_INFORMATION)
    return RequestPayload(
        wants_hidden_states=bool(extra.get(WANTS_HIDDEN_STATES)),
        prompt_embeds=None if embeds is None else decode_prompt_embeds(embeds, limits),
        information={} if information is None else decode_additional_information(information, limits),
    )
