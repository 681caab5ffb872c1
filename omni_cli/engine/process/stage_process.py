"""The main loop of a stage's process: load, then handle commands and send reports until asked to stop.

The process ends when the pipe to the command closes, whatever it is doing, and kills its own children (such as
tensor-parallel workers).
"""

from __future__ import annotations

import contextlib
import getpass
import os
import queue
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path

from omni_cli.backends.execution import ranges
from omni_cli.backends.execution.stacks import stacks_in, write_stacks_on_signal
from omni_cli.config.families import load
from omni_cli.config.schema import DiffusionStageConfig
from omni_cli.core.compat.own_tokenizers import tokenizer_effect
from omni_cli.core.errors import OutputError, StageError
from omni_cli.engine.mps import PIPES, mps_effect
from omni_cli.engine.process.fork_server import StageLog, become_group_leader
from omni_cli.engine.ray_cluster import ray_for_ranks
from omni_cli.engine.recording.recorder import Recorder, initialized_cuda
from omni_cli.stage.failures import as_failure, summary
from omni_cli.stage.messages import (
    AbortRequest,
    AddRequest,
    Alive,
    AppendInput,
    Command,
    CountersReport,
    Failure,
    MemoryReport,
    Report,
    RequestDone,
    SleepStage,
    SleepState,
    StageReady,
    StopStage,
    WakeStage,
    decode_commands,
    encode,
    join,
)
from omni_cli.stage.protocol import Stage, StageSpec
from omni_cli.stage.recording import (
    DescribeStage,
    MeasureRates,
    RecordingCommand,
    StartRecording,
    StopRecording,
)

# How often a stage reports that it is alive while its steps have no output, as in a long prefill.
_BEAT_S = 1.0
_ALLOCATOR = "PYTORCH_CUDA_ALLOC_CONF"
# A library may write a file while the folder is being removed.
_REMOVALS = 3


def run_stage(connection: Connection, spec: StageSpec, log: StageLog, scratch: Path) -> None:
    """Run the process; its output and that of its libraries go to `log`.

    It creates the folder `scratch` for temporary files; the process that started it removes the folder.
    """
    become_group_leader()
    _redirect_output(log)
    emit = _Emitter(connection)
    try:
        scratch.mkdir(mode=0o700)
        write_stacks_on_signal(stacks_in(scratch))
    except OSError as error:
        emit(as_failure(error, spec.stage, loads=spec.model))
        return
    _set_environment(spec, scratch)
    tempfile.tempdir = str(scratch)
    inbox: queue.SimpleQueue[Command] = queue.SimpleQueue()
    loaded: list[Stage] = []
    threading.Thread(target=_read_commands, args=(connection, inbox, loaded, emit, scratch), daemon=True).start()
    with contextlib.ExitStack() as cluster:
        _run(spec, cluster, inbox, loaded, emit)


def _run(
    spec: StageSpec,
    cluster: contextlib.ExitStack,
    inbox: queue.SimpleQueue[Command],
    loaded: list[Stage],
    emit: _Emitter,
) -> None:
    """Load the stage, append it to `loaded`, and run it; `cluster` collects resources to close afterwards."""
    recorder = Recorder() if spec.records else None
    started_s = time.perf_counter()

    def send_at_once(report: Report) -> None:
        """Send a report in the middle of a step."""
        _note_ends([report])
        if loaded:
            _send_reports(loaded[0], [report], emit)
        else:
            emit(report)

    try:
        with ranges.mark("load"):
            cluster.enter_context(ray_for_ranks(spec.stage))
            stage = load_stage(spec, send_at_once)
            stage.warm_up()
            effective = {**stage.effective, **mps_effect(spec), **tokenizer_effect()}
    except Exception as error:  # noqa: BLE001 - whatever a library raises while loading must reach the user
        emit(as_failure(error, spec.stage, loads=spec.model))
        return
    load_s = time.perf_counter() - started_s
    counters, choices = stage.execution_counters, (stage.voices, stage.media)
    emit(StageReady(load_s, effective, memory_report(), stage.settings, counters, *choices))
    forget_peaks()
    loaded.append(stage)
    if recorder is not None:
        recorder.on_loaded(stage)
    try:
        _serve(spec, stage, inbox, emit, recorder)
    except Exception as error:  # noqa: BLE001 - the engine has failed, and with it every request of this stage
        emit(as_failure(error, spec.stage))
    finally:
        stage.close(process_ends=True)


