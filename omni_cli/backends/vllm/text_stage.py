"""Stages on a vLLM engine that take a prompt and make text, and the sampling parameters of their requests.

Each kind of constraint has its backend, whichever request comes first.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from typing import Any

from vllm import SamplingParams
from vllm.exceptions import VLLMClientError, VLLMValidationError
from vllm.outputs import CompletionOutput, RequestOutput
from vllm.sampling_params import _MAX_TEMP, RequestOutputKind, StructuredOutputsParams
from vllm.v1.engine.llm_engine import LLMEngine
from vllm.v1.structured_output.backend_guidance import GuidanceBackend, GuidanceGrammar
from vllm.v1.structured_output.backend_types import StructuredOutputGrammar, StructuredOutputOptions
from vllm.v1.structured_output.backend_xgrammar import XgrammarBackend

from omni_cli.backends.execution.ranges import mark
from omni_cli.backends.vllm import device_settings
from omni_cli.backends.vllm.outputs import TextEngine
from omni_cli.backends.vllm.prompts import PromptMaker, as_logprobs, one_line
from omni_cli.backends.vllm.reply_parsing import ParsedText, ReplyParsers
from omni_cli.backends.vllm.stage import ActiveRequest, VllmStage
from omni_cli.config.schema import ARStageConfig
from omni_cli.core.errors import InputError, StageError
from omni_cli.requests.contents import TextOptions
from omni_cli.requests.events import TextDelta
from omni_cli.requests.json_schemas import as_grammar, check_tag_schema
from omni_cli.requests.outputs import GenerateRequest, TextOutput
from omni_cli.requests.sampling import SamplingValues, default_temperature, name_sources
from omni_cli.stage.messages import Progress, Report, RequestDone, StageOutputChunk
from omni_cli.stage.protocol import StageSpec


class WholeGrammar(GuidanceGrammar):
    """vLLM's grammar of llguidance, which fails an answer that ends where nothing fits the schema."""

    def accept_tokens(self, request_id: str, tokens: list[int]) -> bool:
        accepted: bool = super().accept_tokens(request_id, tokens)
        return accepted and (not self.terminated or self.ll_matcher.is_accepting())


class ChosenBackend(GuidanceBackend):
    """vLLM's backend of llguidance, which keeps a schema or refuses its keyword, behind that of xgrammar for the rest.

    Only xgrammar has the tags of tool calls, and its regular expressions and EBNF may contain a model's own marks.
    """

    def compile_grammar(
        self, request_type: StructuredOutputOptions, grammar_spec: str, stop_token_ids: set[int] | None = None
    ) -> StructuredOutputGrammar:
        if request_type is not StructuredOutputOptions.JSON:
            with suppress(RuntimeError, ValueError):
                return self._xgrammar.compile_grammar(request_type, grammar_spec, stop_token_ids)
        return WholeGrammar(**vars(super().compile_grammar(request_type, grammar_spec, stop_token_ids)))

    @cached_property
    def _xgrammar(self) -> XgrammarBackend:
        return XgrammarBackend(self.vllm_config, self.tokenizer, self.ll_tokenizer.vocab_size)


class ConstrainedParams(SamplingParams):
    """vLLM's parameters, checked for the backend that `ChosenBackend` uses."""

    def _validate_structured_outputs(self, model_config: Any, config: Any, tokenizer: Any) -> None:
        if config is not None and self.structured_outputs is not None:
            config = replace(config, backend="auto" if self.structured_outputs.json is None else "guidance")
        try:
            super()._validate_structured_outputs(model_config, config, tokenizer)
        except VLLMValidationError as error:
            raise VLLMValidationError(f"`structured_outputs`: {error}") from error


def choose_backend(engine: LLMEngine) -> None:
    """Set the engine's backend before its first constraint: a large vocabulary takes a second."""
    manager = engine.engine_core.engine_core.structured_output_manager
    if manager.backend is None and GuidanceBackend.is_tokenizer_supported(manager.tokenizer):
        vocab_size = engine.vllm_config.model_config.get_vocab_size()
        manager.backend = ChosenBackend(engine.vllm_config, manager.tokenizer, vocab_size)


def without_filler(asked: StructuredOutputsParams | dict[str, Any]) -> StructuredOutputsParams:
    """Return a constraint with bounded white space in JSON."""
    bound = StructuredOutputsParams(**asked) if isinstance(asked, dict) else asked
    if bound.json_object:
        return replace(bound, json=as_grammar({"type": "object"}), json_object=None)
    if bound.json is not None:
        return replace(bound, json=as_grammar(json.loads(bound.json) if isinstance(bound.json, str) else bound.json))
    if bound.structural_tag is not None:
        return replace(
            bound, structural_tag=json.dumps(json.loads(bound.structural_tag, object_hook=_bound_whitespace))
        )
    return bound


