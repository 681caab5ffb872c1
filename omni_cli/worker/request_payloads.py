"""The part of a vLLM request that is ours: what travels in `extra_args` / `extra_kwargs`, decoded once a request."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from omni_cli.worker.payloads import (
    PayloadError,
    decode_additional_information,
    decode_prompt_embeds,
)

WANTS_HIDDEN_STATES = "omni_wants_hidden_states"
PROMPT_EMBEDS = "omni_prompt_embeds"
ADDITIONAL_INFORMATION = "omni_additional_information"


@dataclass
class RequestPayload:
    """`prompt_embeds` (num_prompt_tokens, embedding_size) or None; `information` tensors and lists by name."""

    wants_hidden_states: bool = False
    prompt_embeds: torch.Tensor | None = None
    information: dict[str, Any] = field(default_factory=dict)
    _conditions: torch.Tensor | None = None

    def num_bare(self, start: int, length: int) -> int:
        """How many of positions [start, start + length) are prompt tokens that go in without their own embedding."""
        (num_bare_tokens,) = self.information.get("num_bare_tokens", (0,))
        return max(0, min(length, num_bare_tokens - start))

    def conditions(
        self, start: int, length: int, device: torch.device, dtype: torch.dtype | None = None
    ) -> torch.Tensor | None:
        """Condition rows (length, embedding_size) of positions [start, start + length), or None without any.

        Position p is conditioned on row p of the prompt embeddings followed by the `decode_conditions` rows; past
        the end the last row holds, which is the padding that the producer puts there. `dtype` None leaves it as it is.
        """
        if self.prompt_embeds is None:
            return None
        if self._conditions is None:
            self._conditions = self._all_conditions(device, dtype)
        rows = self._conditions[start : start + length]
        missing = length - rows.shape[0]
        if not missing:
            return rows
        # No index tensors: bringing one to the device would wait for all that runs there, in every step.
        last = self._conditions[-1:].expand(missing, -1)
        return last if missing == length else torch.cat([rows, last])

    def _all_conditions(self, device: torch.device, dtype: torch.dtype | None) -> torch.Tensor:
        embeds = self.prompt_embeds
        assert embeds is not None
        tail = self.information.get("decode_conditions", embeds[:0])
        if tail.shape[1:] != embeds.shape[1:]:
            raise PayloadError(f"decode_conditions {tuple(tail.shape)} do not fit prompt_embeds {tuple(embeds.shape)}")
        rows = torch.cat([embeds, tail]).to(dtype)
        if device.type == "cuda":
            rows = rows.pin_memory()  # or the copy would wait for all that runs on the device
        return rows.to(device, non_blocking=True)


def read_request_payload(sampling_params: Any, pooling_params: Any) -> RequestPayload:
    """The payload of a new request; empty where the request carries none. Raises `PayloadError`."""
    extra = getattr(sampling_params, "extra_args", None) or getattr(pooling_params, "extra_kwargs", None) or {}
    embeds = extra.get(PROMPT_EMBEDS)
    information = extra.get(ADDITIONAL_INFORMATION)
    return RequestPayload(
        wants_hidden_states=bool(extra.get(WANTS_HIDDEN_STATES)),
        prompt_embeds=None if embeds is None else decode_prompt_embeds(embeds),
        information={} if information is None else decode_additional_information(information),
    )
