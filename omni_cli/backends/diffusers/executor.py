"""Run a diffusion stage on a diffusers pipeline, without vLLM. Method names are those of vLLM's `Executor`."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from omni_cli.backends.diffusers.arguments import foreign_arguments, resolve_request, stage_for
from omni_cli.backends.diffusers.batch_run import BatchRun, OnOutput, OnStep
from omni_cli.backends.diffusers.execution import (
    check_supported,
    choose_device,
    choose_mode,
    prepare_execution,
    warm_up,
)
from omni_cli.backends.diffusers.loading import load_pipeline
from omni_cli.backends.diffusers.memory import (
    PipelineMemory,
    check_accelerator,
    empty_cache,
    memory_errors,
    models,
    synchronize,
)
from omni_cli.backends.diffusers.outputs import get_sample_rate, makes_sound
from omni_cli.backends.diffusers.parallel import Rank, check_attention, get_sharing, start_sharing, stop_sharing
from omni_cli.backends.diffusers.pipeline_run import PipelineRunner
from omni_cli.backends.diffusers.requests import (
    DiffusionOutput,
    DiffusionRequest,
)
from omni_cli.backends.diffusers.step_cache import StepCaches, check_package
from omni_cli.backends.diffusers.weights import PipelineAdapters
from omni_cli.backends.execution.copies import make_output_copy
from omni_cli.backends.execution.ranges import clock_for, mark
from omni_cli.config.schema import DiffusionStageConfig
from omni_cli.core.errors import CheckpointError, OmniError, StageError, UsageError
from omni_cli.requests.pipeline_call import Kind

if TYPE_CHECKING:
    from omni_cli.backends.execution.modes import ExecutionMode

_TAGS = frozenset({"weights", "kv_cache"})


class DiffusersPipelineExecutor:
    """One pipeline in this process, which makes images, audio, videos or tensors.

    The stage's `batching` decides how the requests of a batch share the device:

    - "exact", the default: one pipeline call per request, back to back. The same seed gives the same image bit for
      bit, independent of the batch, and equal to that of a plain diffusers call.
    - "stacked": one pipeline call for all requests of a batch whose prompts have equally many tokens. Larger matrix
      products sum in another order. Measured with `tiny-image`, float32, four requests on one CPU thread: half the
      processor time, at most 1.1e-6 of [0, 1] away, and after rounding to uint8 one value in 50,000 off by one.

    Methods may be called from several threads. `execute_model`, `sleep` and `wake_up` exclude each other;
    `abort_requests`, `check_health` and `shutdown` act at once, on a running call at its next step.
    """

    def __init__(
        self,
        config: DiffusionStageConfig,
        model: str,
        dtype: str,
        device: str | None = None,
        trust_remote_code: bool = False,
        *,
        unused_parts: Sequence[str] = (),
        prompt_cache_bytes: int = 256 << 20,
        make_pipeline: Callable[[], Any] | None = None,
        rank: Rank | None = None,
    ) -> None:
        """Load the pipeline of `model` (a diffusers folder or a Hugging Face repo id).

        `device` is torch's name for it; None means the stage's `devices`, else the first CUDA device, else
        the CPU. `unused_parts` of the pipeline are not loaded. `prompt_cache_bytes` bounds the prompt cache.
        `make_pipeline` gives a pipeline, on `device` and in `dtype`, instead of the one at `model`, which is
        then only a name; it is called again when the executor wakes up from level 2. `rank` is this process's part of
        a stage that several run together. Raises `CheckpointError` for a model that cannot be used, `UsageError` for
        stage settings that the pipeline does not take, `StageError` otherwise.
        """
        check_supported(config)
        self.config = config
        self.dropped_arguments: tuple[str, ...] = ()
        self.model = model
        # TF32 multiplies float32 weights.
        self.dtype = dtype if config.precision is None else config.precision.replace("tf32", "float32")
        self._rank = rank or Rank()
        self.device = device or choose_device(config, self._rank.number)
        check_accelerator(config, self.device)
        check_package(config)
        check_attention(config)
        if config.precision is not None:
            from omni_cli.backends.execution.precision import use_precision

            use_precision(config.precision, stage=config.name, device=self.device)
        self.prompt_cache_bytes = prompt_cache_bytes
        self._make_pipeline = make_pipeline or partial(
            load_pipeline, model, self.dtype, config, trust_remote_code=trust_remote_code, unused_parts=unused_parts
        )
        self.is_sleeping = False
        self._busy = threading.Lock()
        self._closing = threading.Event()
        self._failure: str | None = None
        self._why_execution: str | None = None
        # Requests of the running batch, and those of them that were aborted.
        self._current: frozenset[str] = frozenset()
        self._aborted: set[str] = set()
        # None after `shutdown`, the denoiser's mode also for a pipeline without one.
        self.pipeline: Any = None
        self.denoiser: ExecutionMode | None = None
        self._runner: PipelineRunner | None = None
        self._memory: PipelineMemory | None = None
        self._output_copy = make_output_copy(config.output_copy, self.device)
        self._load_model()

    def _load_model(self) -> None:
        with mark("load weights"), memory_errors(self.config, self.model, self.device):
            self._load_parts()

    def _load_parts(self) -> None:
        from omni_cli.backends.diffusers.description import described_pipeline
        from omni_cli.backends.execution.precision import get_precision

        pipeline = self._make_pipeline()
        self.call = described_pipeline(pipeline)
        self.dropped_arguments += foreign_arguments(self.config, self.call)
        self.config = stage_for(self.call, self.config)
        self._precision = get_precision([part for _, part in models(pipeline)])
        # Before hooks and caches, which find their modules by their classes.
        adapters = PipelineAdapters(pipeline, self.config)
        self.denoiser = prepare_execution(pipeline, self.config, self.device)
        if self.denoiser is not None:
            self.denoiser.reason = self._why_execution
        # After compilation, because caches decide between compiled blocks.
        caches = StepCaches.of(pipeline, self.config)
        self._runner = PipelineRunner(
            pipeline,
            self.call,
            clock_for(self.device),
            self._output_copy,
            self.prompt_cache_bytes,
            caches,
            adapters,
            moves_weights=self.config.offload != "none" or self.config.num_ranks > 1,
        )
        self.sample_rate = get_sample_rate(pipeline)
        if self.sample_rate is None and makes_sound(pipeline, self.call):
            raise CheckpointError(f"{self.model} does not say the sample rate of its audio")
        # Last: hooks that offload weights wrap what runs.
        self._memory = PipelineMemory(pipeline, self.config, self.device)
        start_sharing(pipeline, self.config, self._rank, self.device)
        self.pipeline = pipeline

    @property
    def effective(self) -> Mapping[str, object]:
        """Return the effective settings and how often each was used; empty after `shutdown`."""
        runner = self._runner
        if runner is None or self._memory is None:
            return {}
        values: dict[str, object] = {
            "execution": "eager" if self.denoiser is None else self.denoiser.execution,
            "device": self.device,
            "dtype": self.dtype,
            "batching": self.config.batching,
            "precision": self._precision,
            "output_copy": self._output_copy.mode,
            "output_type": runner.output_type,
            "step_callback": runner.step_callback,
            **self._memory.effective,
            **get_sharing(self.pipeline),
            **runner.step_caches.effective,
            **runner.adapters.effective,
        }
        if self.denoiser is not None and self.denoiser.reason is not None:
            values["execution_reason"] = self.denoiser.reason
        if self.dropped_arguments:
            values["dropped_arguments"] = list(self.dropped_arguments)
        return values

    @property
    def makes(self) -> Kind:
        """The kind of the pipeline's output."""
        return self.call.makes or "image"

    @property
    def execution_counters(self) -> dict[str, float]:
        """Counts of the denoiser's calls, what they took from caches, tiled decodes and copies since loading."""
        execution = {} if self.denoiser is None else self.denoiser.counters.as_dict()
        memory = {} if self._memory is None else self._memory.counters
        caches = {} if self._runner is None else self._runner.step_caches.counters
        return {**execution, **self._output_copy.counters.as_dict(), **memory, **caches}

    def resolve(self, request: DiffusionRequest) -> DiffusionRequest:
        """Fill in the stage's and the pipeline's values and check the request; raises `InputError`."""
        self._check_ready()
        return resolve_request(request, self.config, self.pipeline, self.call)

    def compile_or_warm_up_model(self) -> None:
        """Choose the execution mode if the stage leaves it open, and compile or capture in advance; see `warm_up`."""
        if self.config.execution is None and self.denoiser is not None:
            # Also for weights that are loaded again.
            self.config = self.config.model_copy(update=choose_mode(self, self.denoiser))
            self._why_execution = self.denoiser.reason
        warm_up(self)

    def execute_model(
        self,
        requests: Sequence[DiffusionRequest],
        on_step: OnStep | None = None,
        on_output: OnOutput | None = None,
    ) -> tuple[DiffusionOutput, ...]:
        """Run one batch, whose requests have the same `batch_key`, to its end.

        Returns one output per request, in order; `on_output` gets each as soon as it is complete. If a request fails,
        its output has the `error` (`InputError`, `StageError`), and the others continue. Raises `StageError` if nothing
        can run: asleep, shut down or failed.
        """
        with self._busy:
            self._check_ready()
            self._current = frozenset(request.request_id for request in requests)
            outputs: dict[str, DiffusionOutput] = {}

            def finish(output: DiffusionOutput) -> None:
                outputs[output.request_id] = output
                if on_output is not None:
                    on_output(output)

            assert self._runner is not None
            batch = BatchRun(
                self._runner,
                self.config,
                is_aborted=self._is_aborted,
                agree=self._rank.agree,
                on_failure=self._recover,
                on_step=on_step,
                finish=finish,
            )
            try:
                batch.run(self._groups(requests, finish))
            finally:
                self._current = frozenset()
                self._aborted.clear()
        return tuple(outputs[request.request_id] for request in requests)

    def abort_requests(self, request_ids: Iterable[str]) -> None:
        """End requests of the running batch at their next step; ids that are not in it are ignored."""
        self._aborted |= self._current.intersection(request_ids)

    def _groups(self, requests: Sequence[DiffusionRequest], finish: OnOutput) -> Iterable[Sequence[DiffusionRequest]]:
        """Group requests that share a pipeline call; finish those that cannot run."""
        groups: dict[object, list[DiffusionRequest]] = {}
        for request in requests:
            try:
                resolved = request if request.num_prompt_tokens is not None else self.resolve(request)
            except OmniError as error:
                finish(DiffusionOutput(request.request_id, "error", error=error))
                continue
            is_stacked = self.config.batching == "stacked" and not resolved.conditions
            key = resolved.num_prompt_tokens if is_stacked else request.request_id
            groups.setdefault(key, []).append(resolved)
        return groups.values()

    def _is_aborted(self, request: DiffusionRequest) -> bool:
        return self._closing.is_set() or request.request_id in self._aborted

    def _recover(self) -> None:
        if self._memory is not None:
            self._memory.recover()
        # An illegal memory access leaves a CUDA device unusable, other errors do not.
        try:
            synchronize(self.device)
            empty_cache(self.device)
        except RuntimeError as error:
            self._fail(f"the device is unusable: {error}")

    def _fail(self, why: str) -> None:
        """Enter the permanent failed state; the first reason stays."""
        self._failure = self._failure or why

    def check_health(self) -> None:
        """Raise `StageError` if the executor has failed permanently or was shut down; a sleeping one is healthy."""
        stage = self.config.name
        if self._failure is not None:
            raise StageError(f"stage `{stage}` has failed: {self._failure}", stage=stage, hint="start it again")
        if self._closing.is_set():
            raise StageError(f"stage `{stage}` was shut down", stage=stage)

    def _check_ready(self) -> None:
        self.check_health()
        if self.is_sleeping:
            stage = self.config.name
            raise StageError(f"stage `{stage}` is asleep", stage=stage, hint="wake it up first")

    def sleep(self, level: int = 1) -> None:
        """Free the device's memory after the running batch, and empty the prompt cache.

        Level 1 moves the weights to the host; level 2 drops them, and `wake_up` reads them again. On the CPU, level 1
        only rejects requests until `wake_up`.
        """
        if level not in (1, 2):
            raise UsageError(f"sleep level must be 1 or 2, not {level!r}")
        with self._busy:
            self.check_health()
            if self.is_sleeping:
                return
            assert self._runner is not None
            if self._runner.prompt_cache is not None:
                self._runner.prompt_cache.clear()
            if self.denoiser is not None:
                # Graphs have the weights' addresses in them.
                self.denoiser.forget()
            if level == 2:
                self._release()
            elif self.device != "cpu" and self._memory is not None:
                self._memory.to_host()
            self.is_sleeping = True

    def wake_up(self, tags: Sequence[str] | None = None) -> None:
        """Restore the weights and accept requests again.

        Of vLLM's tags only "weights" has an effect; "kv_cache" alone wakes nothing. Raises `UsageError` for other tags,
        and `StageError` or `CheckpointError`, with the permanent failed state, if the weights cannot be restored.
        """
        unknown = set(tags or ()) - _TAGS
        if unknown:
            raise UsageError(f"unknown tags: {', '.join(sorted(unknown))}", hint="use `weights`")
        with self._busy:
            self.check_health()
            if not self.is_sleeping or (tags and "weights" not in tags):
                return
            try:
                if self._memory is None:
                    self._load_model()
                else:
                    self._memory.to_device()
            except Exception as error:
                self._fail(f"its weights could not be put back: {error}")
                if isinstance(error, OmniError):
                    raise
                message = f"stage `{self.config.name}`: could not wake up: {error}"
                raise StageError(message, stage=self.config.name) from error
            self.is_sleeping = False

    def shutdown(self) -> None:
        """End the running batch at its next step and free everything. Idempotent."""
        self._closing.set()
        with self._busy:
            self._release()

    def _release(self) -> None:
        if self._runner is not None:
            self._runner.close()
        if self.denoiser is not None:
            self.denoiser.close()
        if self._memory is not None:
            self._memory.close()
        self._runner = self.denoiser = self._memory = self.pipeline = None
        stop_sharing()
        # A pipeline has reference cycles; collect now, so that its weights are freed.
        gc.collect()
        empty_cache(self.device)
