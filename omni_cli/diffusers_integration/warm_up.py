"""A pipeline's first calls: they choose the execution mode, and compile or capture before a request waits for it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from omni_cli.diffusers_integration.arguments import grey_media
from omni_cli.diffusers_integration.memory import empty_cache, synchronize
from omni_cli.diffusers_integration.parallel import faster_attention, use_attention
from omni_cli.diffusers_integration.pipeline_run import find_denoiser
from omni_cli.diffusers_integration.requests import DiffusionModelOutput, DiffusionRequest, DiffusionSchedulerOutput
from omni_cli.errors import InputError, OmniError, StageError
from omni_cli.execution.ranges import mark

if TYPE_CHECKING:
    from omni_cli.config.schema import DiffusionStageConfig, Execution
    from omni_cli.execution.mode_choice import CallTime
    from omni_cli.execution.modes import ExecutionMode
    from omni_cli.inputs.pipeline_call import PipelineCall

_REQUEST_ID = "warm-up"
_MEASURED: tuple[Execution, ...] = ("eager", "compile", "compile")  # the first compiled calls compile
# The first call has one-time costs; with guidance, the second one may have a prompt of another length.
_MIN_CALLS = 2
_ENOUGH_S = 1.0


class Executor(Protocol):
    """The part of `DiffusersPipelineExecutor` that the first calls use."""

    config: DiffusionStageConfig
    call: PipelineCall
    device: str

    @property
    def pipeline(self) -> Any: ...

    @property
    def denoiser(self) -> ExecutionMode | None: ...

    def resolve(self, request: DiffusionRequest) -> DiffusionRequest: ...

    def execute_model(self, scheduler_output: DiffusionSchedulerOutput) -> DiffusionModelOutput: ...

    def abort_requests(self, request_ids: Iterable[str]) -> None: ...


def warm_up(executor: Executor) -> None:
    """Compile or capture for the stage's own size and guidance, for the base model and each adapter.

    Does nothing in eager execution. A prompt of another length may still need its own graph.
    """
    if executor.denoiser is None or executor.denoiser.execution == "eager":
        return
    for adapter in (None, *executor.config.lora):
        _call(executor, adapter)
    empty_cache(executor.device)  # requests may be smaller than the stage's own size


def choose_mode(executor: Executor, mode: ExecutionMode) -> dict[str, Any]:
    """Measure calls at the stage's own size in the modes that `mode` contains, and use the best one.

    Returns the stage's keys that it has chosen; the reason is the mode's.
    """
    from omni_cli.execution.mode_choice import choose_execution
    from omni_cli.execution.modes import CompiledGraphMode, CompiledMode

    if not isinstance(mode, CompiledMode | CompiledGraphMode):
        return {"execution": mode.execution}
    with_graphs = isinstance(mode, CompiledGraphMode)
    times: list[CallTime] = []
    try:
        for execution in _MEASURED:
            mode.use(execution)
            times.append(_time_of_call(executor))
    except OmniError as error:
        mode.choose("eager", f"`{execution}` failed in a warm-up call: {error}")
        return {"execution": "eager"}
    chosen: dict[str, Any] = {}
    chosen["execution"], reason = choose_execution(times[0], times[-1], with_graphs=with_graphs)
    attention = faster_attention(executor.config, executor.device)
    if attention is not None and chosen["execution"] != "eager" and _is_faster(executor, attention, times[-1]):
        chosen["attention_backend"] = attention
    mode.choose(chosen["execution"], reason)
    return chosen


def _is_faster(executor: Executor, attention: str, before: CallTime) -> bool:
    """Return True if compiled calls are faster with this attention backend, which then stays set."""
    use_attention(executor.pipeline, attention)
    try:
        _time_of_call(executor)  # compiles
        faster = _time_of_call(executor).total_s < before.total_s
    except OmniError:  # calls with a mask, which it does not take
        faster = False
    if not faster:
        use_attention(executor.pipeline, None)
    return faster


def _time_of_call(executor: Executor) -> CallTime:
    """Return the least time of the denoiser's first calls; the pipeline's call ends soon after them."""
    from omni_cli.execution.mode_choice import CallTime, timed_calls

    def end_early(calls: Sequence[CallTime]) -> None:
        if len(calls) >= _MIN_CALLS and sum(call.total_s for call in calls) >= _ENOUGH_S:
            executor.abort_requests([_REQUEST_ID])

    with timed_calls(find_denoiser(executor.pipeline), lambda: synchronize(executor.device), end_early) as calls:
        _call(executor, None)
    if not calls:
        raise StageError("the pipeline does not call its denoiser", stage=executor.config.name)
    return CallTime(min(call.host_s for call in calls), min(call.total_s for call in calls))


def _call(executor: Executor, adapter: str | None) -> None:
    prompt = "warm-up" if "prompt" in executor.call.arguments else None
    for media in grey_media(executor.call, executor.config):
        # Two steps: some schedules divide by zero with one.
        wanted = DiffusionRequest(_REQUEST_ID, prompt, num_inference_steps=2, conditions=media, lora=adapter)
        request = executor.resolve(wanted)
        with mark("warm-up"):
            (output,) = executor.execute_model(DiffusionSchedulerOutput((request,))).outputs
        if not isinstance(output.error, InputError):
            break
    if output.error is not None:
        raise output.error
