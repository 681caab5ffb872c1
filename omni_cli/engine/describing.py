"""Questions that only a process which imports diffusers or vLLM can answer: what a pipeline takes, what a model sees.

That process is forked from the fork server, whose imports the stages of the same command then do not repeat.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omni_cli.checkpoints.resolve import resolve_model
from omni_cli.config.families import Reference, StageRole, get_family_of_stages, load, plugin_place
from omni_cli.config.schema import EngineConfig
from omni_cli.core.errors import CheckpointError, DeadlineError, OmniError
from omni_cli.requests.capabilities import Capabilities
from omni_cli.requests.pipeline_call import PipelineCall

# Imported when a process is started, so that refusals of requests are fast.
if TYPE_CHECKING:
    from omni_cli.engine.process.fork_server import ForkServer
    from omni_cli.requests.media.reading import ChooseFrames

_calls: dict[tuple[Reference, str], PipelineCall] = {}


def get_capabilities(config: EngineConfig, *, verbose: bool = False, timeout_s: float | None = None) -> Capabilities:
    """Return the capabilities of a profile; for a pipeline, see `read_call`."""
    family = get_family_of_stages(config.model, config.stages)
    role = None if family is None else family.role(config.stages[0].name)
    if role is None or not isinstance(role.takes, str):
        return Capabilities.of(config)
    return Capabilities.of(config, read_call(role, config.model, verbose=verbose, timeout_s=timeout_s))


def read_call(role: StageRole, model: str, *, verbose: bool = False, timeout_s: float | None = None) -> PipelineCall:
    """Return the call of the pipeline in `model`. A process imports diffusers for it, which takes seconds.

    The fork server stays for an engine of the same profile; `ForkServer.end_spare` ends it. `verbose` is as of
    `ForkServer`. Raises `OmniError`, after `timeout_s` `DeadlineError`.
    """
    assert isinstance(role.takes, str)
    key = (role.takes, model)
    if key not in _calls:
        _calls[key] = _ask(role.takes, (model,), frozenset({role.backend}), verbose, timeout_s)
    return _calls[key]


def frame_chooser(
    config: EngineConfig, options: Mapping[str, float] | None = None, *, verbose: bool = False
) -> ChooseFrames | None:
    """Return vLLM's choice of a video's frames, with its `options`; None for a pipeline, which takes all of them."""
    if config.stages[0].backend == "diffusers":
        return None
    return functools.partial(_choose, config.model, config.backends, tuple((options or {}).items()), verbose)


@functools.lru_cache(1000)
def _choose(
    model: str, backends: frozenset[str], options: tuple[Any, ...], verbose: bool, total: int, fps: float
) -> Any:
    arguments = (model, total, fps, dict(options))
    return _ask("omni_cli.backends.vllm.prompts:choose_frames", arguments, backends, verbose)


def _ask(
    reference: Reference,
    arguments: tuple[Any, ...],
    backends: frozenset[str],
    verbose: bool,
    timeout_s: float | None = None,
) -> Any:
    """Call a function, with a model first, in a process of the fork server."""
    from omni_cli.engine.process.fork_server import ChildCall, ForkServer

    call = ChildCall(ForkServer(backends, verbose=verbose).start_spare(), _look, reference, *arguments)
    is_late = threading.Event()

    def give_up() -> None:
        is_late.set()
        ForkServer.end_spare()  # whose imports the start waits for
        call.cancel()

    timer = threading.Timer(threading.TIMEOUT_MAX if timeout_s is None else timeout_s, give_up)
    timer.daemon = True
    timer.start()
    try:
        answer = call.run()
    except (EOFError, OmniError):
        if is_late.is_set():
            message = f"the run did not finish within {timeout_s:g} s"
            raise DeadlineError(message, hint="raise `--timeout`") from None
        raise OmniError("the process that looks at the model ended unexpectedly", hint="run `omni doctor`") from None
    except KeyboardInterrupt:
        ForkServer.end_spare()  # its imports are no longer needed
        raise
    finally:
        timer.cancel()
    from omni_cli.stage.messages import Failure

    if isinstance(answer, Failure):
        raise OmniError(answer.message, hint=answer.hint) if answer.kind == "stage" else answer.error(arguments[0])
    return answer


def _look(reference: Reference, model: str, *arguments: Any) -> Any:
    try:
        return load(reference)(model, *arguments)
    except OmniError:
        raise
    except Exception as error:
        place = f" ({place})" if (place := plugin_place(error)) else ""
        raise CheckpointError(f"cannot look at the model `{model}`: {type(error).__name__}: {error}{place}") from error


async def provide_in_child(model: str, fork_server: ForkServer) -> Path:
    """Return the folder of a `builtin:NAME` that has to be built, or of a repo id, from a child process.

    Raises `OmniError`. When cancelled, it ends the process.
    """
    import asyncio

    from omni_cli.engine.process.fork_server import NO_MAIN_GUARD, ChildCall
    from omni_cli.stage.messages import Failure

    call = ChildCall(fork_server.start(), resolve_model, model)
    # Shielded, because a thread cannot be cancelled.
    running = asyncio.ensure_future(asyncio.to_thread(call.run))
    try:
        outcome = await asyncio.shield(running)
    except asyncio.CancelledError:
        fork_server.stop()  # a process that it starts now would be too late
        fork_server.end_spare()
        call.cancel()
        await asyncio.wait([running])
        running.exception()  # retrieved, so that asyncio does not report it
        raise
    except EOFError:
        hint = NO_MAIN_GUARD if call.exit_code == 1 else "check that enough memory is free"
        raise OmniError(f"the process that provides `{model}` ended unexpectedly", hint=hint) from None
    if isinstance(outcome, Failure):
        raise outcome.error("checkpoint")
    return Path(outcome)
