"""Stages on a vLLM engine that runs inside the stage's own process."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar

import torch
from vllm import PoolingParams, SamplingParams
from vllm.engine.arg_utils import EngineArgs
from vllm.exceptions import VLLMClientError
from vllm.outputs import PoolingRequestOutput, RequestOutput
from vllm.platforms import current_platform
from vllm.v1.engine.llm_engine import LLMEngine

from omni_cli.backends.execution.ranges import mark
from omni_cli.backends.vllm import device_settings
from omni_cli.backends.vllm.adapters import EngineAdapters
from omni_cli.backends.vllm.prompts import one_line
from omni_cli.backends.vllm.quick_start import starting_quickly
from omni_cli.backends.vllm.registry import prepare_models
from omni_cli.backends.vllm.reply_parsing import ReplyParser
from omni_cli.backends.vllm.weights import naming_missing_weights
from omni_cli.backends.vllm.workers import forget_shared_memory, prepare_ranks
from omni_cli.checkpoints.shards import folder_for_vllm
from omni_cli.config.bounds import MAX_NUMPY_SEED
from omni_cli.config.families import StageRole
from omni_cli.config.stage_keys import has_effect
from omni_cli.core.errors import InputError, StageError
from omni_cli.requests.outputs import GenerateRequest, PromptTokens, TokenLogprobs
from omni_cli.stage.failures import as_failure, translate
from omni_cli.stage.messages import AppendInput, Failure, Report, RequestDone
from omni_cli.stage.payloads import PayloadLimits, decode_additional_information
from omni_cli.stage.protocol import StageSpec

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


@dataclass
class ActiveRequest:
    """A request in flight, with the engine's id for it; times are from `time.perf_counter`, in seconds."""

    request: GenerateRequest
    added_s: float
    engine_id: str = ""
    params: Any = None
    first_token_s: float | None = None
    token_ids: list[int] = field(default_factory=list)
    token_times_s: list[float] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    num_sent_logprobs: int = 0
    num_released: int = 0  # tokens whose text no stop string can cut any more
    num_chars: int = 0  # of the text after these tokens
    text: list[str] = field(default_factory=list)
    prompt: PromptTokens | None = None
    reply: ReplyParser | None = None
    reported_s: float = 0.0
    context: dict[str, Any] = field(default_factory=dict)


