"""Stages on a vLLM engine that take a prompt and make text."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from vllm import SamplingParams
from vllm.outputs import CompletionOutput, RequestOutput
from vllm.sampling_params import _MAX_TEMP

from omni_cli.backends.execution.ranges import mark
from omni_cli.backends.vllm import device_settings
from omni_cli.backends.vllm.outputs import TextEngine
from omni_cli.backends.vllm.prompts import PromptMaker, as_logprobs
from omni_cli.backends.vllm.reply_parsing import ParsedText, ReplyParsers
from omni_cli.backends.vllm.sampling import choose_backend, make_sampling_params
from omni_cli.backends.vllm.stage import ActiveRequest, VllmStage
from omni_cli.config.schema import ARStageConfig
from omni_cli.core.errors import StageError
from omni_cli.requests.contents import TextOptions
from omni_cli.requests.outputs import GenerateRequest, TextOutput
from omni_cli.stage.messages import Progress, Report, RequestDone, StageOutputChunk, TextChunk
from omni_cli.stage.protocol import StageSpec

_PROGRESS_INTERVAL_S = 0.05


class TextStage(VllmStage):
    """An autoregressive model of vLLM's as the first stage of a chain: a prompt in, text out."""

    engine_cls = TextEngine
    makes_text = True

    def __init__(self, spec: StageSpec, emit: Callable[[Report], None]) -> None:
        assert isinstance(spec.stage, ARStageConfig)
        if spec.dtype == "float32":
            device_settings.use_whole_float32()
        super().__init__(spec, emit)
        *_, self._cudagraph_mode = self.engine.collective_rpc("cudagraph_mode")
        device_settings.check_effective(spec.stage, self._cudagraph_mode, self.execution_counters)
        self.processor = self.engine.output_processor
        self.prompts = PromptMaker(self.engine, spec.stage)
        self.replies = ReplyParsers(self.engine, spec.stage, self.prompts) if self.makes_text else None
        # The settings of the checkpoint's generation_config.json, as vLLM's own server uses them.
        self._own_sampling = self.engine.vllm_config.model_config.get_diff_sampling_param()

    def engine_args(self) -> dict[str, object]:
        return {
            **super().engine_args(),
            # With a KV cache of given size nothing is measured, and a dummy of the largest video would take seconds.
            "skip_mm_profiling": self.spec.ar.kv_cache_memory_bytes is not None,
            # vLLM processes cached media without their metadata, and returns them without their data.
            "mm_processor_cache_gb": 0,
        }

    def warm_up_batches(self) -> Iterable[Sequence[GenerateRequest]]:
        """Return short requests, sampled as in the profile, in batches of 1, 2, 4, ... that there can be.

        Kernels of sampling and of input preparation depend on the size of the batch and are compiled when they first
        run; vLLM's graphs do not contain them.
        """
        request = self.warm_up_request()
        if request is None:
            return
        limit = self.engine.vllm_config.scheduler_config.max_num_seqs
        limit = min(limit, self.spec.max_concurrency or limit)
        for size in itertools.takewhile(lambda size: size <= limit, (1 << power for power in itertools.count())):
            yield [replace(request, sampling={"max_tokens": 3, "min_tokens": 0})] * size

    def warm_up_request(self) -> GenerateRequest | None:
        """Return a short request; None for a stage that has no such thing."""
        request = GenerateRequest("", prompt="hello", text=TextOptions(raw=True))
        return request if self.spec.stage.input is None else None

    @property
    def effective(self) -> dict[str, object]:
        return {**super().effective, "cudagraph_mode": self._cudagraph_mode}

    def render(self, active: ActiveRequest) -> tuple[dict[str, Any], SamplingParams]:
        request = active.request
        salt = {} if request.cache_salt is None else {"cache_salt": request.cache_salt}
        extra = {}
        if self.replies is not None:
            active.reply = self.replies.parser(request)
            if active.reply is not None and active.reply.structured_outputs is not None:
                extra["structured_outputs"] = active.reply.structured_outputs
            if active.reply is not None and not active.reply.skip_special_tokens:
                extra["skip_special_tokens"] = False  # its parser reads them
        params = self.sampling_params(request, **extra)
        if params.structured_outputs is not None:
            choose_backend(self.engine)
        return {**self.prompts.prompt(request), **salt}, params

    def admit(self, active: ActiveRequest) -> None:
        super().admit(active)
        scheduled = self.engine.engine_core.engine_core.scheduler.requests.get(active.engine_id)
        bound = None if scheduled is None else scheduled.structured_output_request
        if bound is not None and active.reply is not None:
            active.reply.prepare_grammar(bound, scheduled.prompt_token_ids or [])
        elif bound is not None:
            bound.reasoning_ended = True  # nothing of this answer is taken for reasoning

    def tokenize_params(self, request: GenerateRequest) -> Any:
        return self.prompts.tokenize_params(request)

    def sampling_params(self, request: GenerateRequest, **extra: object) -> SamplingParams:
        limit, below = self.engine.vllm_config.model_config.max_model_len, self._own_sampling
        return make_sampling_params(request, self.spec.ar, limit, below, extra, makes_text=self.makes_text)

    def output(self, active: ActiveRequest, output: RequestOutput) -> list[Report]:
        completion = output.outputs[0]
        now = time.perf_counter()
        request_id = active.request.request_id
        if request_id in self.processor.not_numbers:
            raise StageError("the model produced NaN logits", stage=self.spec.stage.name)
        if completion.token_ids and active.first_token_s is None:
            active.first_token_s = now
        active.token_ids += completion.token_ids
        active.token_times_s += [now - active.added_s] * len(completion.token_ids)
        for found in completion.logprobs or ():
            active.logprobs.append(as_logprobs(found))
        released, texts = active.num_released, self._release(active, completion, finished=output.finished)
        new = ParsedText("".join(texts))
        if active.reply is not None:
            token_ids = active.token_ids[released : active.num_released]
            new = active.reply.add(texts, token_ids, output.prompt_token_ids or (), finished=output.finished)
        active.text.append(new.text)
        if active.request.text.wants_prompt and active.prompt is None:
            prompt_ids, prompt_logprobs = output.prompt_token_ids or (), output.prompt_logprobs or ()
            active.prompt = self.prompts.tokens(active.request, prompt_ids, prompt_logprobs)
        reports: list[Report] = []
        counts = (len(output.prompt_token_ids or ()), len(active.token_ids))
        unsent = tuple(active.logprobs[active.num_sent_logprobs : active.num_released])
        if (new or (unsent and output.finished)) and self.makes_text:
            active.num_sent_logprobs += len(unsent)
            prompt = None if any(active.text[:-1]) else active.prompt
            chunk = TextChunk(request_id, new.text, *counts, unsent, new.reasoning, new.tool_calls, prompt)
            reports.append(chunk)
        if active.request.stage.wants_output and active.request.speech.stream_audio:
            part = self.partial_output(active, output)
            if part is not None:
                reports.append(StageOutputChunk(request_id, part, is_last=output.finished))
        if output.finished:
            reports.append(self.finish(active, output))
        elif now - active.reported_s > _PROGRESS_INTERVAL_S:
            active.reported_s = now
            total = self.max_tokens(active.request)
            reports.append(Progress(request_id, counts[1], total, "token", counts[0]))
        return reports

    def _release(self, active: ActiveRequest, completion: CompletionOutput, *, finished: bool) -> list[str]:
        """Count the tokens that no stop string can cut any more; return what the new ones add to the text.

        Of a token in which a stop string begins, that is the text before it. With stop strings, log-probabilities get
        these texts: vLLM decodes tokens alone, without the space or the bytes that their neighbours give them.
        """
        noted: tuple[list[str], bool] | None = self.processor.token_texts.get(active.request.request_id)
        texts, can_stop = noted or ([], False)
        begin, end = active.num_released, len(active.token_ids)
        is_cut = isinstance(completion.stop_reason, str)
        if can_stop and (is_cut or not finished):
            end, active.num_chars = begin, active.num_chars + len(completion.text)
            while active.num_chars and len(texts[end]) <= active.num_chars:
                active.num_chars -= len(texts[end])
                end += 1
            if is_cut and active.num_chars:
                texts[end] = texts[end][: active.num_chars]
                end += 1
        for number in range(begin, min(end, len(texts), len(active.logprobs) * can_stop)):
            (token_id, logprob, name), *others = active.logprobs[number]
            active.logprobs[number] = ((token_id, logprob, texts[number] or name), *others)
        active.num_released = end
        return texts[begin:end]

    def only_prompt(self, active: ActiveRequest, token_ids: Sequence[int]) -> RequestDone:
        trace = {"latency_s": time.perf_counter() - active.added_s}
        text = TextOutput("", (), "stop", prompt=self.prompts.tokens(active.request, token_ids))
        return RequestDone(active.request.request_id, trace, text=text)

    def max_tokens(self, request: GenerateRequest) -> int | None:
        limit: int | None = request.sampling.get("max_tokens", self.spec.ar.sampling.max_tokens)
        return limit

    def finish(self, active: ActiveRequest, output: RequestOutput) -> RequestDone:
        finish_reason = output.outputs[0].finish_reason or "stop"
        if finish_reason == "error":
            raise StageError("the answer left its grammar", stage=self.spec.stage.name)
        wants_whole = active.request.stage.wants_output and not active.request.speech.stream_audio
        with mark("make stage output"):
            stage_output = self.stage_output(active, output) if wants_whole else None
        trace = {
            # Includes making the stage output.
            "latency_s": time.perf_counter() - active.added_s,
            "ttft_s": None if active.first_token_s is None else active.first_token_s - active.added_s,
            "num_input_tokens": len(output.prompt_token_ids),
            "num_output_tokens": len(active.token_ids),
            "finish_reason": finish_reason,
            "output_token_ids": active.token_ids,
            "token_times_s": active.token_times_s,
            "output_logprobs": active.logprobs or None,
        }
        text = None
        if self.makes_text:
            token_ids = tuple(active.token_ids[: active.num_released])
            text = TextOutput("".join(active.text), token_ids, finish_reason, prompt=active.prompt)
            text = text if active.reply is None else active.reply.complete(text, active.token_ids)
        self.processor.token_texts.pop(active.request.request_id, None)
        notes = active.context.get("notes", ())
        sampling = {**self._own_sampling, **self.spec.ar.sampling.set_values(), **active.request.sampling}
        if 0 < (asked := sampling.get("temperature") or 0) < _MAX_TEMP:
            notes += (f"the temperature {asked:g} was raised to {_MAX_TEMP:g}, vLLM's minimum above 0; 0 is greedy",)
        return RequestDone(active.request.request_id, trace, text=text, stage_output=stage_output, notes=notes)

    def stage_output(self, active: ActiveRequest, output: RequestOutput) -> bytes:
        """Return the next stage's input as an encoded `AdditionalInformationPayload`."""
        raise NotImplementedError

    def partial_output(self, active: ActiveRequest, output: RequestOutput) -> bytes | None:
        """Return the part of the stage output that has not been sent, or None; called after each new token."""
        raise NotImplementedError

    def abort(self, request_id: str) -> None:
        super().abort(request_id)
        self.processor.forget(request_id)
