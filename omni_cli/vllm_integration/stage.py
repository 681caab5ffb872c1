"""Stages on a vLLM engine that runs inside the stage's own process."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields, replace
from typing import Any, ClassVar

import torch
from vllm import PoolingParams, SamplingParams
from vllm.engine.arg_utils import EngineArgs
from vllm.exceptions import VLLMClientError
from vllm.outputs import PoolingRequestOutput, RequestOutput
from vllm.platforms import current_platform
from vllm.v1.engine.llm_engine import LLMEngine

from omni_cli.checkpoints.shards import folder_for_vllm
from omni_cli.config.bounds import MAX_NUMPY_SEED
from omni_cli.config.key_notes import has_effect
from omni_cli.config.schema import ARStageConfig
from omni_cli.errors import InputError, StageError
from omni_cli.execution.ranges import mark
from omni_cli.outputs import GenerateRequest, TextOutput
from omni_cli.stage.failures import request_failure
from omni_cli.stage.library_messages import translate
from omni_cli.stage.messages import AppendInput, Progress, Report, RequestDone, StageOutputChunk, TextChunk
from omni_cli.stage.payloads import PayloadLimits, decode_additional_information
from omni_cli.stage.protocol import StageSpec
from omni_cli.vllm_integration import device_settings
from omni_cli.vllm_integration.active_request import ActiveRequest as ActiveRequest  # for stages of families
from omni_cli.vllm_integration.adapters import EngineAdapters
from omni_cli.vllm_integration.output_processor import TextEngine
from omni_cli.vllm_integration.prompts import PromptMaker, as_logprobs, one_line
from omni_cli.vllm_integration.ranks import forget_shared_memory, prepare_ranks
from omni_cli.vllm_integration.registry import prepare_models
from omni_cli.vllm_integration.reply_parsing import ParsedText, ReplyParsers
from omni_cli.vllm_integration.sampling import make_sampling_params
from omni_cli.vllm_integration.sleep_mode import SleepMode
from omni_cli.vllm_integration.warm_up import WarmUp
from omni_cli.vllm_integration.weights import naming_missing_weights

PROGRESS_INTERVAL_S = 0.05

_RUNNERS = {"ar": "AR", "code": "Code", "diffusion": "Diffusion"}

# An engine step runs a whole diffusion, or with `StepwiseScheduler` a part of it, on token ids without text.
_DIFFUSION_ARGS = {
    "runner": "pooling",
    "skip_tokenizer_init": True,
    "enable_prefix_caching": False,
    "enable_chunked_prefill": False,
    "enforce_eager": True,
    # No KV cache is allocated; a given size keeps vLLM from measuring how large it could be.
    "kv_cache_memory_bytes": 1 << 20,
}


class VllmStage(SleepMode, WarmUp):
    """A stage on a vLLM engine; subclasses define its inputs and outputs."""

    engine_cls: ClassVar[type[LLMEngine]] = LLMEngine
    can_pad: ClassVar[bool] = False
    """True for a model with `batching: padded` and a choice of `precision`."""

    def __init__(self, spec: StageSpec, emit: Callable[[Report], None]) -> None:
        for key, default in (("batching", "exact"), ("precision", None)):
            value = getattr(spec.stage, key, default)
            if value != default and not self.can_pad:
                hint = f"--set {spec.stage.name}.{key}={default or 'null'}"
                raise StageError(f"this model has no `{key}: {value}`", stage=spec.stage.name, hint=hint)
        self.spec = spec
        self.emit = emit
        self.active: dict[str, ActiveRequest] = {}
        if spec.stage.has_ranks_elsewhere:
            prepare_ranks(spec.stage.num_ranks, spec.stage.name)
        prepare_models(spec)
        self.adapters = EngineAdapters(spec)
        with naming_missing_weights(spec), self.adapters.naming_unsupported():
            arguments = device_settings.with_given_cache(self.engine_args())
            self.engine = self.engine_cls.from_engine_args(EngineArgs(**arguments))
            self.adapters.load(self.engine)
        if spec.stage.has_ranks_elsewhere:
            forget_shared_memory(self.engine)
        self.payload_limits = PayloadLimits.of(spec.stage)
        self.engine.collective_rpc("use_payload_limits", args=(self.payload_limits,))
        self._output_copy, *_ = self.engine.collective_rpc("use_output_copy", args=(spec.stage.output_copy,))

    def engine_args(self) -> dict[str, object]:
        """Return vLLM `EngineArgs` from the stage's configuration; `None` keeps vLLM's default."""
        stage = self.spec.stage
        # Profile keys have vLLM's names, so engine arguments need no list here.
        keys = {name for name, key in type(stage).model_fields.items() if has_effect(key, "vllm")}
        names = keys & {item.name for item in fields(EngineArgs)}
        arguments = {name: getattr(stage, name) for name in sorted(names)}
        return {
            **{name: value for name, value in arguments.items() if value is not None},
            "model": folder_for_vllm(self.spec.model),
            "dtype": self.spec.dtype,
            "seed": self.spec.seed % (MAX_NUMPY_SEED + 1),
            "trust_remote_code": self.spec.trust_remote_code,
            "disable_log_stats": True,
            # vLLM 0.32 would normalize videos with the mean and deviation of images on the device.
            "mm_device_do_normalize": False,
            "worker_cls": self.worker_cls(stage.kind),
            **self.adapters.engine_args(),
            **device_settings.execution_args(getattr(stage, "cudagraph_mode", "none")),
            **(_DIFFUSION_ARGS if stage.kind == "diffusion" else {}),
            # vLLM would compile kernels for every way of sampling, for a minute or two; `warm_up` needs the profile's.
            **({} if current_platform.is_cpu() else {"kernel_config": {"enable_jit_warmup": False}}),
        }

    @staticmethod
    def worker_cls(runner: str) -> str:
        """Return the name of the worker whose runner is for `ar`, `code` or `diffusion`."""
        device, prefix = ("cpu", "CPU") if current_platform.is_cpu() else ("gpu", "GPU")
        return f"omni_cli.vllm_integration.{device}.{prefix}{_RUNNERS[runner]}Worker"

    @property
    def effective(self) -> dict[str, object]:
        return {"output_copy": self._output_copy, **self.adapters.effective}

    @property
    def voices(self) -> tuple[str, ...]:
        return ()

    @property
    def settings(self) -> dict[str, object]:
        config = self.engine.vllm_config
        return {
            "max_model_len": config.model_config.max_model_len,
            "max_num_seqs": config.scheduler_config.max_num_seqs,
            "max_num_batched_tokens": config.scheduler_config.max_num_batched_tokens,
            "enable_chunked_prefill": config.scheduler_config.enable_chunked_prefill,
            "enable_prefix_caching": config.cache_config.enable_prefix_caching,
            "block_size": config.cache_config.block_size,
            "tensor_parallel_size": config.parallel_config.tensor_parallel_size,
            "pipeline_parallel_size": config.parallel_config.pipeline_parallel_size,
            "num_threads": torch.get_num_threads(),
        }

    @property
    def execution_counters(self) -> dict[str, float]:
        counters: dict[str, float]
        (counters,) = filter(None, self.engine.collective_rpc("execution_counters"))
        return counters

    def add(self, request: GenerateRequest) -> None:
        self.admit(ActiveRequest(request, time.perf_counter()))

    def admit(self, active: ActiveRequest) -> None:
        """Add a request to the engine; raises `InputError` if the engine rejects it."""
        request_id = active.request.request_id
        prompt, params = self.render(active)
        try:
            is_text = "prompt" in prompt or active.request.prompt_only
            tokenize_params = self.tokenize_params(active.request) if is_text else None
            (engine_input,) = self.engine.renderer.render_cmpl([prompt], tokenize_params)
            self.prepared(active, engine_input)
            if active.request.prompt_only:
                self.emit(self.only_prompt(active, engine_input["prompt_token_ids"]))
                return
            lora = self.adapters.choose(active.request)
            active.engine_id = self.engine.add_request(request_id, engine_input, params, lora_request=lora)
        except (ValueError, VLLMClientError) as error:
            # How vLLM rejects a prompt that is too long or not decodable, or media that its processor cannot use.
            raise self.refused(error) from error
        self.active[request_id] = active

    def render(self, active: ActiveRequest) -> tuple[dict[str, Any], SamplingParams | PoolingParams]:
        """Return vLLM's prompt and parameters for a request."""
        raise NotImplementedError

    def tokenize_params(self, request: GenerateRequest) -> Any:
        """Return vLLM's parameters for tokenizing a text prompt; None for its default."""
        return None

    def prepared(self, active: ActiveRequest, engine_input: object) -> None:
        """Inspect the tokenized, preprocessed prompt before it enters the engine."""

    def only_prompt(self, active: ActiveRequest, token_ids: Sequence[int]) -> RequestDone:
        """Finish a request that asks for its prompt alone."""
        raise InputError(f"stage `{self.spec.stage.name}` has no tokenizer")

    def refused(self, error: Exception) -> InputError:
        """Describe a prompt that vLLM rejects to the user."""
        if str(error).startswith("Failed to apply") and error.__cause__ is not None:
            return InputError(f"the model cannot use this image, audio or video: {one_line(error.__cause__)}")
        message, hint = translate(one_line(error), self.spec.stage)
        return InputError(message, hint=hint)

    def decode_input(self, stage_output: bytes | None) -> dict[str, Any]:
        """Decode the previous stage's output; raises `PayloadError`."""
        assert stage_output is not None, "this stage cannot begin a chain"
        return decode_additional_information(stage_output, self.payload_limits)

    def append(self, command: AppendInput) -> None:
        raise NotImplementedError(f"stage `{self.spec.stage.name}` takes its input as a whole")

    def abort(self, request_id: str) -> None:
        if self.active.pop(request_id, None) is not None:
            self.engine.abort_request([request_id])

    def interrupt(self, request_id: str) -> None:
        """Do nothing: a request leaves between two steps of the engine."""

    def has_work(self) -> bool:
        return bool(self.engine.has_unfinished_requests())

    def step(self) -> list[Report]:
        reports: list[Report] = []
        for output in self.engine.step():
            active = self.active.get(output.request_id)
            if active is None:
                continue
            try:
                reports += self.output(active, output)
            except Exception as error:  # noqa: BLE001 - whatever is wrong with one request's output is its own fault
                request_id = self.get_request_id(active)
                reports.append(request_failure(error, request_id, self.spec.stage))
                self.abort(request_id)
            if output.finished:
                self.active.pop(output.request_id, None)
        return reports

    def by_engine_id(self, engine_id: str) -> ActiveRequest | None:
        """Look up a request by engine id; None for one that has ended."""
        state = self.engine.output_processor.request_states.get(engine_id)
        return None if state is None else self.active.get(state.external_req_id)

    def get_request_id(self, active: ActiveRequest) -> str:
        """Return the command's id of an engine's request."""
        return active.request.request_id

    def check_numbers(self, output: torch.Tensor | None, what: str) -> None:
        """Raise `StageError` if the model's output contains a NaN or an infinity."""
        if output is not None and not torch.isfinite(output).all():
            raise StageError(f"the model produced NaN or infinite {what}", stage=self.spec.stage.name)

    def output(self, active: ActiveRequest, output: RequestOutput | PoolingRequestOutput) -> list[Report]:
        raise NotImplementedError

    def close(self, *, process_ends: bool = False) -> None:
        # vLLM's shutdown collects garbage for a second or two; only ranks in other processes need it.
        if not process_ends or self.spec.stage.has_ranks_elsewhere:
            self.engine.engine_core.shutdown()


