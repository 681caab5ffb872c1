"""Record ranges, requests and memory with little overhead, and more on the command's recording commands."""

from __future__ import annotations

import contextlib
import heapq
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from omni_cli.backends.execution import ranges
from omni_cli.core.errors import OutputError
from omni_cli.stage.recording import (
    DescribeStage,
    MeasureRates,
    MemoryReading,
    Range,
    Recording,
    RecordingCommand,
    RecordingReport,
    RequestSpan,
    StageDescription,
    Started,
    StartRecording,
    StopRecording,
)

if TYPE_CHECKING:
    from omni_cli.engine.recording.target import RecordingTarget
    from omni_cli.engine.recording.tracer import Tracer, WorkCounter
    from omni_cli.stage.protocol import Stage

_INTERVAL_S = 0.005
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class RangeLog:
    """Records from `start` to `stop`. With `annotates`, ranges also appear in torch's profiler, on the device's track.

    Memory is sampled by a separate thread, and at each start and end of a range, with that time.
    """

    def __init__(self, *, annotates: bool = False) -> None:
        self._annotates = annotates
        self._open: list[tuple[str, int, Any]] = []
        self._ranges: list[Range] = []
        self._began_requests: dict[str, int] = {}
        self._requests: list[RequestSpan] = []
        self._samples: list[MemoryReading] = []
        self._statm = os.open("/proc/self/statm", os.O_RDONLY)
        self._stopped = threading.Event()
        self._sampler = threading.Thread(target=self._sample_until_stopped, name="omni-memory", daemon=True)

    def start(self) -> None:
        self._sampler.start()
        self._waited_ns = _waited_ns()
        self._cpu_ns = time.process_time_ns()
        self._began_ns = time.time_ns()

    def stop(self) -> Recording:
        ended_ns, cpu_ns, waited_ns = time.time_ns(), time.process_time_ns(), _waited_ns()
        self._stopped.set()
        self._sampler.join()
        os.close(self._statm)
        waited = None
        if waited_ns is not None and self._waited_ns is not None:
            waited = max(0, waited_ns - self._waited_ns)  # threads that have ended are not counted
        return Recording(
            began_ns=self._began_ns,
            ended_ns=ended_ns,
            requests=tuple(self._requests),
            ranges=tuple(sorted(self._ranges, key=lambda item: (item.began_ns, item.depth))),
            samples=tuple(sorted(self._samples, key=lambda sample: sample.at_ns)),
            cpu_ns=cpu_ns - self._cpu_ns,
            waited_ns=waited,
        )

    def begin(self, name: str) -> None:
        annotation = None
        if self._annotates:
            import torch

            annotation = torch.profiler.record_function(name)
            annotation.__enter__()
        sample = self._sample()
        self._samples.append(sample)
        self._open.append((name, sample.at_ns, annotation))

    def end(self) -> None:
        ended_ns = time.time_ns()
        name, began_ns, annotation = self._open.pop()
        self._ranges.append(Range(name, began_ns, ended_ns, len(self._open)))
        self._samples.append(self._sample(ended_ns))
        if annotation is not None:
            annotation.__exit__(None, None, None)

    def request_began(self, request_id: str) -> None:
        self._began_requests[request_id] = time.time_ns()

    def request_ended(self, request_id: str) -> None:
        began_ns = self._began_requests.pop(request_id, None)
        if began_ns is not None:
            self._requests.append(RequestSpan(request_id, began_ns, time.time_ns()))

    def _sample_until_stopped(self) -> None:
        while not self._stopped.wait(_INTERVAL_S):
            self._samples.append(self._sample())

    def _sample(self, at_ns: int | None = None) -> MemoryReading:
        """Sample the memory held at `at_ns`, a moment ago; by default at the end of the call."""
        host_rss = int(os.pread(self._statm, 128, 0).split()[1]) * _PAGE_BYTES
        cuda = initialized_cuda()
        device = () if cuda is None else (cuda.memory_allocated(), cuda.memory_reserved())
        return MemoryReading(time.time_ns() if at_ns is None else at_ns, host_rss, *device)


def initialized_cuda() -> Any:
    """Return `torch.cuda` if this process has initialised it; never initialises it."""
    torch = sys.modules.get("torch")
    return torch.cuda if torch is not None and torch.cuda.is_initialized() else None


def _waited_ns() -> int | None:
    """Total time in which this process's threads were ready to run and had no core."""
    total = 0
    for task in Path("/proc/self/task").iterdir():
        try:
            total += int((task / "schedstat").read_text().split()[1])
        except FileNotFoundError:
            if task.exists():
                return None  # a kernel that does not count it
        except (OSError, ValueError, IndexError):
            return None
    return total


