"""Qwen3-TTS's talker as a stage: from a text to frames of codes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoTokenizer

from omni_cli.backends.vllm.input_embeds_stage import EmbeddingTable, talker_part
from omni_cli.backends.vllm.stage import ActiveRequest
from omni_cli.checkpoints.derive import read_config
from omni_cli.core.errors import InputError
from omni_cli.models.codec.frame_stage import CODES, NUM_BEFORE, FrameStage
from omni_cli.models.qwen3_tts import config as _register  # noqa: F401 - vLLM reads the configuration
from omni_cli.models.qwen3_tts.family import TALKER
from omni_cli.models.qwen3_tts.rows import RowMaker, frame_text, pick_language, tokenize_request
from omni_cli.models.qwen3_tts.settings import Qwen3TTSTalkerKeys
from omni_cli.models.voices import note_on_voice, pick_speaker, text_to_speak
from omni_cli.requests.contents import ReferenceVoice, SpeechOptions
from omni_cli.requests.outputs import GenerateRequest
from omni_cli.requests.voices import rate_notes
from omni_cli.stage.messages import Report
from omni_cli.stage.protocol import StageSpec
from omni_cli.stage.request_payloads import EmbeddedPrompt

_SAMPLE_RATE = 24_000
_MIN_TOKENS = 2
_CLONES, _DESIGNS = "base", "voice_design"


class Qwen3TTSTalkerStage(FrameStage):
    """Generates frames of codes; vLLM samples the first code of each as a token."""

    def __init__(self, spec: StageSpec, emit: Callable[[Report], None]) -> None:
        assert isinstance(spec.stage, Qwen3TTSTalkerKeys)
        super().__init__(spec, emit)
        config = read_config(Path(spec.model))
        self._kind, self._size = str(config["tts_model_type"]), str(config.get("tts_model_size"))
        self._text_first = self._kind != _CLONES if spec.stage.text_first is None else spec.stage.text_first
        self._talker: dict[str, Any] = config["talker_config"]
        self.num_codebooks = self.config.num_code_groups
        self.voices = tuple(self._talker.get("spk_id") or ())
        self._tokenizer: Any = AutoTokenizer.from_pretrained(spec.model)
        names = ["talker.model.codec_embedding.weight"]
        names += [f"talker.code_predictor.model.codec_embedding.{n}.weight" for n in range(self.num_codebooks - 1)]
        codecs = [EmbeddingTable(spec.model, name, self.dtype) for name in names]
        text = EmbeddingTable(spec.model, "talker.model.text_embedding.weight", self.dtype)
        self._rows = RowMaker(config, text, codecs)
        self._encoder: Any = None
        if self._kind == _CLONES:
            from omni_cli.models.qwen3_tts.encoder import VoiceEncoder

            self._encoder = VoiceEncoder(spec.model)

    def engine_args(self) -> dict[str, object]:
        return {**super().engine_args(), "hf_overrides": partial(talker_part, TALKER)}

    @property
    def effective(self) -> dict[str, object]:
        return {**super().effective, "text_first": self._text_first}

    def warm_up_request(self) -> GenerateRequest:
        sound = np.sin(np.arange(_SAMPLE_RATE // 2, dtype=np.float32) / 20)
        voices = (ReferenceVoice(sound, _SAMPLE_RATE),) if self._kind == _CLONES else ()
        return GenerateRequest("", prompt="hello", speech=SpeechOptions(voices=voices))

    def begin(self, active: ActiveRequest) -> tuple[EmbeddedPrompt, dict[str, object]]:
        request = active.request
        how, text = text_to_speak(request)
        instruction = "".join(part.text for part in how) or self.spec.ar.system_prompt or ""
        notes: list[str] = []
        instruction = self._check_instruction(instruction, notes)
        name, speaker, codes = self._voice(active, notes)
        active.context["notes"] = tuple(notes)
        recorded = request.speech.voices[0].text if codes is not None else None
        turn = frame_text(text, raw=request.text.raw)
        ids = tokenize_request(self._tokenize, turn, instruction, recorded or "")
        rows, later = self._rows.make(
            ids,
            language=pick_language(self._talker, request.transcription.language, name),
            speaker=speaker,
            codes=codes,
            text_first=self._text_first,
        )
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

    def _tokenize(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer(text)["input_ids"]
        return ids

    def _check_instruction(self, instruction: str, notes: list[str]) -> str:
        """Return the instruction, "" for none. Raises `InputError` for a checkpoint that clones voices."""
        if instruction and self._kind == _CLONES:
            raise InputError("this checkpoint clones voices and takes no instructions", hint="drop `instructions`")
        if instruction and self._kind != _DESIGNS and self._size == "0b6":
            notes.append("this checkpoint of 0.6B does not know instructions, which were left out")
            return ""
        return instruction

    def _voice(
        self, active: ActiveRequest, notes: list[str]
    ) -> tuple[str | None, torch.Tensor | None, torch.Tensor | None]:
        """Return the speaker's name, the voice's row (1, hidden_size), and the codes of a recording with its words.

        Raises `InputError` for a voice that the checkpoint does not have.
        """
        speech = active.request.speech
        if self._kind != _CLONES and speech.voices:
            raise InputError("this checkpoint does not clone voices", hint="take a checkpoint called `Base`")
        if self._kind == _DESIGNS and speech.speaker is not None:
            raise InputError(
                f"unknown speaker `{speech.speaker}`",
                hint="`instructions` describe this model's voice",
            )
        if self._kind == _DESIGNS:
            return None, None, None
        if self._kind != _CLONES:
            name = pick_speaker(self.voices, speech.speaker)
            notes.extend(note_on_voice(speech.speaker, name))
            return name, self._rows.speaker(name), None
        if not speech.voices:
            raise InputError(
                "this checkpoint speaks with cloned voices alone", hint="give a recording: `--voice FILE`, `ref_audio`"
            )
        (voice,) = speech.voices
        notes.extend(rate_notes(speech.voices, _SAMPLE_RATE))
        row = self._encoder.embed(voice.samples, voice.sample_rate)[None]
        if not voice.text:
            return None, row, None
        codes: torch.Tensor = self._encoder.encode(voice.samples, voice.sample_rate)
        active.context["recorded"] = codes
        return None, row, codes

    def num_spoken(self, active: ActiveRequest) -> int:
        # As in the reference, the last token is not spoken: it ends the speech, or is where it was cut.
        return max(0, len(active.token_ids) - 1)

    def payload(self, active: ActiveRequest, begin: int, end: int) -> dict[str, object]:
        information = super().payload(active, begin, end)
        recorded: torch.Tensor | None = active.context.get("recorded")
        if recorded is None or begin:
            return information
        spoken = self.speech(active, begin, end)
        return {CODES: torch.cat([recorded.to(spoken), spoken]), NUM_BEFORE: [len(recorded)]}
