"""A pipeline whose denoiser shares each request with those of other ranks: diffusers' context parallelism."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import queue
import signal
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeAlias

from omni_cli.config.schema import DiffusionStageConfig
from omni_cli.config.stage_keys import DENOISERS
from omni_cli.core.compat.libraries import prepare_libraries
from omni_cli.core.compat.parallel_on_cpu import one_device_at_least
from omni_cli.core.errors import StageError, UsageError
from omni_cli.core.text import suggest
from omni_cli.stage.failures import as_failure
from omni_cli.stage.messages import (
    AbortRequest,
    AddRequest,
    Failure,
    Report,
    SleepStage,
    WakeStage,
    decode_command,
    encode,
)
from omni_cli.stage.protocol import Stage, StageSpec

Parts = Mapping[str, type[Any]]
"""The classes of a pipeline's models, by the names of its components."""

_HOPPER = 9  # the first number of its compute capability
# Messages besides encoded commands: to a rank "run a step" and decisions, from a rank "done".
_STEP, _NO, _YES, _DONE = b"", b"0", b"1", b""
# A rank that failed alone leaves the others in an exchange that may never end; this long, they may fail as well.
_LAST_S = 30.0
_PR_SET_PDEATHSIG = 1


def check_attention(config: DiffusionStageConfig) -> None:
    """Raise `UsageError` for an attention backend that diffusers does not know."""
    if (backend := config.attention_backend) is not None:
        from diffusers.models.attention_dispatch import AttentionBackendName

        names = [backend_name.value for backend_name in AttentionBackendName]
        if backend not in names:
            raise _refusal(config, f"diffusers has no attention backend `{backend}`", suggest(backend, names))


def check_denoisers(config: DiffusionStageConfig, models: Sequence[Any]) -> None:
    """Raise `UsageError` for parallel keys that a pipeline's denoisers cannot follow, and where diffusers is silent."""
    backend, shared = config.attention_backend, config.context_parallel
    if backend is None and config.num_ranks == 1:
        return
    if not models:
        raise _refusal(config, "`attention_backend` and `context_parallel` need a pipeline with a transformer")
    for model in models:
        name, heads, degree = type(model).__name__, model.config.get("num_attention_heads"), shared.ulysses_degree or 1
        if backend is not None and not _get_backends(model):
            raise _refusal(config, f"`attention_backend` has no effect: {name} computes its attention itself")
        if isinstance(heads, int) and heads % degree and not shared.ulysses_anything:
            raise _refusal(
                config,
                f"`ulysses_degree: {degree}` does not divide the {heads} attention heads of {name}",
                f"--set {config.name}.context_parallel.ulysses_anything=true",
            )


def _refusal(config: DiffusionStageConfig, why: str, hint: str | None = None) -> UsageError:
    return UsageError(f"stage `{config.name}`: {why}", hint=hint)


@dataclass(frozen=True)
class Rank:
    """One of the processes that run a stage together; by default the only one.

    `join` returns once all have loaded. `agree` turns the decision of rank 0 into that of all; others pass anything.
    """

    number: int = 0
    join: Callable[[], None] = lambda: None
    agree: Callable[[bool], bool] = bool
    meeting_place: Path = Path()