def load_stage(spec: StageSpec, emit: Callable[[Report], None]) -> Stage:
    """Load the stage that `spec` describes; `emit` sends progress from within a step."""
    role = spec.family.role(spec.stage.name)
    assert role is not None, "a profile's stages are checked with its checkpoint"
    try:
        stage: Callable[[StageSpec, Callable[[Report], None]], Stage] = load(role.stage)
    except ImportError as error:
        raise StageError(
            f"{role.backend} cannot be imported: {error}", stage=spec.stage.name, hint="run `omni doctor`"
        ) from error
    return stage(spec, emit)


def _serve(
    spec: StageSpec, stage: Stage, inbox: queue.SimpleQueue[Command], emit: _Emitter, recorder: Recorder | None
) -> None:
    while True:
        while not stage.has_work() or not inbox.empty():
            command = inbox.get()
            match command:
                case StopStage():
                    return
                case AbortRequest():
                    stage.abort(command.request_id)
                    emit(command)
                case AddRequest() | AppendInput():
                    _take(spec, stage, command, emit)
                case SleepStage(level):
                    emit(SleepState(stage.sleep(level)))
                case WakeStage(tags):
                    emit(SleepState(stage.wake_up(tags)))
                case StartRecording() | StopRecording() | DescribeStage() | MeasureRates():
                    _record(recorder, command, emit)
            del command  # which may hold an hour of sound, and the next one may be far
        with ranges.mark("engine step"):
            reports = stage.step()
        _note_ends(reports)
        if recorder is not None:
            recorder.on_step()
        _send_reports(stage, reports, emit)


def _note_ends(reports: Iterable[Report]) -> None:
    """End the ranges of finished requests first, so that they are as long as the reported latencies."""
    for report in reports:
        if isinstance(report, (RequestDone, Failure)) and report.request_id is not None:
            ranges.request_ended(report.request_id)


def _send_reports(stage: Stage, reports: Sequence[Report], emit: _Emitter) -> None:
    if any(isinstance(report, RequestDone) for report in reports):
        # Before the results of requests, so that those who await them see the figures.
        emit(memory_report(), CountersReport(stage.execution_counters))
    with ranges.mark("send reports"):
        if reports:
            emit(*reports)
        if emit.silent_s > _BEAT_S:
            emit(Alive())


def _take(spec: StageSpec, stage: Stage, command: AddRequest | AppendInput, emit: _Emitter) -> None:
    request_id = command.request.request_id if isinstance(command, AddRequest) else command.request_id
    if isinstance(command, AddRequest):
        ranges.request_began(request_id)
    try:
        with ranges.mark("take input"):
            if isinstance(command, AddRequest):
                stage.add(command.request)
            else:
                stage.append(command)
    except Exception as error:  # noqa: BLE001 - one request that a library chokes on must not end the others
        stage.abort(request_id)
        emit(as_failure(error, spec.stage, request_id=request_id))


def _record(recorder: Recorder | None, command: RecordingCommand, emit: _Emitter) -> None:
    assert recorder is not None, "the engine was not made with `records`"
    try:
        emit(recorder.answer(command))
    except OutputError as error:
        emit(Failure.of(error))


def memory_report() -> MemoryReport:
    """Peaks of this process since its start or since `forget_peaks`: bytes on its CUDA device and on the host."""
    import resource

    cuda = initialized_cuda()
    device, reserved = (0, 0) if cuda is None else (cuda.max_memory_allocated(), cuda.max_memory_reserved())
    return MemoryReport(device, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, reserved)


