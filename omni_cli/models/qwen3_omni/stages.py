"""Qwen3-Omni's thinker and talker on vLLM engines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from transformers import AutoConfig
from vllm.outputs import RequestOutput

from omni_cli.backends.vllm.input_embeds_stage import EmbeddingTable
from omni_cli.backends.vllm.stage import ActiveRequest
from omni_cli.core.errors import InputError
from omni_cli.models.codec.frame_stage import FrameStage
from omni_cli.models.qwen3_omni.connectors import media_token_ids, more_embeds, thinker_to_talker
from omni_cli.models.qwen3_omni.model import pad_together
from omni_cli.models.qwen_omni.media import ThinkerOutput
from omni_cli.models.qwen_omni.thinker_stage import OmniThinkerStage
from omni_cli.models.transcription.stage import TranscriptionStage
from omni_cli.models.voices import note_on_voice, pick_speaker
from omni_cli.requests.contents import StageIO
from omni_cli.requests.outputs import GenerateRequest
from omni_cli.stage.messages import AppendInput, Report
from omni_cli.stage.payloads import encode_additional_information, get_integers
from omni_cli.stage.protocol import StageSpec
from omni_cli.stage.request_payloads import EmbeddedPrompt


class Qwen3ThinkerStage(TranscriptionStage, OmniThinkerStage):
    """Takes text, audio, images and video; makes text, and for the talker its tokens and the rows of media."""

    def __init__(self, spec: StageSpec, emit: Callable[[Report], None]) -> None:
        super().__init__(spec, emit)
        config = self.engine.vllm_config.model_config.hf_config
        self._thinker, self._media_ids = config.thinker_config, media_token_ids(config)

    def on_prepared(self, active: ActiveRequest, engine_input: Any) -> None:
        OmniThinkerStage.on_prepared(self, active, engine_input)  # sounds of a request are encoded together
        num_tokens = len(engine_input["prompt_token_ids"])
        for placeholders in engine_input.get("mm_placeholders", {}).values():
            # vLLM counts positions from the tokens around a placeholder, and fails if there are none.
            if any(item.offset == 0 or item.offset + item.length == num_tokens for item in placeholders):
                raise InputError(
                    "the prompt must begin and end each image and each sound with their own tokens",
                    hint="write `<|vision_start|><|image_pad|><|vision_end|>`, "
                    "`<|audio_start|><|audio_pad|><|audio_end|>`, or leave out `--raw`",
                )
        pad_together(engine_input, self._thinker)

    def wants_rows(self, request: GenerateRequest) -> bool:
        return request.stage.wants_output and bool(request.media.audio or request.media.images or request.media.videos)

    def _new_tokens(self, active: ActiveRequest, output: RequestOutput) -> list[int]:
        """Return the new tokens to send: all except the last, which may never be an input of the model."""
        begin, heard = active.context.get("num_sent", 0), self.heard_ids(active, output)[:-1]
        active.context["num_sent"] = max(begin, len(heard))
        return heard[begin:]

    def stage_output(self, active: ActiveRequest, output: RequestOutput) -> bytes:
        prompt_ids, rows = output.prompt_token_ids, None
        if self.wants_rows(active.request):
            rows = self.new_rows(active)
            assert rows is not None
            positions = [position for position, token_id in enumerate(prompt_ids) if token_id in self._media_ids]
            rows = rows[positions]
        new, media = self._new_tokens(active, output), active.context.get("media", {})
        return encode_additional_information(ThinkerOutput(list(prompt_ids), new, rows, media).information())

    def partial_output(self, active: ActiveRequest, output: RequestOutput) -> bytes | None:
        num_sent = active.context.get("num_sent", 0)
        if not output.finished and len(self.heard_ids(active, output)) - 1 <= num_sent:
            return None
        if num_sent:
            self.processor.take_hidden_rows(active.request.request_id)
            return encode_additional_information({"token_ids": self._new_tokens(active, output)})
        return self.stage_output(active, output)


class Qwen3TalkerStage(FrameStage):
    """Generates frames of codes from the thinker's tokens."""

    def __init__(self, spec: StageSpec, emit: Callable[[Report], None]) -> None:
        self._omni = AutoConfig.from_pretrained(spec.model)
        super().__init__(spec, emit)
        self.num_codebooks = self.config.num_code_groups
        self._speakers: dict[str, int] = {name.lower(): code for name, code in self.config.speaker_id.items()}
        self.voices = tuple(self._speakers)
        self._embed = EmbeddingTable(spec.model, "thinker.model.embed_tokens.weight", self.dtype)

    def warm_up_request(self) -> GenerateRequest | None:
        head = [self._omni.im_start_token_id, self._omni.assistant_token_id, 0]
        stage_output = ThinkerOutput(head, [0] * 4)
        return GenerateRequest("", stage=StageIO(input=encode_additional_information(stage_output.information())))

    def begin(self, active: ActiveRequest) -> tuple[EmbeddedPrompt, dict[str, object]]:
        request = active.request
        speaker = pick_speaker(list(self._speakers), request.speech.speaker)
        active.context["notes"] = note_on_voice(request.speech.speaker, speaker)
        prompt = thinker_to_talker(
            ThinkerOutput.from_information(self.decode_input(request.stage.input), needs_rows=False),
            config=self._omni,
            embed=self._embed,
            speaker_id=self._speakers[speaker],
            is_whole=not request.stage.more_follows,
        )
        return prompt, {"stop_token_ids": [self.config.codec_eos_token_id]}

    def more_rows(self, command: AppendInput) -> torch.Tensor:
        token_ids = get_integers(self.decode_input(command.stage_output), "token_ids")
        return more_embeds(token_ids, config=self._omni, embed=self._embed, is_last=command.is_last)
