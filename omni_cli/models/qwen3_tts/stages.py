"""Qwen3-TTS's talker as a stage: from a text to frames of codes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoTokenizer

from omni_cli.backends.vllm.input_embeds_stage import EmbeddingTable
from omni_cli.backends.vllm.stage import ActiveRequest
from omni_cli.checkpoints.derive import read_config
from omni_cli.models.codec.frame_stage import CODES, NUM_BEFORE, FrameStage
from omni_cli.models.qwen3_tts import modules as _register  # noqa: F401 - vLLM reads the configuration
from omni_cli.models.qwen3_tts.rows import RowMaker, Voice
from omni_cli.models.qwen3_tts.settings import Qwen3TTSTalkerKeys
from omni_cli.models.qwen3_tts.spoken import CLONES, SAMPLE_RATE, read_request
from omni_cli.requests.contents import ReferenceVoice, SpeechOptions
from omni_cli.requests.outputs import GenerateRequest
from omni_cli.stage.messages import Report
from omni_cli.stage.protocol import StageSpec
from omni_cli.stage.request_payloads import EmbeddedPrompt

_MIN_TOKENS = 2


class Qwen3TTSTalkerStage(FrameStage):
    """Generates frames of codes; vLLM samples the first code of each as a token."""

    def __init__(self, spec: StageSpec, emit: Callable[[Report], None]) -> None:
        assert isinstance(spec.stage, Qwen3TTSTalkerKeys)
        super().__init__(spec, emit)
        self._checkpoint = read_config(Path(spec.model))
        self._clones = self._checkpoint["tts_model_type"] == CLONES
        self._text_first = not self._clones if spec.stage.text_first is None else spec.stage.text_first
        self.num_codebooks = self.config.num_code_groups
        self.voices = tuple(self._checkpoint["talker_config"].get("spk_id") or ())
        tokenizer: Any = AutoTokenizer.from_pretrained(spec.model).backend_tokenizer
        names = ["talker.model.codec_embedding.weight"]
        names += [f"talker.code_predictor.model.codec_embedding.{n}.weight" for n in range(self.num_codebooks - 1)]
        codecs = [EmbeddingTable(spec.model, name, self.dtype) for name in names]
        text = EmbeddingTable(spec.model, "talker.model.text_embedding.weight", self.dtype)
        self._rows = RowMaker(self._checkpoint, lambda words: tokenizer.encode(words).ids, text, codecs)
        self._encoder: Any = None
        if self._clones:
            from omni_cli.models.qwen3_tts.encoder import VoiceEncoder

            self._encoder = VoiceEncoder(spec.model)

    @property
    def effective(self) -> dict[str, object]:
        return {**super().effective, "text_first": self._text_first}

    def warm_up_request(self) -> GenerateRequest:
        sound = np.sin(np.arange(SAMPLE_RATE // 2, dtype=np.float32) / 20)
        voices = (ReferenceVoice(sound, SAMPLE_RATE),) if self._clones else ()
        return GenerateRequest("", prompt="hello", speech=SpeechOptions(voices=voices))

    def begin(self, active: ActiveRequest) -> tuple[EmbeddedPrompt, dict[str, object]]:
        request = active.request
        spoken = read_request(self._checkpoint, request, self.spec.ar.system_prompt)
        active.context["notes"] = spoken.notes
        rows, later = self._rows.make(spoken, self._voice(active, spoken.speaker), text_first=self._text_first)
        least = self._least_tokens(request, len(rows))
        # No prompt of ids: the one in their place is never sampled, so that no penalty on the prompt has an effect.
        prompt = EmbeddedPrompt([self.config.codec_pad_id] * len(rows), rows, later, len(rows))
        return prompt, {"stop_token_ids": [self.config.codec_eos_token_id], "min_tokens": least}

    def _least_tokens(self, request: GenerateRequest, num_rows: int) -> int:
        """Return how many tokens come before an end: all of them, if it is ignored."""
        sampling = {**self.spec.ar.sampling.set_values(), **request.sampling}
        room = self.engine.vllm_config.model_config.max_model_len - num_rows
        limit = int(request.speech.max_audio_tokens or sampling.get("max_tokens") or max(room, 1))
        wanted = limit if sampling.get("ignore_eos") else int(sampling.get("min_tokens") or 0)
        return min(limit, max(_MIN_TOKENS, wanted))

    def _voice(self, active: ActiveRequest, name: str | None) -> Voice:
        """Return the voice of a speaker, or of the request's recording; one without a row for a request without any."""
        if name is not None:
            return self._rows.speaker(name)
        for voice in active.request.speech.voices:
            row = self._encoder.embed(voice.samples, voice.sample_rate)[None]
            if voice.text:
                active.context["recorded"] = self._encoder.encode(voice.samples, voice.sample_rate)
            return Voice(row, voice.text or "", active.context.get("recorded"))
        return Voice()

    def payload(self, active: ActiveRequest, begin: int, end: int) -> dict[str, object]:
        information = super().payload(active, begin, end)
        recorded: torch.Tensor | None = active.context.get("recorded")
        if recorded is None or begin:
            return information
        spoken = self.speech(active, begin, end)
        return {CODES: torch.cat([recorded.to(spoken), spoken]), NUM_BEFORE: [len(recorded)]}