def forget_peaks() -> None:
    """Reset the peaks, so that those of loading do not hide those of running.

    If the kernel does not allow a process to reset its resident peak, that peak includes loading.
    """
    cuda = initialized_cuda()
    if cuda is not None:
        cuda.reset_peak_memory_stats()
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


class _Emitter:
    """Sends reports, those of a step together; a step may report from another thread."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._said_s = time.monotonic()

    @property
    def silent_s(self) -> float:
        """Seconds since the last report."""
        return time.monotonic() - self._said_s

    def __call__(self, *reports: Report) -> None:
        with self._lock:
            for message in join(map(encode, reports)):
                self._connection.send_bytes(message)
            self._said_s = time.monotonic()


def _read_commands(
    connection: Connection, inbox: queue.SimpleQueue[Command], loaded: list[Stage], emit: _Emitter, scratch: Path
) -> None:
    while True:
        try:
            raw = connection.recv_bytes()
        except (EOFError, OSError):
            # The command has ended, perhaps killed. A step may take minutes, so do not wait for it.
            _end_now(scratch)
            return
        try:
            for command in decode_commands(raw):
                if isinstance(command, AbortRequest) and loaded:
                    # The loop reads commands only between steps, and a diffusion's step is a whole batch.
                    loaded[0].interrupt(command.request_id)
                inbox.put(command)
        except Exception as error:  # noqa: BLE001 - without this thread the stage would hang without a reason
            # Later data cannot be trusted.
            with contextlib.suppress(OSError):
                message = f"could not decode a command: {summary(error)}"
                emit(Failure("stage", message, details=traceback.format_exc()))
            _end_now(scratch)
            return
        del raw, command


def _end_now(scratch: Path) -> None:
    """Kill this process and its descendants."""
    for _ in range(_REMOVALS):
        shutil.rmtree(scratch, ignore_errors=True)
    os.killpg(0, signal.SIGKILL)


def _set_environment(spec: StageSpec, scratch: Path) -> None:
    """Set this stage's environment variables; those of all stages come from the fork server (`prepare_libraries`).

    Libraries put temporary files into `scratch`, which is removed with all that a killed process leaves there, such as
    vLLM's rendezvous file. torch's cache of compiled kernels keeps its place, for the next run.
    """
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        user = str(os.getuid())
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(Path(tempfile.gettempdir()) / f"torchinductor_{user}"))
    # vLLM's ranks are separate processes: they put their sockets here, and find the file for their stacks.
    os.environ["VLLM_RPC_BASE_PATH"] = str(scratch)
    if spec.mps_folder is not None:
        os.environ[PIPES] = spec.mps_folder
    # Memory that grows, instead of blocks of each request's sizes, of which token2wav keeps a quarter more. vLLM's
    # sleep and ranks that map each other's memory cannot have it, and an offload would map it again each time.
    stage = spec.stage
    is_still = isinstance(stage, DiffusionStageConfig) and stage.offload == "none" and not stage.enable_sleep_mode
    # Of a device that is not the current one, torch's `empty_cache` would take what still runs.
    is_alone = stage.num_ranks == 1 and (stage.backend == "vllm" or stage.devices is None)
    if is_still and is_alone and not {_ALLOCATOR, "PYTORCH_ALLOC_CONF"} & os.environ.keys():
        os.environ[_ALLOCATOR] = "expandable_segments:True"  # read at the first use of a device
    # A diffusers pipeline on one device is placed by its name, whose number counts all visible devices.
    if stage.devices is not None and (stage.backend == "vllm" or stage.num_ranks > 1):
        os.environ["CUDA_VISIBLE_DEVICES"] = stage.devices


def _redirect_output(log: StageLog) -> None:
    for descriptor in (1, 2):
        os.dup2(log.fileno(), descriptor)
    log.close()
    sys.stdout = open(1, "w", buffering=1, closefd=False, encoding="utf-8", errors="backslashreplace")  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, closefd=False, encoding="utf-8", errors="backslashreplace")  # noqa: SIM115
