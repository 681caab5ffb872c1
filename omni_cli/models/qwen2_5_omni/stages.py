"""Qwen2.5-Omni's thinker and talker on vLLM engines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from vllm import SamplingParams

from omni_cli.errors import InputError
from omni_cli.models.qwen2_5_omni.architectures import talker_config
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
from omni_cli.models.qwen2_5_omni.tensors import open_tensor
from omni_cli.stage.messages import (
    AppendInput,
    Report,
    StageRequest,
)
from omni_cli.stage.payloads import (
    PayloadError,
    decode_additional_information,
    encode_additional_information,
)
from omni_cli.stage.protocol import StageSpec
from omni_cli.stage.request_payloads import (
    MORE_CONDITIONS_FOLLOW,
    WANTS_HIDDEN_STATES,
    payload_arguments,
)
from omni_cli.vllm_integration.conditioned_scheduler import scheduler_of
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
        salt = HIDDEN_STATES_SALT if request.wants_handoff else TEXT_SALT
        prompt["cache_salt"] = salt + prompt.get("cache_salt", "")
        if request.wants_handoff:
            params.extra_args = {WANTS_HIDDEN_STATES: True}
        return prompt, params

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


class TalkerStage(TextStage):
    """Codec tokens from the thinker's output."""

    makes_text = False

    def __init__(self, spec: StageSpec, emit: Callable[[Report], None]) -> None:
        super().__init__(spec, emit)
        assert isinstance(spec.stage, TalkerConfig)
        self._talker_prompt = spec.stage.talker_prompt
        self.scheduler = scheduler_of(self.engine)
        self.config = self.engine.vllm_config.model_config.hf_config
        # The checkpoint's generation_config.json is the thinker's; its end tokens mean nothing among codec ids.
        self.engine.input_processor.generation_config_fields = {}
        self.speakers = load_speakers(spec.model)
        self._thinker_embeddings = open_tensor(spec.model, "thinker.model.embed_tokens.weight")
        # True while all requests wait for the thinker: then there is nothing to step for until a command arrives.
        self._is_stalled = False

    def engine_args(self) -> dict[str, object]:
        return {
            **super().engine_args(),
            "hf_overrides": talker_config,
            "skip_tokenizer_init": True,
            # All prompts are the same mask ids; their differences are not part of vLLM's block hashes.
            "enable_prefix_caching": False,
            "scheduler_cls": "omni_cli.vllm_integration.conditioned_scheduler.make_scheduler",
        }

    def _embed(self, token_ids: Sequence[int]) -> torch.Tensor:
        table = self._thinker_embeddings
        if max(token_ids, default=0) >= table.shape[0]:
            raise PayloadError(f"token id {max(token_ids)} exceeds the thinker's {table.shape[0]} embeddings")
        rows = table[torch.tensor(token_ids, dtype=torch.long)]
        return rows.to(self.engine.vllm_config.model_config.dtype)

    def render(self, active: ActiveRequest) -> tuple[dict[str, Any], SamplingParams]:
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
        information = {**given.information(), MORE_CONDITIONS_FOLLOW: [int(request.more_follows)]}
        params = self.sampling_params(
            request,
            detokenize=False,
            stop_token_ids=[self.config.tts_codec_end_token_id, self.config.tts_codec_pad_token_id],
            extra_args=payload_arguments(
                given.prompt_embeds,
                information,
                self.payload_limits,
                same_process=not self.spec.stage.has_ranks_elsewhere,
            ),
        )
        params.skip_clone = True  # these are this request's alone, and a deep copy would copy its tensors
        active.context["num_conditions"] = len(given.prompt_embeds) + len(given.decode_conditions)
        return {"prompt_token_ids": given.prompt_token_ids}, params

    def add(self, request: StageRequest) -> None:
        super().add(request)
        self._is_stalled = False
        if request.more_follows:
            active = self.active[request.request_id]
            self.scheduler.expect_conditions(active.engine_id, active.context["num_conditions"])

    def append(self, command: AppendInput) -> None:
        self._is_stalled = False
        active = self.active.get(command.request_id)
        if active is None:
            return  # the talker may end before the text does
        reply = ReplyRows.from_information(decode_additional_information(command.handoff, self.payload_limits))
        rows = more_conditions(reply, config=self.config, embed=self._embed, is_last=command.is_last)
        self.scheduler.append_conditions(active.engine_id, rows, is_last=command.is_last)

    def abort(self, request_id: str) -> None:
        self._is_stalled = False
        super().abort(request_id)

    def has_work(self) -> bool:
        return super().has_work() and not self._is_stalled

    def step(self) -> list[Report]:
        reports = super().step()
        self._is_stalled = self.scheduler.is_stalled
        return reports

    def handoff(self, active: ActiveRequest, output: object) -> bytes:
        return encode_additional_information({"codec_token_ids": active.token_ids})

    def partial_handoff(self, active: ActiveRequest, output: Any) -> bytes | None:
        new = active.token_ids[active.context.get("num_handed_over", 0) :]
        if len(new) < CODES_PER_PART and not output.finished:
            return None
        active.context["num_handed_over"] = len(active.token_ids)
        return encode_additional_information({"codec_token_ids": new})
