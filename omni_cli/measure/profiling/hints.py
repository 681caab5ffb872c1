"""Suggestions that follow from the measurements."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from omni_cli.measure.profiling.ranges import ENGINE_STEP
from omni_cli.records.profile_record import Hint, Overhead, StageProfile
from omni_cli.report.units import memory, milliseconds

_GAPS = 0.3
_COPIES = 0.05
_MIN_EXPOSED_SHARE = 0.02
_MIN_WAITED_SHARE = 0.2
_MIN_SLOWDOWN = 1.5
_MIN_ADDED_SHARE = 0.2
_MIN_ADDED_BYTES = 32 * 2**20
_MIN_UNUSED_SHARE = 0.1
_MIN_BUDGET_BYTES = 2**30


def find_hints(stages: Sequence[StageProfile], overhead: Sequence[Overhead]) -> tuple[Hint, ...]:
    """Return one finding and one suggestion per hint; empty if the numbers suggest nothing."""
    hints: list[Hint] = []
    for stage in stages:
        for rule in (_outliers, _launch_gaps, _copies, _hint_exposed, _added_memory, _hint_waits, _hint_unused):
            hints += rule(stage)
    return (*hints, *_hint_slowdown(overhead))


def _outliers(stage: StageProfile) -> Iterator[Hint]:
    for step in stage.steps:
        if step.outlier:
            message = (
                f"{step.name} {step.number} takes {milliseconds(step.median_s)}, its neighbours "
                f"{milliseconds(step.usual_s)}"
            )
            yield Hint(stage=stage.name, message=message, advice="look at that step in the trace")


def _launch_gaps(stage: StageProfile) -> Iterator[Hint]:
    gaps = stage.launch_gaps
    if gaps is None or gaps.fraction_of_steps < _GAPS:
        return
    is_cpu = stage.activity.device == "cpu"
    what = "operator runs" if is_cpu else "kernel runs"
    message = f"no {what} during {gaps.fraction_of_steps:.0%} of its step time, while the host prepares the next one"
    if stage.kind == "ar":
        advice = "larger batches amortise that time (`--batch-size`)"
        if not is_cpu and stage.effective.get("cudagraph_mode") == "none":
            advice = f"try `--set {stage.name}.cudagraph_mode=full_and_piecewise`"
    elif any(step.name == ENGINE_STEP for step in stage.steps):
        advice = "larger batches would fill it (`--batch-size`)"  # a codec denoises nothing and runs eagerly
    elif stage.effective.get("execution") == "eager":
        advice = f"try `--set {stage.name}.execution={'compile' if is_cpu else 'cudagraph'}`"
    else:
        advice = "larger images or larger batches would fill it"
    yield Hint(stage=stage.name, message=message, advice=advice)


def _copies(stage: StageProfile) -> Iterator[Hint]:
    window_s = stage.activity.window_s
    for copy in stage.copies.places:
        if window_s and copy.seconds / window_s >= _COPIES:
            where = f"{copy.range} ({copy.operator}{f', {copy.module}' if copy.module else ''})"
            message = (
                f"{copy.seconds / window_s:.0%} of its time is spent on copies in {where}: "
                f"{memory(round(copy.copied_bytes))} in {copy.calls:g} calls"
            )
            yield Hint(stage=stage.name, message=message, advice="keep the tensor where it is, or copy it once")


def _hint_exposed(stage: StageProfile) -> Iterator[Hint]:
    copies, window_s = stage.copies, stage.activity.window_s
    if not window_s or copies.exposed_s / window_s < _MIN_EXPOSED_SHARE or stage.activity.device == "cpu":
        return
    message = f"the device waits for device-to-host output copies {copies.exposed_s / window_s:.0%} of its time"
    advice = "find what waits for them in the trace"
    if stage.effective.get("output_copy") == "sync":
        advice = f"try `--set {stage.name}.output_copy=async`"
    yield Hint(stage=stage.name, message=message, advice=advice)


def _added_memory(stage: StageProfile) -> Iterator[Hint]:
    phases = [
        phase
        for phase in stage.memory.phases
        if phase.added_bytes >= max(_MIN_ADDED_BYTES, _MIN_ADDED_SHARE * stage.memory.peak_bytes)
        and not phase.name.startswith(("load", "KV cache", "first request"))
    ]
    for phase in phases:
        message = f"{phase.name} holds {memory(phase.added_bytes)} more than was held before it"
        yield Hint(stage=stage.name, message=message, advice="see the largest tensors at the peak for their origin")


def _hint_waits(stage: StageProfile) -> Iterator[Hint]:
    activity = stage.activity
    if activity.waited_for_core_s and activity.waited_for_core_s > _MIN_WAITED_SHARE * activity.busy_s:
        message = (
            f"its threads waited {milliseconds(activity.waited_for_core_s)} for a core and ran for "
            f"{milliseconds(activity.busy_s)}"
        )
        yield Hint(
            stage=stage.name, message=message, advice="other programs use the processor: profile on an idle machine"
        )


def _hint_unused(stage: StageProfile) -> Iterator[Hint]:
    for budget in stage.memory.budgets:
        size, used = budget.budget_bytes, budget.used_fraction
        if budget.what != "KV cache" or size is None or used is None:
            continue
        if size >= _MIN_BUDGET_BYTES and used < _MIN_UNUSED_SHARE:
            message = f"it used {used:.1%} of its KV cache of {memory(size)}"
            advice = f"requests like these need less: `--set {stage.name}.kv_cache_memory_bytes=BYTES`"
            yield Hint(stage=stage.name, message=message, advice=advice)


def _hint_slowdown(overhead: Sequence[Overhead]) -> Iterator[Hint]:
    for row in overhead:
        if row.metric == "e2e_s" and row.ratio is not None and row.ratio > _MIN_SLOWDOWN:
            message = f"profiling made requests take {row.ratio:.2f} times as long"
            yield Hint(stage=None, message=message, advice="rely on the shares rather than on the milliseconds")
