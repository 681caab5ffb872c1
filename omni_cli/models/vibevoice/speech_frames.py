"""The sound of each step, and the input row that it gives the next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from omni_cli.backends.vllm.code_runner import Draws, FrameStore, RequestFrames

if TYPE_CHECKING:
    from vllm import SamplingParams

    from omni_cli.backends.vllm.hidden_states import ComputedSpan

# In a request's information: the state of its noise's generator, and the last id of its prompt.
NOISE, LAST_TOKEN = "noise", "last_token"


@dataclass
class SpokenFrames(RequestFrames):
    """The frames of one request; `codes` are input rows (hidden_size,), one for each of the `tokens`.

    `negative` is the state (hidden_size,) of the diffusion's branch, for the next frame if that is sound.
    """

    slot: int = 0
    noise: torch.Generator = field(default_factory=torch.Generator)
    last_token: int = 0
    tokens: list[int] = field(default_factory=list)
    sounds: dict[int, torch.Tensor] = field(default_factory=dict)
    scores: dict[int, torch.Tensor] = field(default_factory=dict)
    negative: torch.Tensor | None = None


class SpeechStore(FrameStore):
    """The frames of all requests in a worker. A frame is made once; if vLLM repeats its step, it is returned again."""

    guides = True
    _model: Any
    _requests: dict[str, SpokenFrames]  # type: ignore[assignment]

    def __init__(self, model: Any, device: torch.device) -> None:
        super().__init__(model, device)
        self._free = list(range(model.num_slots))
        config = model.config
        self._sound, self._begin = config.audio_token_id, config.audio_bos_token_id
        self._allowed = torch.full((config.text_config.vocab_size,), float("-inf"), device=device)
        self._allowed[[self._sound, self._begin, config.audio_eos_token_id, config.eos_token_id]] = 0.0
        self._begin_id = torch.tensor([self._begin], device=device)

    def begin(
        self, request_id: str, num_prompt_tokens: int, params: SamplingParams, information: Mapping[str, Any]
    ) -> None:
        no_codes = Draws(0, 0)
        request = SpokenFrames(num_prompt_tokens, no_codes, is_greedy=True, slot=self._free.pop())
        self._model.clear_slot(request.slot)
        request.noise.set_state(information[NOISE].clone())
        (request.last_token,) = information[LAST_TOKEN]
        self._requests[request_id] = request

    def forget(self, request_id: str) -> None:
        request = self._requests.pop(request_id, None)
        if request is not None:
            self._free.append(request.slot)

    def guide(self, spans: Sequence[ComputedSpan], logits: torch.Tensor) -> torch.Tensor:
        """Return logits (num_requests, vocab_size) of control tokens alone, guided as transformers guides them."""
        requests = [self._requests[span.request_id] for span in spans]
        new = [index for index, span in enumerate(spans) if self._frame(span) == len(requests[index].codes)]
        logits = logits.float()
        plain_states = self._look_ahead([requests[index] for index in new]) if new else None
        if plain_states is not None:
            plain = self._model.compute_logits(plain_states).float().log_softmax(-1)
            which = self._on_device(new)
            guided = logits[which].log_softmax(-1)
            logits[which] = self._model.guidance_scale * (guided - plain) + plain
        logits = logits + self._allowed
        for index, (span, request) in enumerate(zip(spans, requests, strict=True)):
            frame = self._frame(span)
            if index in new:
                request.scores = {kept: row for kept, row in request.scores.items() if kept == frame - 1}
                request.scores[frame] = logits[index].clone()
            else:  # vLLM repeats a step whose token it discarded
                logits[index] = request.scores[frame]
        return logits

    def predict(self, spans: Sequence[ComputedSpan], hidden: torch.Tensor, first_codes: torch.Tensor) -> torch.Tensor:
        """Make the sound (num_requests, samples_per_frame), float32, of these tokens; zeros for control tokens."""
        tokens = first_codes.tolist()
        requests = [self._requests[span.request_id] for span in spans]
        frames = [self._frame(span) for span in spans]
        new = [index for index, request in enumerate(requests) if frames[index] == len(request.codes)]
        rows = self._model.model.embed_tokens(first_codes.long())
        sounds = hidden.new_zeros((len(spans), self._model.samples_per_frame), dtype=torch.float32)
        spoken = [index for index in new if tokens[index] == self._sound]
        for index in new:
            if tokens[index] == self._begin:
                self._model.branches.clear(requests[index].slot)
        if spoken:
            which = self._on_device(spoken)
            sounds[which], rows[which] = self._speak([requests[index] for index in spoken], hidden[which])
        for index, (request, frame) in enumerate(zip(requests, frames, strict=True)):
            if index in new:
                request.put(frame, rows[index])
                request.tokens.append(tokens[index])
                # Only the latest frames are ever repeated.
                request.sounds = {frame - 1: request.sounds[frame - 1]} if frame - 1 in request.sounds else {}
                request.sounds[frame] = sounds[index]
            else:
                sounds[index], rows[index] = request.sounds[frame], request.codes[frame]
        self._latest, self._latest_of = rows, [(span.request_id, span.end, 1) for span in spans]
        return sounds

    def _speak(self, requests: list[SpokenFrames], hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the samples and the next input rows of requests whose latest token is sound."""
        slots = [request.slot for request in requests]
        self._model.branches.keep(slots)
        negatives = torch.stack([request.negative for request in requests if request.negative is not None])
        latent_size = self._model.config.audio_config.hidden_size
        # The reference draws a second row per request, without use for it.
        noise = [torch.randn((2, latent_size), generator=request.noise, dtype=torch.float32)[0] for request in requests]
        made: tuple[torch.Tensor, torch.Tensor] = self._model.speak(slots, hidden, negatives, torch.stack(noise))
        return made

    def _look_ahead(self, requests: list[SpokenFrames]) -> torch.Tensor | None:
        """Advance both branches of each request by one row in one batch.

        Note the state of the diffusion's branch; return the states of the control tokens' branch, None if there is no
        guidance. The input rows of both branches are known before the token is sampled. A request whose token is sound
        keeps the row of the diffusion's branch.
        """
        branches, first = self._model.branches, self._model.model.embed_tokens(self._begin_id)[0]
        slots = [request.slot for request in requests]
        rows = torch.stack([request.codes[-1] if request.codes else first for request in requests])
        controls = [slot + self._model.num_slots for slot in slots] if self._model.guidance_scale != 1 else []
        if controls:
            latest = [request.tokens[-1] if request.tokens else request.last_token for request in requests]
            rows = torch.cat([rows, self._model.model.embed_tokens(self._on_device(latest))])
        states = branches.look_ahead([*slots, *controls], rows)
        for request, state in zip(requests, states, strict=False):
            request.negative = state
        branches.keep(controls)
        return states[len(slots) :] if controls else None

    def _on_device(self, numbers: list[int]) -> torch.Tensor:
        return torch.tensor(numbers).to(self._device, non_blocking=True)  # `torch.tensor` itself would wait for it

    def _frame(self, span: ComputedSpan) -> int:
        return span.end - self._requests[span.request_id].num_prompt_tokens
