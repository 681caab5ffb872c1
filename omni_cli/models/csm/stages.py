"""CSM's backbone and codec on vLLM engines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from transformers import AutoProcessor

from omni_cli.backends.vllm.input_embeds_stage import EmbeddingTable
from omni_cli.backends.vllm.prompts import get_conversation
from omni_cli.backends.vllm.stage import ActiveRequest
from omni_cli.core.errors import InputError
from omni_cli.models.codec.decoder_stage import CodecStage
from omni_cli.models.codec.frame_stage import FrameStage, RowsPrompt
from omni_cli.models.csm.family import BACKBONE, CODEC, SPEAKERS, pick_speaker
from omni_cli.models.voices import note_on_voice
from omni_cli.requests.outputs import GenerateRequest, Message
from omni_cli.stage.messages import Report
from omni_cli.stage.protocol import StageSpec


class TextPrompt(RowsPrompt):
    """A text's embeddings (num_tokens, hidden_size), to which none of codes are added."""

    def information(self) -> dict[str, object]:
        return {**super().information(), "tokens_without_embedding": [len(self.prompt_embeds)]}


class BackboneStage(FrameStage):
    """Generates frames of codes from a text; vLLM samples the first codes as tokens."""

    def __init__(self, spec: StageSpec, emit: Callable[[Report], None]) -> None:
        super().__init__(spec, emit)
        self.num_codebooks = self.config.num_codebooks
        self._processor: Any = AutoProcessor.from_pretrained(spec.model)
        self._embed = EmbeddingTable(spec.model, "embed_text_tokens.weight", self.dtype)

    def engine_args(self) -> dict[str, object]:
        return {**super().engine_args(), "hf_overrides": {"architectures": [BACKBONE]}}

    @property
    def voices(self) -> tuple[str, ...]:
        return SPEAKERS

    def begin(self, active: ActiveRequest) -> tuple[TextPrompt, dict[str, object]]:
        speaker = active.request.speech.speaker
        active.context["notes"] = note_on_voice(speaker, pick_speaker(speaker))
        return TextPrompt(self._embed(self._token_ids(active.request))), {}

    def _token_ids(self, request: GenerateRequest) -> list[int]:
        """Return the ids of a text after its speaker's number: `[0]hello`."""
        tokenizer = self._processor.tokenizer
        if request.text.raw:
            if request.speech.speaker is not None:
                raise InputError("a raw prompt names its speaker itself", hint="drop the speaker, or `raw`")
            return list(tokenizer(request.prompt).input_ids)
        speaker = pick_speaker(request.speech.speaker)
        text = self._text(request)
        turn = {"role": speaker, "content": [{"type": "text", "text": text}]}
        prompt = self._processor.apply_chat_template([turn], tokenize=False)
        return list(tokenizer(prompt, add_special_tokens=False).input_ids)

    def _text(self, request: GenerateRequest) -> str:
        """Return the text to speak: a given reply, else the prompt."""
        if request.text.reply is not None:
            return request.text.reply
        messages: tuple[Message, ...] = get_conversation(request)
        if len(messages) > 1:
            raise InputError("this model speaks one message, and not a conversation")
        return "".join(part.text for part in messages[0].parts)

    def is_end(self, active: ActiveRequest) -> bool:
        """As in the reference, a frame of end ids ends the speech, with any last code."""
        sampling = {**self.spec.ar.sampling.set_values(), **active.request.sampling}
        frames = active.context["codes"]
        if sampling.get("ignore_eos") or len(frames) < int(sampling.get("min_tokens", 0)):
            return False
        return bool((frames[-1][:-1] == self.config.codebook_eos_token_id).all())

    def num_spoken(self, active: ActiveRequest) -> int:
        frames = active.context.get("codes", [])
        # As in the reference, a frame of end ids is silent, but not one with another last code.
        is_silent = "ended" in active.context and bool((frames[-1] == self.config.codebook_eos_token_id).all())
        return len(frames) - is_silent

    def num_reported(self, active: ActiveRequest) -> int:
        return len(active.token_ids)


class MimiStage(CodecStage):
    """Decodes frames of codes to a waveform."""

    architecture = CODEC
