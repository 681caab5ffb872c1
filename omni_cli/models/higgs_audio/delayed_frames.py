"""The codes of each frame: all codebooks from one hidden state, and each codebook one frame after the one before it.

Codes that have not begun are the stream's begin, codes that have ended are its end. As in transformers, the first end
in a frame, of any codebook, ends the first codebook from the next frame on, the second from the one after, and so on.
With the checkpoint's limit on repeated codes, a sampled code that reaches it is drawn again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence
from vllm.v1.sample.ops.topk_topp_sampler import apply_top_k_top_p

from omni_cli.backends.vllm.code_runner import Draws, FrameStore, RequestFrames
from omni_cli.checkpoints.files import read_object

if TYPE_CHECKING:
    from vllm import SamplingParams

    from omni_cli.backends.vllm.hidden_states import ComputedSpan

# In a request's information: the codes (num_frames, num_codebooks) int64 of the sound in its prompt.
CODES_BEFORE = "codes_before"
_GREEDY_BELOW = 1e-5


@dataclass(frozen=True)
class RepeatLimit:
    """A code is drawn again if it is in `max_repeats` of the `window` frames before it."""

    window: int
    max_repeats: int


def read_repeat_limit(folder: Path) -> RepeatLimit | None:
    """Return the limit in a checkpoint's generation_config.json; None if it has none."""
    file = folder / "generation_config.json"
    generation = read_object(file) if file.is_file() else {}
    window, max_repeats = (generation.get(key) for key in ("ras_win_len", "ras_win_max_num_repeat"))
    if window is None or max_repeats is None:
        return None
    return RepeatLimit(int(window), int(max_repeats))


