"""One profiling run: load a workload, warm it up, then interleave unprofiled and profiled iterations."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any

from omni_cli.backends.execution.counters import since
from omni_cli.config.schema import EngineConfig
from omni_cli.measure.bench.iteration import Iteration
from omni_cli.measure.bench.loaded_workload import LoadedWorkload
from omni_cli.measure.bench.workload import Workload
from omni_cli.requests.events import Event
from omni_cli.requests.outputs import StageInfo
from omni_cli.stage.recording import (
    DescribeStage,
    MachineRates,
    MeasureRates,
    Recording,
    RecordingCommand,
    StageDescription,
    StartRecording,
    StopRecording,
    What,
)

MIN_WARMUP = 2
"""One plain and one profiled iteration, because the first profiled one initialises the profiler."""


MAX_TRACES = 2
"""Number of profiled iterations whose operators are kept: each has hundreds of thousands, and they are alike."""


@dataclass(frozen=True)
class Profiled:
    """A profiled iteration: its start (wall clock), its times and each stage's recording.

    `traces` are the stages' own traces in Chrome's format, kept for the first `MAX_TRACES` iterations only.
    `execution_counters` are those of the iteration alone, by stage.
    """

    began_ns: int
    iteration: Iteration
    recordings: dict[str, Recording]
    traces: dict[str, Path]
    execution_counters: dict[str, dict[str, float]]


@dataclass
class RecordedSession:
    """Results of a run; `plain` and `profiled` are interleaved, one of each per round."""

    stages: tuple[StageInfo, ...] = ()
    plain: list[Iteration] = field(default_factory=list)
    profiled: list[Profiled] = field(default_factory=list)
    warm_up: dict[str, Recording] = field(default_factory=dict)
    memory: dict[str, Recording] = field(default_factory=dict)
    work: dict[str, Recording] = field(default_factory=dict)
    descriptions: dict[str, StageDescription] = field(default_factory=dict)
    rates: dict[str, MachineRates] = field(default_factory=dict)
    snapshots: dict[str, Path] = field(default_factory=dict)


@dataclass
class ProfilingRun:
    """Runs once. `folder` receives the stages' traces and snapshots; `on_progress` receives the current activity."""

    config: EngineConfig
    workload: Workload
    _: KW_ONLY
    num_iters: int
    num_iters_warmup: int
    folder: Path
    on_event: Callable[[Event], None]
    on_progress: Callable[[str], None]
    verbose: bool = False

    def __post_init__(self) -> None:
        self.num_iters_warmup = max(self.num_iters_warmup, MIN_WARMUP)
        self.session = RecordedSession()
        self._loaded = LoadedWorkload(self.config, self.workload, verbose=self.verbose, records=True)
        self._number = 0

    async def run(self) -> RecordedSession:
        """Run the session; raises the error of a stage or file. The stages have ended in any case."""
        session = self.session
        try:
            await self._loaded.load(self.on_event, inputs=self.folder / "inputs", makes_inputs=True)
            session.stages = self._loaded.llm.stages
            await self._warm_up()
            self.on_progress("recording memory")
            session.memory = await self._record("memory", snapshots=True)
            await self._interleave()
            self.on_progress("counting what the models compute")
            session.work = await self._record("work")
            await self._describe()
            session.stages = self._loaded.llm.stages
        finally:
            await self._loaded.close()
        return session

    async def _warm_up(self) -> None:
        self.on_progress("warming up")
        self.session.warm_up = await self._record("memory")
        for _ in range(self.num_iters_warmup - MIN_WARMUP):
            await self._iterate()
        await self._record("trace")

    async def _interleave(self) -> None:
        for number in range(self.num_iters):
            self.on_progress(f"profiling, iteration {number + 1} of {self.num_iters}")
            for is_profiled in (False, True) if number % 2 == 0 else (True, False):
                if is_profiled:
                    self.session.profiled.append(await self._profile(number))
                else:
                    self.session.plain.append(await self._iterate())

    async def _profile(self, number: int) -> Profiled:
        before = self._execution_counters()
        await self._ask_all(StartRecording("trace"))
        began_ns = time.time_ns()
        iteration = await self._iterate()
        traces = {}
        if number < MAX_TRACES:
            traces = {info.name: self.folder / f"{info.name}-{number}.json" for info in self.session.stages}
        recordings = await self._ask(
            {
                info.name: StopRecording(trace_file=str(traces[info.name]) if traces else None)
                for info in self.session.stages
            }
        )
        counters = {name: since(before[name], after) for name, after in self._execution_counters().items()}
        return Profiled(began_ns, iteration, recordings, traces, counters)

    async def _record(self, what: What, *, snapshots: bool = False) -> dict[str, Recording]:
        """Run one iteration and record it. Only CUDA devices have snapshots."""
        await self._ask_all(StartRecording(what, snapshot=snapshots))
        await self._iterate()
        files = {info.name: self.folder / f"{info.name}.pickle" for info in self.session.stages} if snapshots else {}
        stops: dict[str, RecordingCommand] = {
            info.name: StopRecording(snapshot_file=str(files[info.name]) if snapshots else None)
            for info in self.session.stages
        }
        recordings = await self._ask(stops)
        self.session.snapshots |= {name: path for name, path in files.items() if path.exists()}
        return recordings

    async def _iterate(self) -> Iteration:
        self._number += 1
        return await self._loaded.run(self._number)

    async def _describe(self) -> None:
        self.session.descriptions = await self._ask_all(DescribeStage())
        # One stage at a time, so that each has the machine to itself.
        for info in self.session.stages:
            self.session.rates |= await self._ask({info.name: MeasureRates()})

    def _execution_counters(self) -> dict[str, dict[str, float]]:
        return {info.name: dict(info.execution_counters) for info in self._loaded.llm.stages}

    async def _ask_all(self, command: RecordingCommand) -> dict[str, Any]:
        return await self._ask({info.name: command for info in self.session.stages})

    async def _ask(self, commands: dict[str, RecordingCommand]) -> dict[str, Any]:
        """Return each stage's answer; once all have answered, raise the first error."""
        llm = self._loaded.llm
        answers = await asyncio.gather(
            *(llm.record(command, name) for name, command in commands.items()), return_exceptions=True
        )
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        return dict(zip(commands, answers, strict=True))
