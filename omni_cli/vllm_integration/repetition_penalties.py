"""Repetition penalties whose tokens stay on the device.

vLLM's V1 runner builds them from the host's copy of all earlier tokens: before it samples, a step waits for the token
of the step before, and copies all tokens of the request to the device again. The penalty itself is vLLM's. Its V2
runner keeps the tokens on the device, too.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from vllm._custom_ops import apply_repetition_penalties

if TYPE_CHECKING:
    from vllm import SamplingParams


class RepetitionPenalties:
    """The penalties of all requests, and the tokens that those of the current batch have had."""

    def __init__(self, max_num_reqs: int, device: torch.device) -> None:
        self._device = device
        self._penalties: dict[str, float] = {}
        # Requests in the batch, by row of `_seen`. Its last row is that of all requests without a penalty.
        self._rows: dict[str, int] = {}
        self._free = list(range(max_num_reqs))
        self._seen = torch.empty(0, 0, dtype=torch.bool, device=device)
        self._yes = torch.ones((), dtype=torch.bool, device=device)
        self._batch: list[str] = []
        self._batch_rows: torch.Tensor | None = None
        self._batch_penalties = torch.empty(0, device=device)

    def begin(self, request_id: str, params: SamplingParams | None) -> SamplingParams | None:
        """Take a request's penalty over; return the parameters that are left to vLLM.

        A request with other penalties, which count tokens, is left to vLLM as it is.
        """
        self.forget(request_id)
        if params is None or params.repetition_penalty == 1 or params.frequency_penalty or params.presence_penalty:
            return params
        self._penalties[request_id] = params.repetition_penalty
        params = copy.copy(params)
        params.repetition_penalty = 1.0
        return params

    def forget(self, request_id: str) -> None:
        if self._penalties.pop(request_id, None) is not None:
            self._leave(request_id)
            self._batch = []

    def use(self, request_ids: Sequence[str], requests: Mapping[str, Any], vocab_size: int) -> None:
        """Set the batch, one row of logits for each of `request_ids`; `requests` has the tokens of those that enter."""
        if self._batch == request_ids:
            return
        self._batch = list(request_ids)
        for request_id in self._rows.keys() - set(request_ids):  # a preempted request has its tokens when it returns
            self._leave(request_id)
        penalised = [request_id for request_id in request_ids if request_id in self._penalties]
        if not penalised:
            self._batch_rows = None
            return
        spare = len(self._free) + len(self._rows)
        if not self._seen.numel():
            self._seen = torch.zeros(spare + 1, vocab_size, dtype=torch.bool, device=self._device)
        for request_id in penalised:
            if request_id not in self._rows:
                self._enter(request_id, requests[request_id])
        self._batch_rows = self._sent(np.array([self._rows.get(request_id, spare) for request_id in request_ids]))
        penalties = [self._penalties.get(request_id, 1.0) for request_id in request_ids]
        self._batch_penalties = self._sent(np.array(penalties, np.float32))

    def apply(self, logits: torch.Tensor) -> None:
        """Change the batch's logits (num_requests, vocab_size) float32 in place."""
        if self._batch_rows is not None:
            seen = self._seen[self._batch_rows]
            apply_repetition_penalties(logits, seen, seen, self._batch_penalties)

    def note(self, sampled: torch.Tensor, is_discarded: np.ndarray) -> None:
        """Add the tokens (num_requests, 1) that were sampled, except where `is_discarded`: a part of a prompt has none.

        The latter has at least as many elements as there are requests.
        """
        if self._batch_rows is None:
            return
        rows, tokens = self._batch_rows, sampled[:, 0].long()
        is_discarded = is_discarded[: len(self._batch)]
        if is_discarded.any():
            kept = self._sent(np.flatnonzero(~is_discarded))
            rows, tokens = rows[kept], tokens[kept]
        self._seen.index_put_((rows, tokens), self._yes)

    def _enter(self, request_id: str, request: Any) -> None:
        self._rows[request_id] = row = self._free.pop()
        tokens = np.array([*(request.prompt_token_ids or ()), *request.output_token_ids], np.int64)
        self._seen[row].zero_().index_fill_(0, self._sent(tokens), True)

    def _leave(self, request_id: str) -> None:
        if (row := self._rows.pop(request_id, None)) is not None:
            self._free.append(row)

    def _sent(self, values: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(values).to(self._device, non_blocking=True)