def _bound_whitespace(part: dict[str, Any]) -> dict[str, Any]:
    """Allow at most a line break and a blank between the tokens of JSON in a structural tag."""
    if part.get("type") != "json_schema" or "json_schema" not in part:
        return part
    return {**part, "json_schema": check_tag_schema(part["json_schema"]), "max_whitespace_cnt": 2}


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
        self.media = tuple(sorted(self.prompts.takes)) if self.makes_text else None
        self.replies = ReplyParsers(self.engine, spec.stage, self.prompts) if self.makes_text else None
        model = self.engine.vllm_config.model_config
        # The settings of the checkpoint's generation_config.json, as vLLM's own server uses them.
        self._own_sampling: dict[str, Any] = model.get_diff_sampling_param()
        if model.generation_config != "vllm" and model.try_get_generation_config().get("do_sample"):
            self._own_sampling.setdefault("temperature", 1.0)

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
        modes = {"cudagraph_mode": self._cudagraph_mode, "default_sampling": self._default_sampling}
        return {**super().effective, **modes}

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
        """Return vLLM's parameters; without a maximum of tokens, an answer may fill the context.

        Raises `InputError` for a wrong parameter, and for a maximum that no prompt leaves room for.
        """
        asked, context = self._asked_sampling(request), self.engine.vllm_config.model_config.max_model_len
        limit = asked.get("max_tokens")
        if isinstance(limit, int) and limit > context:
            name = "max_tokens" if limit == request.sampling.get("max_tokens") else "max_audio_tokens"
            where = f"the context of stage `{self.spec.stage.name}`"
            raise InputError(f"`{name}` is {limit}, and {where} has {context} tokens")
        named = {**self._own_sampling, **self.spec.ar.sampling.set_values(), **asked, **extra}
        temperature = default_temperature(named, makes_text=self.makes_text)
        given = {"seed": request.seed, "max_tokens": None, "temperature": temperature, **named}
        try:
            if given.get("structured_outputs") is not None:
                given["structured_outputs"] = without_filler(given["structured_outputs"])
            # The request's own, which vLLM would otherwise copy in depth.
            return ConstrainedParams(**given, output_kind=RequestOutputKind.DELTA, skip_clone=True)
        except (ValueError, TypeError, VLLMClientError) as error:
            raise InputError(f"sampling: {one_line(error)}") from error

    def _asked_sampling(self, request: GenerateRequest) -> dict[str, Any]:
        """Return a request's sampling, whose maximum of tokens is another one for a stage that makes codes."""
        limit = None if self.makes_text else request.speech.max_audio_tokens
        return {**request.sampling, **({} if limit is None else {"max_tokens": limit})}

    @cached_property
    def _default_sampling(self) -> SamplingValues:
        return self._name_sampling(GenerateRequest(""), self.sampling_params(GenerateRequest("")))

    def _name_sampling(self, request: GenerateRequest, params: SamplingParams) -> SamplingValues:
        sources = {"request": self._asked_sampling(request), "profile": self.spec.ar.sampling.set_values()}
        return name_sources(params.temperature, **sources, checkpoint=self._own_sampling)

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
            chunk = TextDelta(request_id, new.text, *counts, unsent, new.reasoning, new.tool_calls, prompt)
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
        trace: dict[str, Any] = {
            # Includes making the stage output.
            "latency_s": time.perf_counter() - active.added_s,
            "ttft_s": None if active.first_token_s is None else active.first_token_s - active.added_s,
            "num_input_tokens": len(output.prompt_token_ids),
            "num_output_tokens": len(active.token_ids),
            "finish_reason": finish_reason,
            "output_token_ids": active.token_ids,
            "token_times_s": active.token_times_s,
            "output_logprobs": active.logprobs or None,
            "sampling": self._name_sampling(active.request, active.params),
        }
        text = None
        if self.makes_text:
            token_ids = tuple(active.token_ids[: active.num_released])
            text = TextOutput("".join(active.text), token_ids, finish_reason, prompt=active.prompt)
            text = text if active.reply is None else active.reply.complete(text, active.token_ids)
        self.processor.token_texts.pop(active.request.request_id, None)
        notes = active.context.get("notes", ())
        if 0 < (asked := trace["sampling"]["temperature"]["value"]) < _MAX_TEMP:
            notes += (f"the temperature {asked:g} was raised to {_MAX_TEMP:g}, vLLM's minimum above 0; 0 is greedy",)
        if active.request.seed != active.params.seed == self.spec.ar.sampling.seed and active.params.temperature:
            own = f"the seed {active.params.seed} of stage `{self.spec.stage.name}` (`sampling.seed`)"
            notes += (f"{own} was used, not that of the request",)
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
