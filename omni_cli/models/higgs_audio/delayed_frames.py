"""The codes of each frame: all codebooks from one hidden state, and each codebook one frame after the one before it.

Codes that have not begun are the stream's begin, codes that have ended are its end. As in transformers, the first end
in a frame, of any codebook, ends the first codebook from the next frame on, the second from the one after, and so on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from vllm.v1.sample.ops.topk_topp_sampler import apply_top_k_top_p

from omni_cli.vllm_integration.code_frames import Draws, FrameStore, RequestFrames

if TYPE_CHECKING:
    from vllm import SamplingParams

    from omni_cli.vllm_integration.hidden_states import ComputedSpan

_GREEDY_BELOW = 1e-5


@dataclass
class DelayedRequest(RequestFrames):
    """The frames of one request; `num_ended` (1,) has, for each of them, how many codebooks end after it."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    # The end is not drawn before this frame.
    first_end: float = 0
    num_ended: list[torch.Tensor] = field(default_factory=list)


class DelayedFrames(FrameStore):
    """The frames of all requests in a worker."""

    guides = True
    _model: Any
    _requests: dict[str, DelayedRequest]  # type: ignore[assignment]

    def __init__(self, model: Any, device: torch.device) -> None:
        super().__init__(model, device)
        config = model.config
        self._end: int = config.audio_stream_eos_id
        ids = torch.arange(config.codebook_size, device=device)
        self._is_begin, self._is_end = ids == config.audio_stream_bos_id, ids == self._end
        self._codebooks = torch.arange(model.num_codebooks, device=device)

    def begin(
        self, request_id: str, num_prompt_tokens: int, params: SamplingParams, information: Mapping[str, Any]
    ) -> None:
        self._requests[request_id] = DelayedRequest(
            num_prompt_tokens,
            Draws(params.seed or 0, self.num_codebooks - 1),
            params.temperature < _GREEDY_BELOW,
            temperature=params.temperature,
            top_k=max(params.top_k, 0),
            top_p=params.top_p,
            first_end=float("inf") if params.ignore_eos else params.min_tokens,
        )

    def guide(self, spans: Sequence[ComputedSpan], logits: torch.Tensor) -> torch.Tensor:
        return self._masked(spans, logits[:, None], slice(0, 1))[:, 0]

    def predict(self, spans: Sequence[ComputedSpan], hidden: torch.Tensor, first_codes: torch.Tensor) -> torch.Tensor:
        requests, frames = self._frames(spans)
        logits = self._masked(spans, self._model.compute_other_logits(hidden).float(), slice(1, None))
        others = logits.argmax(dim=-1)
        sampled = [index for index, request in enumerate(requests) if not request.is_greedy]
        if sampled:
            others[sampled] = self._draw(
                [requests[index] for index in sampled], [frames[index] for index in sampled], logits[sampled]
            )
        codes = torch.cat([first_codes.long()[:, None], others], dim=1)
        before = self._num_ended(requests, frames)
        ended = torch.where(before > 0, before + 1, (codes == self._end).any(dim=1, keepdim=True).long())
        for request, frame, row, count in zip(requests, frames, codes.unbind(), ended.unbind(), strict=True):
            request.put(frame, row)
            del request.num_ended[frame:]
            request.num_ended.append(count)
        self._latest, self._latest_of = (
            self._model.rows_of_codes(codes),
            [(span.request_id, span.end, 1) for span in spans],
        )
        return codes

    def _frames(self, spans: Sequence[ComputedSpan]) -> tuple[list[DelayedRequest], list[int]]:
        """Return the requests of spans, and the number of the frame that follows each."""
        requests = [self._requests[span.request_id] for span in spans]
        return requests, [span.end - request.num_prompt_tokens for span, request in zip(spans, requests, strict=True)]

    def _num_ended(self, requests: Sequence[DelayedRequest], frames: Sequence[int]) -> torch.Tensor:
        """Return how many codebooks have ended before these frames, (num_requests, 1)."""
        none = self._codebooks.new_zeros(1)
        counts = [
            request.num_ended[frame - 1] if frame else none for request, frame in zip(requests, frames, strict=True)
        ]
        return torch.stack(counts)

    def _masked(self, spans: Sequence[ComputedSpan], logits: torch.Tensor, which: slice) -> torch.Tensor:
        """Mask what the delay forbids in the logits (num_requests, num_codebooks, codebook_size) of some codebooks."""
        requests, frames = self._frames(spans)
        codebooks = self._codebooks[which]
        times = torch.tensor(frames, device=self._device)[:, None]
        begins = (times <= codebooks)[..., None]
        ends = (codebooks < self._num_ended(requests, frames))[..., None]
        early = [frame < request.first_end for request, frame in zip(requests, frames, strict=True)]
        goes_on = torch.tensor(early, device=self._device)[:, None, None] & ~ends
        forbidden = (begins & ~self._is_begin) | (ends & ~self._is_end) | (goes_on & self._is_end)
        return logits.masked_fill(forbidden, float("-inf"))

    def _draw(self, requests: Sequence[DelayedRequest], frames: Sequence[int], logits: torch.Tensor) -> torch.Tensor:
        """Draw codes (num_requests, num_codebooks - 1) by inverting each distribution function."""
        num_codes, size = logits.shape[1:]

        def per_row(values: Sequence[float]) -> torch.Tensor:
            return torch.tensor(values, device=self._device).repeat_interleave(num_codes)

        scaled = logits.flatten(0, 1) / per_row([request.temperature for request in requests])[:, None]
        top_k = per_row([min(request.top_k or size, size) for request in requests])
        top_p = per_row([request.top_p for request in requests])
        reached = apply_top_k_top_p(scaled, top_k, top_p).softmax(dim=-1).cumsum(dim=-1)
        drawn = np.stack([request.draws.get(frame) for request, frame in zip(requests, frames, strict=True)])
        # Rounding must not lead past the last code that is possible.
        wanted = torch.from_numpy(drawn).to(self._device).flatten()[:, None] * reached[:, -1:]
        chosen = torch.searchsorted(reached, wanted, right=True)
        last = (reached < reached[:, -1:]).sum(dim=-1, keepdim=True)
        return torch.minimum(chosen, last).view(len(requests), num_codes)
