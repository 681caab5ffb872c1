"""Execute the command's recording commands in a stage's process."""

from __future__ import annotations

import contextlib
import heapq
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from omni_cli.engine.recording.range_log import RangeLog, initialized_cuda
from omni_cli.errors import OutputError
from omni_cli.execution import ranges
from omni_cli.stage.recording import (
    DescribeStage,
    MachineRates,
    MeasureRates,
    Recording,
    RecordingCommand,
    RecordingReport,
    StageDescription,
    Started,
    StartRecording,
    StopRecording,
)

if TYPE_CHECKING:
    from omni_cli.engine.recording.target import RecordingTarget
    from omni_cli.engine.recording.tracer import Tracer
    from omni_cli.engine.recording.work import WorkCounter
    from omni_cli.stage.protocol import Stage

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

    def loaded(self, stage: Stage) -> None:
        from omni_cli.engine.recording.target import get_target

        self._load = self._stop_log()
        self._stage, self._target = stage, get_target(stage)

    def stepped(self) -> None:
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
                return self._rates()

    def _start(self, command: StartRecording) -> RecordingReport:
        cuda = initialized_cuda()
        self._kv_cache_usage = None
        if command.snapshot and cuda is not None:
            cuda.memory._record_memory_history(max_entries=100_000)
        if command.what == "work":
            self._start_work()
        self._log = RangeLog(annotates=command.what == "trace" and cuda is not None)
        if command.what == "trace":
            from omni_cli.engine.recording.tracer import Tracer

            self._tracer = Tracer(self._target.modules() if self._marks_modules() else {})
            self._tracer.start()
        self._start_log()
        return Started()

    def _start_work(self) -> None:
        from omni_cli.engine.recording.work import WorkCounter

        if self._stage_kind() == "diffusion":
            self._eager.enter_context(self._target.eagerly())
            self._counter = WorkCounter(self._target.modules())
            self._counter.start()

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
            budgets=self._target.budgets(),
            linears=self._target.linears(),
            attentions=self._target.attentions(),
            uncounted=self._target.uncounted(),
        )

    def _rates(self) -> MachineRates:
        from omni_cli.engine.recording.rates import measure_rates

        return measure_rates(self._target.device, self._target.dtype)

    def _stage_kind(self) -> str:
        return "diffusion" if "execution" in self._stage.effective else "ar"

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
