"""Build a profile record from a session, stage by stage."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from omni_cli.config.schema import EngineConfig
from omni_cli.measure.bench.iteration import Iteration, latency_metric, stage_latencies
from omni_cli.measure.profiling.activity import compute_roofline, get_waits, launch_gaps, measure_activity
from omni_cli.measure.profiling.chrome_trace import stage_seconds, waterfall
from omni_cli.measure.profiling.hints import find_hints
from omni_cli.measure.profiling.memory import added_by_step, stage_memory
from omni_cli.measure.profiling.operators import (
    Operators,
    TraceFile,
    get_copies,
    operator_times,
    read_operators,
    read_trace,
)
from omni_cli.measure.profiling.ranges import ENGINE_STEP, range_times, step_times
from omni_cli.measure.profiling.session import Profiled, RecordedSession
from omni_cli.records.profile_record import Overhead, Profile, StageProfile
from omni_cli.records.record import Sample, Variant
from omni_cli.records.record_file import utc_now
from omni_cli.requests.outputs import StageInfo
from omni_cli.stats.compare import compare_variants


def read_traces(session: RecordedSession) -> dict[int, dict[str, TraceFile]]:
    """Read the kept traces, by iteration and stage. Raises `OutputError`."""
    return {
        number: {stage: read_trace(path, stage) for stage, path in one.traces.items()}
        for number, one in enumerate(session.profiled)
        if one.traces
    }


def build_profile(
    session: RecordedSession,
    traces: Mapping[int, Mapping[str, TraceFile]],
    config: EngineConfig,
    snapshots: Mapping[str, str],
    about: Mapping[str, Any],
) -> Profile:
    """Build the record; `snapshots` names each stage's file of allocations, and `about` are fields of the whole run."""
    overhead = measure_overhead(session.plain, [one.iteration for one in session.profiled])
    stages = tuple(
        _stage_profile(info, session, traces, config, overhead, snapshots.get(info.name)) for info in session.stages
    )
    typical = _typical(session.profiled)
    return Profile(
        created=utc_now(),
        num_iters=len(session.profiled),
        e2e_s=typical.iteration.e2e_s,
        overhead=overhead,
        stages=stages,
        request=waterfall(typical.began_ns, typical.recordings),
        stage_seconds=stage_seconds(typical.began_ns, typical.iteration.e2e_s, typical.recordings),
        hints=find_hints(stages, overhead),
        notes=tuple(dict.fromkeys(note for iteration in session.plain for note in iteration.notes)),
        **about,
    )


def measure_overhead(plain: Sequence[Iteration], profiled: Sequence[Iteration]) -> tuple[Overhead, ...]:
    """Compare the times without and with profiling; iteration n of both sides ran in the same block, interleaved."""
    a, b = _variant("unprofiled", plain, 0), _variant("profiled", profiled, 1)
    return tuple(
        Overhead(
            metric=comparison.metric,
            unprofiled_s=comparison.a_centre or comparison.a_median,
            profiled_s=comparison.b_centre or comparison.b_median,
            ratio=comparison.ratio,
            ci95=comparison.ci95,
        )
        for comparison in (compared.result for compared in compare_variants(a, b, same_record=True))
        if comparison.a_median is not None and comparison.b_median is not None
    )


def _variant(name: str, iterations: Sequence[Iteration], position: int) -> Variant:
    samples = [
        Sample(block=block, position=position, e2e_s=iteration.e2e_s, metrics=stage_latencies(iteration))
        for block, iteration in enumerate(iterations)
    ]
    return Variant(name=name, samples=tuple(samples))


def _stage_profile(
    info: StageInfo,
    session: RecordedSession,
    traces: Mapping[int, Mapping[str, TraceFile]],
    config: EngineConfig,
    overhead: Sequence[Overhead],
    snapshot: str | None,
) -> StageProfile:
    name, description = info.name, session.descriptions[info.name]
    recordings = [one.recordings[name] for one in session.profiled]
    traced = [read_operators(by_stage[name], recordings[number]) for number, by_stage in traces.items()]
    latency = next(row for row in overhead if row.metric == latency_metric(name))
    activity = measure_activity(traced, description)
    steps = statistics.median(
        sum(item.name == ENGINE_STEP for item in recording.ranges) for recording in recordings
    )  # fmt: skip
    return StageProfile(
        name=name,
        kind=info.kind,
        backend=config.stage(name).backend,
        device=description.device,
        effective=dict(info.effective),
        load_s=info.load_s,
        latency_s=latency.profiled_s,
        unprofiled_latency_s=latency.unprofiled_s,
        activity=activity,
        launch_gaps=None if description.ranks_elsewhere else launch_gaps(traced, description),
        copies=get_copies(traced, [one.execution_counters[name] for one in session.profiled]),
        ranges=range_times(recordings),
        steps=step_times(recordings, [added_by_step(operators, description.device) for operators in traced]),
        waits=get_waits(traced),
        operators=operator_times(traced),
        memory=stage_memory(description, session.warm_up[name], session.memory[name], traced, snapshot),
        roofline=compute_roofline(
            description,
            session.rates[name],
            session.work[name],
            _typical(session.profiled).iteration.traces(name),
            round(steps),
            activity.window_s / (latency.ratio or 1.0),
        ),
        notes=tuple(_notes(info, session, traced)),
    )


def _typical(profiled: Sequence[Profiled]) -> Profiled:
    """Return the iteration of median duration."""
    return sorted(profiled, key=lambda one: one.iteration.e2e_s)[len(profiled) // 2]


def _notes(info: StageInfo, session: RecordedSession, traced: Sequence[Operators]) -> list[str]:
    description = session.descriptions[info.name]
    notes = []
    ranks = description.ranks_elsewhere
    if ranks:
        notes.append(
            f"its model runs in {ranks} separate {'processes' if ranks > 1 else 'process'}, which the profiler does "
            "not see: ranges and host time only, no operators of the model and no roofline"
        )
    elif not description.marks_modules:
        notes.append("operators are not attributed to modules: compiled or replayed code runs outside modules")
    if not any(operators.calls for operators in traced):
        notes.append("no operators were recorded in its process")
    return notes