def start_sharing(pipeline: Any, config: DiffusionStageConfig, rank: Rank, device: str) -> None:
    """Set the denoiser's attention backend, and share its work with the other ranks. Raises `UsageError`."""
    import torch
    from diffusers import ContextParallelConfig

    check_denoisers(config, list(denoisers(pipeline)))
    try:
        if config.attention_backend is not None:
            use_attention(pipeline, config.attention_backend)
        if config.num_ranks == 1:
            return
        rank.join()
        settings = config.context_parallel.model_dump(exclude_none=True)
        if device == "cpu":
            torch.set_num_threads(max(1, torch.get_num_threads() // config.num_ranks))
        else:
            torch.cuda.set_device(device)
        torch.distributed.init_process_group(
            "gloo" if device == "cpu" else "nccl",
            init_method=f"file://{rank.meeting_place}",
            rank=rank.number,
            world_size=config.num_ranks,
        )
        for model in denoisers(pipeline):
            with one_device_at_least():
                model.enable_parallelism(config=ContextParallelConfig(**settings))
    except (ValueError, RuntimeError, ImportError) as error:
        # diffusers names what is missing: a plan to split the model, a backend that can be shared, or its package.
        hint = "remove `context_parallel`; for several devices start the whole model several times: `--replicas N`"
        raise _refusal(
            config, f"its parallel settings cannot be followed: {error}", hint if config.num_ranks > 1 else None
        ) from error


def faster_attention(config: DiffusionStageConfig, device: str) -> str | None:
    """Return an attention backend of diffusers that may be faster here than its own, unless the stage names one.

    It is FlashAttention 3, where its package is installed and the device is of the generation that it is written for.
    """
    import torch
    from diffusers.utils import is_flash_attn_3_available

    if config.attention_backend is not None or not device.startswith("cuda") or not is_flash_attn_3_available():
        return None
    return "_flash_3" if torch.cuda.get_device_capability(device)[0] == _HOPPER else None


def use_attention(pipeline: Any, backend: str | None) -> None:
    """Set the denoiser's attention backend, as diffusers for the whole process; None restores diffusers' own."""
    from diffusers.models.attention_dispatch import (
        DIFFUSERS_ATTN_BACKEND,
        AttentionBackendName,
        _AttentionBackendRegistry,
    )

    for model in denoisers(pipeline):
        if backend is None:
            model.reset_attention_backend()
        else:
            model.set_attention_backend(backend)
    if backend is None:  # which diffusers leaves as it is
        _AttentionBackendRegistry.set_active_backend(AttentionBackendName(DIFFUSERS_ATTN_BACKEND))


def stop_sharing() -> None:
    """Leave the group of ranks, if this process is in one."""
    import torch

    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def get_sharing(pipeline: Any) -> dict[str, object]:
    """Return the attention backend and degrees in effect, read from the denoiser; empty for one that has no choice."""
    from diffusers.models.attention_dispatch import _AttentionBackendRegistry

    values: dict[str, object] = {}
    others, _ = _AttentionBackendRegistry.get_active_backend()
    for model in denoisers(pipeline):
        if backends := _get_backends(model):
            values["attention_backend"] = ", ".join(sorted({(backend or others).value for backend in backends}))
        shared = getattr(model._parallel_config, "context_parallel_config", None)
        if shared is not None:
            names = ("ulysses_degree", "ring_degree", "ulysses_anything", "ring_anything")
            values["context_parallel"] = {name: getattr(shared, name) for name in names}
    return values


def _get_backends(model: Any) -> set[Any]:
    """Return the attention backends of a model's layers, None for the default; empty if it has no choice."""
    processors: Iterator[Any] = (getattr(module, "processor", None) for module in model.modules())
    return {each._attention_backend for each in processors if hasattr(each, "_attention_backend")}


def denoiser_classes(parts: Parts) -> dict[str, type[Any]]:
    """Return the classes of the models that run in each step, by the names of their components."""
    from diffusers.models.modeling_utils import ModelMixin

    return {name: parts[name] for name in DENOISERS if issubclass(parts.get(name, object), ModelMixin)}


def denoisers(pipeline: Any) -> Iterator[Any]:
    """Return the models of a pipeline that run in each step."""
    from diffusers.models.modeling_utils import ModelMixin

    models = (getattr(pipeline, name, None) for name in DENOISERS)
    return (model for model in models if isinstance(model, ModelMixin))


def find_denoiser(pipeline: Any) -> Any | None:
    """Return the model that runs in each step, by diffusers' names; None if there is none."""
    import torch

    for name in ("transformer", "unet", "prior"):
        module = getattr(pipeline, name, None)
        if isinstance(module, torch.nn.Module):
            return module
    return None


LoadStage: TypeAlias = Callable[[StageSpec, Callable[[Report], None], Rank], Stage]


@dataclass(frozen=True)
class _Answer:
    """The end of a step on a rank, or of the rank with `ended`; `failure` is what failed, "" for nothing."""

    rank: int
    failure: str
    ended: bool = False


class Ranks:
    """The other ranks of a stage, seen from rank 0.

    A rank that ends, or that fails where rank 0 does not, ends the stage: `report` gets the failure, at once.
    """

    def __init__(self, spec: StageSpec, load: LoadStage, report: Callable[[Report], None]) -> None:
        """Start the processes, which load the stage with `load`, a class or function of a module."""
        self._spec = spec
        self._report = report
        # The file by which ranks find each other.
        self._meeting_place = Path(tempfile.mkdtemp(prefix="ranks-")) / "store"
        self._answers: queue.SimpleQueue[_Answer] = queue.SimpleQueue()
        self._settled = threading.Event()
        self._closing = False
        # Not forked: once anything has asked for CUDA devices, as some imports do, forked processes cannot use them.
        context = multiprocessing.get_context("spawn")
        self._processes: dict[int, Any] = {}
        self._pipes: dict[int, Connection] = {}
        for number in range(1, spec.stage.num_ranks):
            self._pipes[number], theirs = context.Pipe()
            self._processes[number] = context.Process(
                target=_run_rank,
                args=(theirs, spec, load, number, self._meeting_place, os.getpid()),
                name=f"omni-{spec.stage.name}-rank-{number}",
                daemon=True,
            )
            self._processes[number].start()
            theirs.close()
        for number in self._processes:
            threading.Thread(target=self._listen, args=(number,), name=f"omni-rank-{number}", daemon=True).start()

    @property
    def rank(self) -> Rank:
        """Rank 0, for its own executor."""
        return Rank(0, self._wait, self._decide, self._meeting_place)

    def send(self, command: AddRequest | AbortRequest | SleepStage | WakeStage) -> None:
        self._send(encode(command))

    def start_step(self) -> None:
        self._settled.clear()
        self._send(_STEP)

    def finish_step(self, *, failed: bool) -> None:
        """Wait for the others; raises `StageError` if one of them failed otherwise than rank 0 did."""
        self._settled.set()
        self._wait(failed=failed)

    def close(self) -> None:
        """End the processes."""
        self._closing = True
        for process in self._processes.values():
            process.kill()
            process.join()

    def _wait(self, *, failed: bool = False) -> None:
        """Wait until the others have loaded, or ended a step; raises the `StageError` of one that did otherwise."""
        for answer in [self._answers.get() for _ in self._processes]:
            if answer.ended or bool(answer.failure) != failed:
                raise self._error(answer)

    def _decide(self, decision: bool) -> bool:
        self._send(_YES if decision else _NO)
        return decision

    def _send(self, message: bytes) -> None:
        for pipe in self._pipes.values():
            try:
                pipe.send_bytes(message)
            except OSError:
                continue  # the rank has ended, which `_listen` reports

    def _listen(self, number: int) -> None:
        pipe, process = self._pipes[number], self._processes[number]
        while True:
            try:
                failure = pipe.recv_bytes().decode()
            except (EOFError, OSError):
                break
            self._answers.put(_Answer(number, failure))
            if failure and not self._settled.wait(_LAST_S):
                self._fail(_Answer(number, failure))
        process.join()
        if self._closing:
            return  # `close` waits for it as well, and only one of the two learns the exit code
        code = process.exitcode
        how = f"was killed ({signal.Signals(-code).name})" if code < 0 else f"ended unexpectedly (exit code {code})"
        self._fail(_Answer(number, how, ended=True))

    def _fail(self, answer: _Answer) -> None:
        if self._closing:
            return
        self._report(Failure.of(self._error(answer)))
        for _ in self._processes:
            self._answers.put(answer)

    def _error(self, answer: _Answer) -> StageError:
        stage = self._spec.stage.name
        how = answer.failure or "finished a request that failed on rank 0"
        killed = "system kills processes when memory runs out: free some memory, or use smaller settings"
        return StageError(
            f"stage `{stage}`: rank {answer.rank} {how if answer.ended else f'failed: {how}'}",
            stage=stage,
            hint=f"the {killed}" if answer.ended and "SIGKILL" in how else None,
        )


def _run_rank(
    pipe: Connection, spec: StageSpec, load: LoadStage, number: int, meeting_place: Path, parent: int
) -> None:
    """Run the process of a rank, which ends with rank 0."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    prepare_libraries()
    try:
        rank = Rank(number, lambda: pipe.send_bytes(_DONE), lambda _decision: pipe.recv_bytes() == _YES, meeting_place)
        _follow(pipe, load(spec, lambda _report: None, rank))  # rank 0 makes the reports
    except EOFError:
        os._exit(0)
    except Exception as error:  # noqa: BLE001 - whatever it is, rank 0 has to know
        traceback.print_exc()
        pipe.send_bytes(as_failure(error, spec.stage).message.encode())
        sys.stderr.flush()
        os._exit(1)


def _follow(pipe: Connection, stage: Stage) -> None:
    while True:
        raw = pipe.recv_bytes()
        if raw == _STEP:
            failures = [report.message for report in stage.step() if isinstance(report, Failure)]
            pipe.send_bytes("; ".join(failures).encode())
            continue
        match decode_command(raw):
            case AddRequest(request):
                stage.add(request)
            case AbortRequest(request_id):
                stage.abort(request_id)
            case SleepStage(level):
                stage.sleep(level)
            case WakeStage(tags):
                stage.wake_up(tags)
