"""Capabilities of a stage on a diffusers pipeline, its denoiser's execution mode, and the calls that warm it up."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from omni_cli.backends.diffusers.arguments import grey_media
from omni_cli.backends.diffusers.memory import empty_cache, synchronize
from omni_cli.backends.diffusers.parallel import faster_attention, find_denoiser, use_attention
from omni_cli.backends.diffusers.requests import DiffusionRequest
from omni_cli.backends.execution.ranges import mark
from omni_cli.config.schema import DiffusionStageConfig, Execution
from omni_cli.config.stage_keys import CACHES_BETWEEN_BLOCKS, SECOND_DENOISER, notes_on
from omni_cli.core.errors import InputError, OmniError, StageError

if TYPE_CHECKING:
    import torch

    from omni_cli.backends.execution.modes import ExecutionMode

# A compiled call that is not faster by more than this repays no compilation.
_MIN_GAIN = 0.97
# The device waits for the host if it has nothing left to do when the host has launched the last operation. Where it is
# the slower one, the host took at most 0.90 of a call on H200s; where it waits, all of it.
_HOST_BOUND = 0.95
# Half of a decode of these is moments of GroupNorm: 1024 x 1024 takes 43 instead of 85 ms compiled on an H200. Those of
# videos normalize without moments, and decode frames one by one with caches.
_COMPILED_VAES = ("AutoencoderKL", "AutoencoderKLFlux2")


@dataclass(frozen=True)
class CallTime:
    """Seconds of a call that begins on an idle device: on the host, and until the device has ended as well."""

    host_s: float
    total_s: float


def choose_execution(eager: CallTime, compiled: CallTime, *, with_graphs: bool) -> tuple[Execution, str]:
    """Return the mode and why; without `with_graphs` one that captures no CUDA graph."""
    took = f"a compiled call takes {_ms(compiled.total_s)}, {_ms(compiled.host_s)} of it on the host"
    reason = f"{took}, an eager one {_ms(eager.total_s)}"
    if with_graphs and compiled.host_s >= _HOST_BOUND * compiled.total_s:
        return "compile_cudagraph", reason
    return ("compile" if compiled.total_s <= _MIN_GAIN * eager.total_s else "eager"), reason


@contextmanager
def timed_calls(
    module: torch.nn.Module, synchronize: Callable[[], None], on_call: Callable[[list[CallTime]], None]
) -> Iterator[list[CallTime]]:
    """Measure the module's calls inside the context; `on_call` gets all so far after each."""
    calls: list[CallTime] = []
    began_s = 0.0

    def begin(*_: object) -> None:
        nonlocal began_s
        synchronize()
        began_s = time.perf_counter()

    def end(*_: object) -> None:
        host_s = time.perf_counter() - began_s
        synchronize()
        calls.append(CallTime(host_s, time.perf_counter() - began_s))
        on_call(calls)

    hooks = module.register_forward_pre_hook(begin), module.register_forward_hook(end)
    try:
        yield calls
    finally:
        for hook in hooks:
            hook.remove()


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms"


_REQUEST_ID = "warm-up"
_MEASURED_MODES: tuple[Execution, ...] = ("eager", "compile", "compile")  # the first compiled calls compile
# The first call has one-time costs; with guidance, the second one may have a prompt of another length.
_MIN_CALLS = 2
_ENOUGH_S = 1.0


def check_supported(config: DiffusionStageConfig) -> None:
    """Raise `StageError` for settings that a stage on a diffusers pipeline does not support."""
    for name, key in type(config).model_fields.items():
        notes = notes_on(key)
        if notes.backend == "vllm" and getattr(config, name) != key.default:
            reason = f": {notes.reason}" if notes.reason else ""
            raise StageError(
                f"stage `{config.name}`: `{name}` has no effect on a diffusers pipeline{reason}",
                stage=config.name,
                hint=notes.hint or f"remove `{name}` from the stage",
            )
    if config.precision is not None and config.torch_dtype:
        raise StageError(
            f"stage `{config.name}`: `precision` is that of every part, and `torch_dtype` that of some",
            stage=config.name,
            hint="remove one of the two",
        )


def widest_execution(config: DiffusionStageConfig, device: str) -> Execution:
    """Return the mode, of those that the stage's other keys allow, that contains the others."""
    within_blocks = config.cache.method not in CACHES_BETWEEN_BLOCKS
    if device == "cpu" or config.num_ranks > 1 or within_blocks or config.offload in ("sequential", "group"):
        return "eager"
    if config.lora or config.cache.method != "none" or config.offload != "none":
        return "compile"
    return "compile_cudagraph"