@dataclass
class DelayedRequest(RequestFrames):
    """The frames of one request; `num_ended` (1,) has how many codebooks end before each of them, and the next one."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    # The end is not drawn before this frame.
    first_end: float = 0
    # Those that draw codes again, and the frames of the prompt's sound, oldest first.
    new_draws: Draws = field(default_factory=lambda: Draws(0, 0))
    before: tuple[torch.Tensor, ...] = ()
    num_ended: list[torch.Tensor] = field(default_factory=list)


Frame = tuple[DelayedRequest, int]
"""A request, and the number of one of its frames."""


class DelayedFrames(FrameStore):
    """The frames of all requests in a worker."""

    guides = draws_first_again = True
    _model: Any
    _requests: dict[str, DelayedRequest]  # type: ignore[assignment]

    def __init__(self, model: Any, device: torch.device) -> None:
        super().__init__(model, device)
        config = model.config
        self._begin: int = config.audio_stream_bos_id
        self._end: int = config.audio_stream_eos_id
        ids = torch.arange(config.codebook_size, device=device)
        self._is_begin, self._is_end = ids == self._begin, ids == self._end
        self._codebooks = torch.arange(model.num_codebooks, device=device)
        self._limit: RepeatLimit | None = model.repeat_limit

    def begin(
        self, request_id: str, num_prompt_tokens: int, params: SamplingParams, information: Mapping[str, Any]
    ) -> None:
        seed = params.seed or 0
        self._requests[request_id] = DelayedRequest(
            num_prompt_tokens,
            Draws(seed, self.num_codebooks - 1),
            params.temperature < _GREEDY_BELOW,
            temperature=params.temperature,
            top_k=max(params.top_k, 0),
            top_p=params.top_p,
            first_end=float("inf") if params.ignore_eos else params.min_tokens,
            new_draws=Draws(~seed, self.num_codebooks),
            before=tuple(information[CODES_BEFORE].to(self._device)) if CODES_BEFORE in information else (),
            num_ended=[self._codebooks.new_zeros(1)],
        )

    def guide(self, spans: Sequence[ComputedSpan], logits: torch.Tensor) -> torch.Tensor:
        return self._mask_logits(spans, logits[:, None], slice(0, 1))[:, 0]

    def predict(self, spans: Sequence[ComputedSpan], hidden: torch.Tensor, first_codes: torch.Tensor) -> torch.Tensor:
        frames = self._frames(spans)
        raw_logits = self._model.compute_other_logits(hidden).float()
        logits = self._mask_logits(spans, raw_logits, slice(1, None))
        others = logits.argmax(dim=-1)
        sampled = [index for index, (request, _) in enumerate(frames) if not request.is_greedy]
        drawing = [frames[index] for index in sampled]
        if sampled:
            others[sampled] = self._draw(drawing, logits[sampled])
        codes = torch.cat([first_codes.long()[:, None], others], dim=1)
        if sampled and self._limit is not None:
            first = self._model.compute_logits(hidden[sampled]).float()
            raw_logits = torch.cat([first[:, None], raw_logits[sampled]], dim=1)
            codes[sampled] = self._without_repeats(drawing, raw_logits, codes[sampled])
        before = self._num_ended(frames)
        ended = torch.where(before > 0, before + 1, (codes == self._end).any(dim=1, keepdim=True).long())
        for (request, frame), row, count in zip(frames, codes.unbind(), ended.unbind(), strict=True):
            request.put(frame, row)
            request.num_ended[frame + 1 :] = [count]
        self._latest = self._model.rows_of_codes(codes)
        self._latest_of = [(span.request_id, span.end, 1) for span in spans]
        return codes

    def _frames(self, spans: Sequence[ComputedSpan]) -> list[Frame]:
        """Return the frames that follow spans."""
        requests = [self._requests[span.request_id] for span in spans]
        return [(request, span.end - request.num_prompt_tokens) for request, span in zip(requests, spans, strict=True)]

    def _num_ended(self, frames: Sequence[Frame]) -> torch.Tensor:
        """Return how many codebooks have ended before these frames, (num_requests, 1)."""
        return torch.stack([request.num_ended[number] for request, number in frames])

    def _goes_on(self, frames: Sequence[Frame]) -> torch.Tensor:
        """Return (num_requests, 1, 1): True where it is too early for an end to be drawn."""
        early = [number < request.first_end for request, number in frames]
        return torch.tensor(early, device=self._device)[:, None, None]

    def _mask_logits(self, spans: Sequence[ComputedSpan], logits: torch.Tensor, which: slice) -> torch.Tensor:
        """Mask what the delay forbids in the logits (num_requests, num_codebooks, codebook_size) of some codebooks."""
        frames, codebooks = self._frames(spans), self._codebooks[which]
        times = torch.tensor([number for _, number in frames], device=self._device)[:, None]
        begins = (times <= codebooks)[..., None]
        ends = (codebooks < self._num_ended(frames))[..., None]
        goes_on = self._goes_on(frames) & ~ends
        forbidden = (begins & ~self._is_begin) | (ends & ~self._is_end) | (goes_on & self._is_end)
        return logits.masked_fill(forbidden, float("-inf"))

    def _draw(self, frames: Sequence[Frame], logits: torch.Tensor) -> torch.Tensor:
        """Draw codes (num_requests, num_codebooks - 1) by inverting each distribution function."""
        num_codes, size = logits.shape[1:]

        def per_row(values: Sequence[float]) -> torch.Tensor:
            return torch.tensor(values, device=self._device).repeat_interleave(num_codes)

        scaled = logits.flatten(0, 1) / per_row([request.temperature for request, _ in frames])[:, None]
        top_k = per_row([min(request.top_k or size, size) for request, _ in frames])
        top_p = per_row([request.top_p for request, _ in frames])
        probabilities = apply_top_k_top_p(scaled, top_k, top_p).softmax(dim=-1)
        drawn = np.stack([request.draws.get(number) for request, number in frames])
        return self._invert(probabilities.view_as(logits), drawn)

    def _without_repeats(self, frames: Sequence[Frame], logits: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
        """Return codes (num_requests, num_codebooks) in which those that repeat too often are drawn again.

        They are drawn from `logits` (num_requests, num_codebooks, codebook_size) as the model gives them: as in
        transformers, neither the sampling parameters nor the delay apply.
        """
        assert self._limit is not None
        # Begins do not count, so that they fill windows that are shorter.
        begin = self._codebooks.new_full((self.num_codebooks,), self._begin)
        recent = [
            torch.stack([*request.before, *request.codes[:number]][-self._limit.window :] or [begin])
            for request, number in frames
        ]
        windows = pad_sequence(recent, batch_first=True, padding_value=self._begin)
        counts = ~(self._is_begin | self._is_end)[windows] & (windows == codes[:, None])
        probabilities = logits.masked_fill(self._goes_on(frames) & self._is_end, float("-inf")).softmax(dim=-1)
        drawn = np.stack([request.new_draws.get(number) for request, number in frames])
        return torch.where(counts.sum(dim=1) >= self._limit.max_repeats, self._invert(probabilities, drawn), codes)

    def _invert(self, probabilities: torch.Tensor, drawn: np.ndarray) -> torch.Tensor:
        """Return the codes (...) of uniform numbers (...) float32 by probabilities (..., codebook_size)."""
        reached = probabilities.cumsum(dim=-1)
        # Rounding must not lead past the last code that is possible.
        wanted = torch.from_numpy(drawn).to(self._device)[..., None] * reached[..., -1:]
        chosen = torch.searchsorted(reached, wanted, right=True)
        last = (reached < reached[..., -1:]).sum(dim=-1, keepdim=True)
        return torch.minimum(chosen, last).squeeze(-1)