class VllmStage:
    """A stage on a vLLM engine; subclasses define its inputs and outputs."""

    engine_cls: ClassVar[type[LLMEngine]] = LLMEngine
    can_pad: ClassVar[bool] = False
    """True for a model with `batching: padded` and a choice of `precision`."""
    voices: tuple[str, ...] = ()
    media: tuple[str, ...] | None = None

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
        with naming_missing_weights(spec), self.adapters.naming_unsupported(), starting_quickly():
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
            **({"hf_overrides": {"architectures": [self.role.architecture]}} if self.role.architecture else {}),
            **self.adapters.engine_args(),
            **device_settings.execution_args(getattr(stage, "cudagraph_mode", "none")),
            **(_DIFFUSION_ARGS if stage.kind == "diffusion" else {}),
            # vLLM would compile kernels for every way of sampling, for a minute or two; `warm_up` needs the profile's.
            **({} if current_platform.is_cpu() else {"kernel_config": {"enable_jit_warmup": False}}),
        }

    @property
    def role(self) -> StageRole:
        """The stage's place in its family's chain."""
        role = self.spec.family.role(self.spec.stage.name)
        assert role is not None
        return role

    @staticmethod
    def worker_cls(runner: str) -> str:
        """Return the name of the worker whose runner is for `ar`, `code` or `diffusion`."""
        device, prefix = ("cpu", "CPU") if current_platform.is_cpu() else ("gpu", "GPU")
        return f"omni_cli.backends.vllm.{device}.{prefix}{_RUNNERS[runner]}Worker"

    @property
    def effective(self) -> dict[str, object]:
        return {"output_copy": self._output_copy, **self.adapters.effective}

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
        prompt, active.params = self.render(active)
        try:
            is_text = "prompt" in prompt or active.request.text.prompt_only
            tokenize_params = self.tokenize_params(active.request) if is_text else None
            (engine_input,) = self.engine.renderer.render_cmpl([prompt], tokenize_params)
            self.on_prepared(active, engine_input)
            if active.request.text.prompt_only:
                self.emit(self.only_prompt(active, engine_input["prompt_token_ids"]))
                return
            lora = self.adapters.choose(active.request)
            active.engine_id = self.engine.add_request(request_id, engine_input, active.params, lora_request=lora)
        except (ValueError, VLLMClientError) as error:
            # How vLLM rejects a prompt that is too long or not decodable, or media that its processor cannot use.
            raise self.describe_refusal(error, active.request) from error
        self.active[request_id] = active

    def render(self, active: ActiveRequest) -> tuple[dict[str, Any], SamplingParams | PoolingParams]:
        """Return vLLM's prompt and parameters for a request."""
        raise NotImplementedError

    def tokenize_params(self, request: GenerateRequest) -> Any:
        """Return vLLM's parameters for tokenizing a text prompt; None for its default."""
        return None

    def on_prepared(self, active: ActiveRequest, engine_input: object) -> None:
        """Inspect the tokenized, preprocessed prompt before it enters the engine."""

    def only_prompt(self, active: ActiveRequest, token_ids: Sequence[int]) -> RequestDone:
        """Finish a request that asks for its prompt alone."""
        raise InputError(f"stage `{self.spec.stage.name}` has no tokenizer")

    def describe_refusal(self, error: Exception, request: GenerateRequest) -> InputError:
        """Describe a prompt that vLLM rejects to the user."""
        if str(error).startswith("Failed to apply") and error.__cause__ is not None:
            return InputError(f"the model cannot use this image, audio or video: {one_line(error.__cause__)}")
        message, hint = translate(one_line(error), self.spec.stage)
        if request.media.videos and "tokens" in message:
            message += f"; it has {sum(len(video.frames) for video in request.media.videos)} frames of video"
            hint = f"send fewer frames (`media_io_kwargs`), or {hint or 'cut them'}"
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
                reports.append(as_failure(error, self.spec.stage, request_id=request_id))
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

    def warm_up(self) -> None:
        """Run requests; on a CPU, which compiles nothing, one of an AR stage, to find out if the kernels can run."""
        if not current_platform.is_cpu() or self.spec.stage.kind == "ar":
            with mark("warm-up requests"):
                self.run_warm_up(1 if current_platform.is_cpu() else None)

    def run_warm_up(self, num_batches: int | None = None) -> None:
        """Run `warm_up_batches`. Raises the engine's error, and that of a diffusion, whose graphs come no later."""
        for requests in itertools.islice(self.warm_up_batches(), num_batches):
            for number, request in enumerate(requests):
                try:
                    self.add(replace(request, request_id=f"warm-up {number}"))
                except InputError:  # a model of something else than text, or settings that requests override
                    return
            while self.has_work():
                for report in self.step():
                    if isinstance(report, Failure) and self.spec.stage.kind == "diffusion":
                        raise report.error(self.spec.stage.name)

    def warm_up_batches(self) -> Iterable[Sequence[GenerateRequest]]:
        """Return requests that run one batch after another and together go every way that a request can go."""
        return ()

    def sleep(self, level: int) -> bool:
        """Move weights to the host and forget the KV cache; return True. On a CPU, as in vLLM, memory is kept."""
        self.engine.sleep(level)
        return True

    def wake_up(self, tags: Sequence[str] | None) -> bool:
        """Put back what `tags` name, of `weights` and `kv_cache`, by default both; return True if some is missing."""
        return not self.engine.wake_up(None if tags is None else list(tags))

    def close(self, *, process_ends: bool = False) -> None:
        # vLLM's shutdown collects garbage for a second or two; only ranks in other processes need it.
        if not process_ends or self.spec.stage.has_ranks_elsewhere:
            self.engine.engine_core.shutdown()
