"""Qwen2.5-Omni's thinker and talker on vLLM engines."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from vllm import SamplingParams

from omni_cli.errors import InputError
from omni_cli.models.qwen2_5_omni.architectures import TALKER
from omni_cli.models.qwen2_5_omni.connectors import (
    MEDIA_FIELDS,
    ReplyRows,
    ThinkerHandoff,
    more_conditions,
    thinker_to_talker,
)
from omni_cli.models.qwen2_5_omni.partial_handoff import PartialHandoff
from omni_cli.models.qwen2_5_omni.settings import TalkerConfig
from omni_cli.models.qwen2_5_omni.speakers import load_speakers, pick_speaker
from omni_cli.stage.messages import (
    AppendInput,
    Report,
    StageRequest,
)
from omni_cli.stage.payloads import decode_additional_information, encode_additional_information
from omni_cli.stage.protocol import StageSpec
from omni_cli.stage.request_payloads import WANTS_HIDDEN_STATES
from omni_cli.vllm_integration.conditioned_stage import ConditionedPrompt, ConditionedStage, EmbeddingTable, talker_part
from omni_cli.vllm_integration.stage import ActiveRequest, TextStage

# Blocks filled by a request without hidden states hold no rows, so the two kinds must not share a prefix. Both have a
# salt before the client's own, which clients could otherwise forge.
HIDDEN_STATES_SALT = "omni-hidden-states"
TEXT_SALT = "omni-text"
# Codes are sent to token2wav in blocks of its attention, of which its chunks consist.
CODES_PER_PART = 12


class ThinkerStage(TextStage):
    """Text, audio and images in; text out, and hidden states for the talker."""

    def engine_args(self) -> dict[str, object]:
        return {
            **super().engine_args(),
            # The profile sets the KV cache or a share of the device; sizing a dummy video would take seconds.
            "skip_mm_profiling": True,
        }

    def render(self, active: ActiveRequest) -> tuple[dict[str, Any], SamplingParams]:
        prompt, params = super().render(active)
        request = active.request
        if request.reply is not None:
            # The answer is part of the prompt; the token that the step adds is ignored.
            prompt_ids, reply_ids = self.with_reply(prompt.pop("prompt"), request.reply)
            active.context["reply"] = (prompt_ids, reply_ids)
            prompt["prompt_token_ids"] = [*prompt_ids, *reply_ids[:-1]]
            params = self.sampling_params(request, max_tokens=1, min_tokens=0)
        salt = HIDDEN_STATES_SALT if self.wants_rows(request) else TEXT_SALT
        prompt["cache_salt"] = salt + prompt.get("cache_salt", "")
        if self.wants_rows(request):
            params.extra_args = {WANTS_HIDDEN_STATES: True}
        return prompt, params

    def wants_rows(self, request: StageRequest) -> bool:
        """True if the next stage needs hidden states of this request."""
        return request.wants_handoff

    def with_reply(self, prompt: str, reply: str) -> tuple[list[int], list[int]]:
        """Token ids of a prompt and of a given answer to it; the answer's last one ends it."""
        tokenizer = self.engine.get_tokenizer()
        words = tokenizer.encode(reply, add_special_tokens=False)
        if not words:
            raise InputError("the reply is empty", hint="give it something to say")
        return tokenizer.encode(prompt, add_special_tokens=False), [*words, tokenizer.eos_token_id]

    def prepared(self, active: ActiveRequest, engine_input: Any) -> None:
        if not active.request.wants_handoff:
            return
        media = active.context["media"] = {}
        for items in engine_input.get("mm_kwargs", {}).values():
            for name in MEDIA_FIELDS:
                found = [item[name].data.reshape(-1) for item in items if item is not None and name in item]
                if found:
                    stacked = torch.stack(found)
                    media[name] = stacked if "grid_thw" in name else stacked.reshape(-1)

    def output(self, active: ActiveRequest, output: Any) -> list[Report]:
        if "reply" in active.context:
            if not output.finished:
                return []  # a prompt processed in chunks; its rows are kept until it is complete
            # As if the engine had generated the given answer.
            output.prompt_token_ids, reply_ids = active.context["reply"]
            (completion,) = output.outputs
            completion.token_ids, completion.text, completion.finish_reason = reply_ids, active.request.reply, "stop"
        return super().output(active, output)

    def _rows(self, active: ActiveRequest) -> torch.Tensor | None:
        """Hidden states since the last call."""
        rows = self.processor.take_hidden_rows(active.request.request_id)
        self.check_numbers(rows, "hidden states")
        return rows

    def handoff(self, active: ActiveRequest, output: Any) -> bytes:
        rows = self._rows(active)
        handoff = ThinkerHandoff(output.prompt_token_ids, active.token_ids, rows, active.context["media"])
        return encode_additional_information(handoff.information())

    def partial_handoff(self, active: ActiveRequest, output: Any) -> bytes | None:
        partial: PartialHandoff = active.context.setdefault("partial", PartialHandoff())
        partial.add_rows(self._rows(active))
        part = partial.take(output.prompt_token_ids, active.token_ids, active.context["media"], is_last=output.finished)
        return None if part is None else encode_additional_information(part)


class TalkerStage(ConditionedStage):
    """Codec tokens from the thinker's output."""

    makes_text = False

    def __init__(self, spec: StageSpec, emit: Callable[[Report], None]) -> None:
        super().__init__(spec, emit)
        assert isinstance(spec.stage, TalkerConfig)
        self._talker_prompt = spec.stage.talker_prompt
        self.speakers = load_speakers(spec.model)
        self._embed = EmbeddingTable(spec.model, "thinker.model.embed_tokens.weight", self.dtype)

    def engine_args(self) -> dict[str, object]:
        return {**super().engine_args(), "hf_overrides": partial(talker_part, TALKER)}

    def begin(self, active: ActiveRequest) -> tuple[ConditionedPrompt, dict[str, object]]:
        request = active.request
        assert request.handoff is not None  # the talker never starts a chain
        speaker = self.speakers[pick_speaker(self.speakers, request.speaker)]
        given = thinker_to_talker(
            ThinkerHandoff.from_information(decode_additional_information(request.handoff, self.payload_limits)),
            config=self.config,
            embed=self._embed,
            text_bos_token_id=int(speaker["bos_token"]),
            talker_prompt=self._talker_prompt,
            is_whole=not request.more_follows,
        )
        ends = [self.config.tts_codec_end_token_id, self.config.tts_codec_pad_token_id]
        return given, {"stop_token_ids": ends}

    def more_rows(self, command: AppendInput) -> torch.Tensor:
        reply = ReplyRows.from_information(decode_additional_information(command.handoff, self.payload_limits))
        return more_conditions(reply, config=self.config, embed=self._embed, is_last=command.is_last)

    def handoff(self, active: ActiveRequest, output: object) -> bytes:
        return encode_additional_information({"codec_token_ids": active.token_ids})

    def partial_handoff(self, active: ActiveRequest, output: Any) -> bytes | None:
        new = active.token_ids[active.context.get("num_handed_over", 0) :]
        if len(new) < CODES_PER_PART and not output.finished:
            return None
        active.context["num_handed_over"] = len(active.token_ids)
        return encode_additional_information({"codec_token_ids": new})