class TextStage(VllmStage):
    """An autoregressive model of vLLM's as the first stage of a chain: a prompt in, text out."""

    engine_cls = TextEngine

    def __init__(self, spec: StageSpec, emit: Callable[[Report], None]) -> None:
        assert isinstance(spec.stage, ARStageConfig)
        device_settings.check_platform(spec.stage)
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
        return GenerateRequest("", prompt="hello", raw=True) if self.spec.stage.input is None else None

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
        return {**self.prompts.prompt(request), **salt}, self.sampling_params(request, **extra)

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
        new = ParsedText(completion.text)
        if active.reply is not None:
            prompt_ids = output.prompt_token_ids or ()
            new = active.reply.add(completion.text, completion.token_ids, prompt_ids, finished=output.finished)
        active.text.append(new.text)
        if active.request.wants_prompt and active.prompt is None:
            prompt_ids, prompt_logprobs = output.prompt_token_ids or (), output.prompt_logprobs or ()
            active.prompt = self.prompts.tokens(active.request, prompt_ids, prompt_logprobs)
        reports: list[Report] = []
        if new and self.makes_text:
            unsent = tuple(active.logprobs[active.num_sent_logprobs :])
            active.num_sent_logprobs += len(unsent)
            counts = (len(output.prompt_token_ids or ()), len(active.token_ids))
            prompt = None if any(active.text[:-1]) else active.prompt
            chunk = TextChunk(request_id, new.text, *counts, unsent, new.reasoning, new.tool_calls, prompt)
            reports.append(chunk)
        if active.request.wants_stage_output and active.request.stream_audio:
            part = self.partial_output(active, output)
            if part is not None:
                reports.append(StageOutputChunk(request_id, part, is_last=output.finished))
        if output.finished:
            reports.append(self.done(active, output))
        elif now - active.reported_s > PROGRESS_INTERVAL_S:
            active.reported_s = now
            reports.append(Progress(request_id, len(active.token_ids), self.max_tokens(active.request), "token"))
        return reports

    makes_text = True

    def only_prompt(self, active: ActiveRequest, token_ids: Sequence[int]) -> RequestDone:
        trace = {"latency_s": time.perf_counter() - active.added_s}
        text = TextOutput("", (), "stop", prompt=self.prompts.tokens(active.request, token_ids))
        return RequestDone(active.request.request_id, trace, text=text)

    def max_tokens(self, request: GenerateRequest) -> int | None:
        limit: int | None = request.sampling.get("max_tokens", self.spec.ar.sampling.max_tokens)
        return limit

    def done(self, active: ActiveRequest, output: RequestOutput) -> RequestDone:
        finish_reason = output.outputs[0].finish_reason or "stop"
        wants_whole = active.request.wants_stage_output and not active.request.stream_audio
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
            text = TextOutput("".join(active.text), tuple(active.token_ids), finish_reason, prompt=active.prompt)
            text = text if active.reply is None else active.reply.complete(text)
        notes = active.context.get("notes", ())
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
