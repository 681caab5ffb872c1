"""The thinker of an omni model on a vLLM engine: generates the answer, and hidden states for the talker."""

from __future__ import annotations

from typing import Any

import torch
from vllm import SamplingParams
from vllm.outputs import RequestOutput

from omni_cli.backends.vllm.stage import ActiveRequest
from omni_cli.backends.vllm.text_stage import TextStage
from omni_cli.core.errors import InputError
from omni_cli.models.qwen_omni.media import key_by_padding, media_of_prompt
from omni_cli.requests.contents import StageIO, TextOptions
from omni_cli.requests.outputs import GenerateRequest
from omni_cli.stage.messages import Report, RequestDone
from omni_cli.stage.request_payloads import WANTS_HIDDEN_STATES

# Cache blocks of a request without hidden states have no rows, so the two kinds must not share a prefix. Both have a
# salt before the client's own; otherwise clients could forge it.
HIDDEN_STATES_SALT = "omni-hidden-states"
TEXT_SALT = "omni-text"


class OmniThinkerStage(TextStage):
    """Takes text, audio, images and video; makes text, and hidden states for the talker."""

    def engine_args(self) -> dict[str, object]:
        return {
            **super().engine_args(),
            # The profile sets the KV cache or a share of the device; sizing a dummy video would take seconds.
            "skip_mm_profiling": True,
        }

    def warm_up_request(self) -> GenerateRequest | None:
        return GenerateRequest("", prompt="hello", text=TextOptions(raw=True), stage=StageIO(wants_output=True))

    def render(self, active: ActiveRequest) -> tuple[dict[str, Any], SamplingParams]:
        prompt, params = super().render(active)
        request = active.request
        if request.text.reply is not None:
            # The answer is part of the prompt; the token that the step adds is ignored.
            tokenizer = self.engine.get_tokenizer()
            words = tokenizer.encode(request.text.reply, add_special_tokens=False)
            if not words:
                raise InputError("the reply is empty", hint="give it something to say")
            prompt_ids = tokenizer.encode(prompt.pop("prompt"), add_special_tokens=False)
            reply_ids = [*words, tokenizer.eos_token_id]
            active.context["reply"] = (prompt_ids, reply_ids)
            prompt["prompt_token_ids"] = [*prompt_ids, *reply_ids[:-1]]
            params = self.sampling_params(request, max_tokens=1, min_tokens=0)
        salt = HIDDEN_STATES_SALT if self.wants_rows(request) else TEXT_SALT
        prompt["cache_salt"] = salt + prompt.get("cache_salt", "")
        if self.wants_rows(request):
            params.extra_args = {WANTS_HIDDEN_STATES: True}
        return prompt, params

    def wants_rows(self, request: GenerateRequest) -> bool:
        """True if the next stage needs hidden states of this request."""
        return request.stage.wants_output

    def on_prepared(self, active: ActiveRequest, engine_input: Any) -> None:
        key_by_padding(active.request.media.audio, engine_input)
        if active.request.stage.wants_output:
            active.context["media"] = media_of_prompt(engine_input)

    def output(self, active: ActiveRequest, output: RequestOutput) -> list[Report]:
        if "reply" in active.context:
            if not output.finished:
                return []  # a prompt processed in chunks; its rows are kept until it is complete
            # Report the given answer as if the engine had generated it.
            output.prompt_token_ids, reply_ids = active.context["reply"]
            (completion,) = output.outputs
            reply = active.request.text.reply
            completion.token_ids, completion.text, completion.finish_reason = reply_ids, reply, "stop"
            self.processor.token_texts[active.request.request_id] = [completion.text], False
        return super().output(active, output)

    def heard_ids(self, active: ActiveRequest, output: RequestOutput) -> list[int]:
        """Return the answer's tokens so far, of which the talker hears all but the last, which has no row yet.

        Of an answer that a stop string cut, it hears the tokens of the text, without one in which the stop string
        begins: it would say what the text has not. Before, tokens that a stop string may still cut are held back.
        """
        is_cut = isinstance(output.outputs[0].stop_reason, str)
        return active.token_ids[: active.num_released + (not (is_cut and active.num_chars))]

    def finish(self, active: ActiveRequest, output: RequestOutput) -> RequestDone:
        report = super().finish(active, output)
        if active.request.stage.wants_output:
            report.trace["num_heard_tokens"] = len(self.heard_ids(active, output))
        return report

    def new_rows(self, active: ActiveRequest) -> torch.Tensor | None:
        """Return the hidden states since the last call."""
        rows = self.processor.take_hidden_rows(active.request.request_id)
        self.check_numbers(rows, "hidden states")
        return rows
