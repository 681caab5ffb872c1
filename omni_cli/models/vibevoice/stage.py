"""VibeVoice's stage: text and voices in, sound out as it is made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AutoProcessor
from vllm.outputs import RequestOutput

from omni_cli.backends.vllm.input_embeds_stage import EmbeddingTable
from omni_cli.backends.vllm.stage import ActiveRequest
from omni_cli.core.errors import InputError, StageError
from omni_cli.models.codec.frame_stage import FRAMES_PER_PART, StepStage
from omni_cli.models.vibevoice.family import SPEAKER, SPEAKERS
from omni_cli.models.vibevoice.prompts import make_inputs
from omni_cli.models.vibevoice.settings import SpeakerConfig
from omni_cli.models.vibevoice.speech_frames import LAST_TOKEN, NOISE
from omni_cli.models.voices import note_on_voice, speaker_for
from omni_cli.requests.outputs import AudioOutput
from omni_cli.requests.voices import rate_notes
from omni_cli.stage.messages import Report, RequestDone, WaveformChunk
from omni_cli.stage.protocol import StageSpec

# A stage that kept all the sound of an hour until its end would hold it three times there.
_FRAMES_PER_WHOLE_PART = 256


@dataclass(frozen=True)
class VoicedPrompt:
    """A prompt's token ids, their input rows (num_tokens, hidden_size), and the state of the noise after the voices."""

    prompt_token_ids: list[int]
    prompt_embeds: torch.Tensor
    noise: torch.Tensor

    @property
    def decode_embeds(self) -> torch.Tensor:
        """No rows: the worker makes the input rows of later steps."""
        return torch.zeros_like(self.prompt_embeds[:1])

    def information(self) -> dict[str, object]:
        last = self.prompt_token_ids[-1]
        return {"decode_embeds": self.decode_embeds, NOISE: self.noise, LAST_TOKEN: [last]}


class SpeakerStage(StepStage):
    """Speaks a text: tokens control the speech, and a token that means sound comes with its samples."""

    def __init__(self, spec: StageSpec, emit: Callable[[Report], None]) -> None:
        assert isinstance(spec.stage, SpeakerConfig)
        if spec.stage.has_ranks_elsewhere:
            raise StageError("VibeVoice runs on one rank", stage=spec.stage.name, hint="`--replicas N` starts several")
        super().__init__(spec, emit)
        (self.model,) = self.engine.collective_rpc("get_model")
        self.num_codebooks = self.model.samples_per_frame
        self._processor: Any = AutoProcessor.from_pretrained(spec.model)
        self._sample_rate: int = self._processor.feature_extractor.sampling_rate
        self._embed = EmbeddingTable(spec.model, "model.language_model.embed_tokens.weight", self.dtype)

    def engine_args(self) -> dict[str, object]:
        assert isinstance(self.spec.stage, SpeakerConfig)
        steps, guidance = self.spec.stage.num_diffusion_steps, self.spec.stage.cfg_scale
        overrides = {"architectures": [SPEAKER], "num_diffusion_steps": steps, "cfg_scale": guidance}
        return {**super().engine_args(), "hf_overrides": overrides}

    @property
    def voices(self) -> tuple[str, ...]:
        return SPEAKERS

    @property
    def settings(self) -> dict[str, object]:
        steps, guidance = self.model.num_steps, self.model.guidance_scale
        return {**super().settings, "num_diffusion_steps": steps, "cfg_scale": guidance}

    @property
    def effective(self) -> dict[str, object]:
        return {**super().effective, "stream": self.spec.stage.streams}

    def begin(self, active: ActiveRequest) -> tuple[VoicedPrompt, dict[str, object]]:
        request = active.request
        noise = torch.Generator().manual_seed(request.seed)
        inputs = make_inputs(self._processor, request)
        token_ids: list[int] = inputs["input_ids"][0].tolist()
        if not token_ids:
            raise InputError("the prompt is empty")
        rows = self._embed(token_ids)
        if "input_values" in inputs:
            hop_length = self.config.audio_config.hop_length
            num_frames = [-(-count // hop_length) for count in inputs["padding_mask"].sum(dim=-1).tolist()]
            voices = self.model.voice_rows(inputs["input_values"], num_frames, noise)
            rows[inputs["input_ids"][0] == self.config.audio_token_id] = voices.to(rows)
        speaker = request.speech.speaker
        named = () if speaker is None else note_on_voice(speaker, speaker_for(speaker, SPEAKERS))
        active.context["notes"] = (*named, *rate_notes(request.speech.voices, self._sample_rate))
        sampling = {**self.spec.ar.sampling.set_values(), **request.sampling}
        if sampling.get("temperature"):
            raise InputError("control tokens are not sampled: this model has no `temperature`")
        ends = [] if sampling.get("ignore_eos") else [self.config.eos_token_id]
        return VoicedPrompt(token_ids, rows, noise.get_state()), {"stop_token_ids": ends, "temperature": 0.0}

    def output(self, active: ActiveRequest, output: RequestOutput) -> list[Report]:
        sounds: list[torch.Tensor] = active.context.setdefault("sounds", [])
        rows = self.take_rows(active)
        if rows is not None:
            tokens = output.outputs[0].token_ids
            if len(rows) != len(tokens):
                message = f"{len(rows)} rows of samples do not fit {len(tokens)} tokens"
                raise StageError(message, stage=self.spec.stage.name)
            made = [row for row, token in zip(rows, tokens, strict=True) if token == self.config.audio_token_id]
            self.check_numbers(torch.stack(made) if made else None, "samples")
            sounds += made
        chunks: list[Report] = []
        num_chunks = active.context.setdefault("num_chunks", 0)
        streamed = FRAMES_PER_PART if num_chunks else 1
        needed = streamed if active.request.speech.stream_audio else _FRAMES_PER_WHOLE_PART
        if len(sounds) >= needed or (sounds and output.finished):
            active.context["num_chunks"] += 1
            chunks.append(WaveformChunk(active.request.request_id, self._take_audio(active)))
        return [*chunks, *super().output(active, output)]

    def finish(self, active: ActiveRequest, output: RequestOutput) -> RequestDone:
        report = super().finish(active, output)
        num_chunks = active.context["num_chunks"]
        if not num_chunks:
            raise InputError("the model said nothing: it ended at once")
        if active.request.speech.stream_audio:
            report.trace["num_chunks"] = num_chunks
        return report

    def _take_audio(self, active: ActiveRequest) -> AudioOutput:
        sounds, active.context["sounds"] = active.context["sounds"], []
        return AudioOutput(torch.cat(sounds).numpy(), self._sample_rate)
