"""Qwen2.5-Omni's thinker and talker on vLLM engines."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from vllm.outputs import RequestOutput

from omni_cli.backends.vllm.input_embeds_stage import EmbeddingTable, InputEmbedsStage, PromptWithEmbeds, talker_part
from omni_cli.backends.vllm.stage import ActiveRequest
from omni_cli.models.qwen2_5_omni.connectors import (
    PartialOutput,
    ReplyRows,
    ThinkerOutput,
    load_speakers,
    more_embeds,
    pick_speaker,
    thinker_to_talker,
)
from omni_cli.models.qwen2_5_omni.family import TALKER
from omni_cli.models.qwen2_5_omni.settings import TalkerConfig
from omni_cli.models.qwen_omni.thinker_stage import OmniThinkerStage
from omni_cli.models.voices import note_on_voice
from omni_cli.requests.contents import StageIO
from omni_cli.requests.outputs import GenerateRequest
from omni_cli.stage.messages import AppendInput, Report
from omni_cli.stage.payloads import encode_additional_information
from omni_cli.stage.protocol import StageSpec

# Codes are sent to token2wav in blocks of its attention, which are also the units of its chunks.
CODES_PER_PART = 12


class ThinkerStage(OmniThinkerStage):
    """Passes all hidden states to the talker."""

    def stage_output(self, active: ActiveRequest, output: RequestOutput) -> bytes:
        rows = self.new_rows(active)
        stage_output = ThinkerOutput(output.prompt_token_ids, active.token_ids, rows, active.context["media"])
        return encode_additional_information(stage_output.information())

    def partial_output(self, active: ActiveRequest, output: RequestOutput) -> bytes | None:
        partial: PartialOutput = active.context.setdefault("partial", PartialOutput())
        partial.add_rows(self.new_rows(active))
        part = partial.take(output.prompt_token_ids, active.token_ids, active.context["media"], is_last=output.finished)
        return None if part is None else encode_additional_information(part)


class TalkerStage(InputEmbedsStage):
    """Generates codec tokens from the thinker's output."""

    makes_text = False
    _num_early = 0

    def __init__(self, spec: StageSpec, emit: Callable[[Report], None]) -> None:
        super().__init__(spec, emit)
        assert isinstance(spec.stage, TalkerConfig)
        self._talker_prompt = spec.stage.talker_prompt
        self.speakers = load_speakers(spec.model)
        self._embed = EmbeddingTable(spec.model, "thinker.model.embed_tokens.weight", self.dtype)

    def engine_args(self) -> dict[str, object]:
        return {**super().engine_args(), "hf_overrides": partial(talker_part, TALKER)}

    def warm_up_request(self) -> GenerateRequest | None:
        stage_output = ThinkerOutput([0] * 7, [0] * 2, self._embed([0] * 8), {})
        return GenerateRequest("", stage=StageIO(input=encode_additional_information(stage_output.information())))

    @property
    def effective(self) -> dict[str, object]:
        return {**super().effective, **({"early_start": True} if self.spec.stage.starts_early else {})}

    @property
    def execution_counters(self) -> dict[str, float]:
        return {**super().execution_counters, "early_requests": self._num_early}

    @property
    def voices(self) -> tuple[str, ...]:
        return tuple(self.speakers)

    def begin(self, active: ActiveRequest) -> tuple[PromptWithEmbeds, dict[str, object]]:
        request = active.request
        self._num_early += request.stage.more_follows
        name = pick_speaker(self.speakers, request.speech.speaker)
        active.context["notes"] = note_on_voice(request.speech.speaker, name)
        speaker = self.speakers[name]
        prompt = thinker_to_talker(
            ThinkerOutput.from_information(self.decode_input(request.stage.input)),
            config=self.config,
            embed=self._embed,
            text_bos_token_id=int(speaker["bos_token"]),
            talker_prompt=self._talker_prompt,
            is_whole=not request.stage.more_follows,
        )
        ends = [self.config.tts_codec_end_token_id, self.config.tts_codec_pad_token_id]
        return prompt, {"stop_token_ids": ends}

    def more_rows(self, command: AppendInput) -> torch.Tensor:
        reply = ReplyRows.from_information(self.decode_input(command.stage_output))
        return more_embeds(reply, config=self.config, embed=self._embed, is_last=command.is_last)

    def stage_output(self, active: ActiveRequest, output: RequestOutput) -> bytes:
        return encode_additional_information({"codec_token_ids": active.token_ids})

    def partial_output(self, active: ActiveRequest, output: RequestOutput) -> bytes | None:
        new = active.token_ids[active.context.get("num_sent", 0) :]
        if len(new) < CODES_PER_PART and not output.finished:
            return None
        active.context["num_sent"] = len(active.token_ids)
        return encode_additional_information({"codec_token_ids": new})