# Number of the stage's tensors that are listed by name; the rest is counted.
_NAMED_RESIDENTS = 20


class Recorder:
    """Records while a stage loads, from its construction to `loaded`, and then on command."""

    def __init__(self) -> None:
        self._log = RangeLog()
        self._tracer: Tracer | None = None
        self._counter: WorkCounter | None = None
        self._eager: contextlib.ExitStack = contextlib.ExitStack()
        self._kv_cache_usage: float | None = None
        self._stage: Stage
        self._target: RecordingTarget
        self._load: Recording
        self._start_log()

    def on_loaded(self, stage: Stage) -> None:
        from omni_cli.engine.recording.target import get_target

        self._load = self._stop_log()
        self._stage, self._target = stage, get_target(stage)

    def on_step(self) -> None:
        """Note an engine step while there are requests."""
        usage = self._target.kv_cache_usage()
        if usage is not None:
            self._kv_cache_usage = max(usage, self._kv_cache_usage or 0.0)

    def answer(self, command: RecordingCommand) -> RecordingReport:
        """Execute a command. Raises `OutputError` if a file cannot be written, and leaves no part of it."""
        match command:
            case StartRecording():
                return self._start(command)
            case StopRecording():
                return self._stop(command)
            case DescribeStage():
                return self._describe()
            case MeasureRates():
                from omni_cli.engine.recording.tracer import measure_rates

                return measure_rates(self._target.device, self._target.dtype)

    def _start(self, command: StartRecording) -> RecordingReport:
        cuda = initialized_cuda()
        self._kv_cache_usage = None
        if command.snapshot and cuda is not None:
            cuda.memory._record_memory_history(max_entries=100_000)
        if command.what == "work" and "execution" in self._stage.effective:  # a diffusion
            from omni_cli.engine.recording.tracer import WorkCounter

            self._eager.enter_context(self._target.eagerly())
            self._counter = WorkCounter(self._target.modules())
            self._counter.start()
        self._log = RangeLog(annotates=command.what == "trace" and cuda is not None)
        if command.what == "trace":
            from omni_cli.engine.recording.tracer import Tracer

            self._tracer = Tracer(self._target.modules() if self._marks_modules() else {})
            self._tracer.start()
        self._start_log()
        return Started()

    def _stop(self, command: StopRecording) -> Recording:
        recording = msgspec.structs.replace(self._stop_log(), kv_cache_usage=self._kv_cache_usage)
        tracer, self._tracer = self._tracer, None
        counter, self._counter = self._counter, None
        if counter is not None:
            work, omitted = counter.stop()
            self._eager.close()
            recording = msgspec.structs.replace(recording, work=work, omitted=omitted)
        if tracer is not None:
            tracer.stop()
            if command.trace_file is not None:
                _write(Path(command.trace_file), tracer.write)
        cuda = initialized_cuda()
        if command.snapshot_file is not None and cuda is not None:
            _write(Path(command.snapshot_file), lambda path: cuda.memory._dump_snapshot(str(path)))
            cuda.memory._record_memory_history(enabled=None)
        return recording

    def _start_log(self) -> None:
        self._log.start()
        ranges.listen(self._log)

    def _stop_log(self) -> Recording:
        ranges.listen(None)
        return self._log.stop()

    def _describe(self) -> StageDescription:
        import torch

        from omni_cli.engine.recording.target import get_residents

        residents = list(get_residents(self._target))
        largest = heapq.nlargest(_NAMED_RESIDENTS, residents, key=lambda resident: resident.size_bytes)
        return StageDescription(
            device=str(self._target.device),
            dtype=str(self._target.dtype).removeprefix("torch."),
            num_threads=torch.get_num_threads(),
            ranks_elsewhere=self._target.ranks_elsewhere,
            marks_modules=self._marks_modules(),
            load=self._load,
            residents=tuple(largest),
            **self._target.facts(),
        )

    def _marks_modules(self) -> bool:
        """Return True if modules can be marked: hooks split a compiled model, and graph replays bypass them."""
        effective: dict[str, object] = self._stage.effective
        return "compile" not in str(effective.get("execution")) and effective.get("cudagraph_mode", "none") == "none"


def _write(path: Path, write: Callable[[Path], object]) -> None:
    """Run `write(path)`, whole or not at all."""
    try:
        write(path)
    except (OSError, RuntimeError) as error:
        path.unlink(missing_ok=True)
        raise OutputError(f"cannot write the trace `{path.name}`: {error}") from error