def prepare_execution(pipeline: object, config: DiffusionStageConfig, device: str) -> ExecutionMode | None:
    """Make the pipeline's denoiser run in mode `config.execution`; None for an eager pipeline without a known one.

    Where the stage leaves it open, the mode is one that contains all that may be chosen. Where it states one that
    compiles, so is the decoder of a VAE: up to 45 s of a first start on an H200, and minutes on a CPU, where it is not.
    Compilation and capture happen in later calls.
    """
    from omni_cli.backends.execution.modes import make_execution_mode

    module = find_denoiser(pipeline)
    if module is not None:
        execution = config.execution or widest_execution(config, device)
        second = getattr(pipeline, SECOND_DENOISER, None)
        mode = make_execution_mode(
            module,
            execution,
            stage=config.name,
            device=device,
            num_variants=1 + len(config.lora),
            beside=() if second is None else (second,),
        )
        vae: Any = getattr(pipeline, "vae", None)
        if config.execution is not None and type(vae).__name__ in _COMPILED_VAES and device != "cpu":
            mode.compile_whole(vae.decoder)
        return mode
    if config.execution in (None, "eager"):
        return None
    raise StageError(
        f"stage `{config.name}`: `execution: {config.execution}` needs a pipeline with a transformer or a UNet, "
        f"and {type(pipeline).__name__} has none",
        stage=config.name,
        hint=f"--set {config.name}.execution=eager",
    )


def choose_device(config: DiffusionStageConfig, rank: int) -> str:
    """Return torch's name for the device of a stage's rank. Raises `StageError` if there is none."""
    import torch

    if config.num_ranks > 1:
        named = {"cpu"} if config.devices is None else set(config.devices.split(","))
        if named == {"cpu"} and (config.devices is not None or not torch.cuda.is_available()):
            return "cpu"
        if torch.cuda.device_count() < config.num_ranks:
            raise StageError(
                f"stage `{config.name}`: `context_parallel` needs {config.num_ranks} devices, and "
                f"{torch.cuda.device_count()} are visible",
                stage=config.name,
            )
        return f"cuda:{rank}"
    if config.devices is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    if config.devices.isdigit():
        return f"cuda:{config.devices}"
    if config.devices == "cpu" or config.devices.removeprefix("cuda:").isdigit():
        return config.devices
    raise StageError(
        f"stage `{config.name}`: a diffusers pipeline runs on one device, not `devices: {config.devices}`",
        stage=config.name,
        hint="name one device, for example `0` or `cpu`",
    )


def warm_up(executor: Any) -> None:
    """Compile or capture for the stage's own size and guidance, for the base model and each adapter.

    Does nothing in eager execution. A prompt of another length may still need its own graph.
    """
    if executor.denoiser is None or executor.denoiser.execution == "eager":
        return
    for adapter in (None, *executor.config.lora):
        _call(executor, adapter)
    empty_cache(executor.device)  # requests may be smaller than the stage's own size


def choose_mode(executor: Any, mode: ExecutionMode) -> dict[str, Any]:
    """Measure calls at the stage's own size in the modes that `mode` contains, and use the best one.

    Returns the stage's keys that it has chosen; the reason is the mode's.
    """
    from omni_cli.backends.execution.modes import CompiledGraphMode, CompiledMode

    if not isinstance(mode, CompiledMode | CompiledGraphMode):
        return {"execution": mode.execution}
    with_graphs = isinstance(mode, CompiledGraphMode)
    times: list[CallTime] = []
    try:
        for execution in _MEASURED_MODES:
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


def _is_faster(executor: Any, attention: str, before: CallTime) -> bool:
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


def _time_of_call(executor: Any) -> CallTime:
    """Return the least time of the denoiser's first calls; the pipeline's call ends soon after them."""

    def end_early(calls: Sequence[CallTime]) -> None:
        if len(calls) >= _MIN_CALLS and sum(call.total_s for call in calls) >= _ENOUGH_S:
            executor.abort_requests([_REQUEST_ID])

    with timed_calls(find_denoiser(executor.pipeline), lambda: synchronize(executor.device), end_early) as calls:
        _call(executor, None)
    if not calls:
        raise StageError("the pipeline does not call its denoiser", stage=executor.config.name)
    return CallTime(min(call.host_s for call in calls), min(call.total_s for call in calls))


def _call(executor: Any, adapter: str | None) -> None:
    prompt = "warm-up" if "prompt" in executor.call.arguments else None
    for media in grey_media(executor.call, executor.config):
        # Two steps: some schedules divide by zero with one.
        wanted = DiffusionRequest(_REQUEST_ID, prompt, num_inference_steps=2, conditions=media, lora=adapter)
        request = executor.resolve(wanted)
        with mark("warm-up"):
            (output,) = executor.execute_model((request,))
        if not isinstance(output.error, InputError):
            break
    if output.error is not None:
        raise output.error
