"""A profile as text: time and memory by part, and what to try."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from omni_cli.profile_record import Hint, Profile, StageMemory, StageProfile, Step
from omni_cli.report.bench_units import ratio
from omni_cli.report.tables import aligned
from omni_cli.report.units import count, memory, milliseconds, seconds, size

_MAX_RANGES = 8
_MAX_OPERATORS = 8
_MAX_PLACES = 4
_MAX_TENSORS = 5
_MAX_PHASES = 6
_MAX_PARTS = 3
_MAX_STEPS = 12
_MIN_ADDED_BYTES = 2**20


def profile_text(profile: Profile) -> str:
    """Return paragraphs: the run, its stages one after the other, hints."""
    parts = ["\n".join(_run(profile))]
    parts += ["\n".join(_stage(stage)) for stage in profile.stages]
    if profile.hints:
        parts.append("\n".join(["Hints", *map(_hint, profile.hints)]))
    return "\n\n".join(parts)


def _run(profile: Profile) -> Iterator[str]:
    workload = profile.workload
    cpu = profile.environment.get("machine", {}).get("cpu")
    heading = [
        f"{workload['profile']}: {' + '.join(workload['stages'])}",
        f"batch {workload['batch_size']}",
        *([cpu] if cpu else []),
        f"{profile.num_iters_warmup} warm-up, then {profile.num_iters} profiled and as many unprofiled, interleaved",
    ]
    yield ", ".join(heading)
    yield ""
    yield "Times (median of an iteration)         unprofiled  profiled  ratio (95% CI)"
    rows = [
        ("end to end" if row.metric == "e2e_s" else row.metric.removesuffix(".latency_s"),
         milliseconds(row.unprofiled_s), milliseconds(row.profiled_s), ratio(row.ratio, row.ci95))
        for row in profile.overhead
    ]  # fmt: skip
    yield from (f"  {name:<36}{plain:>11}{profiled:>10}  {how}" for name, plain, profiled, how in rows)
    shares = ", ".join(f"{name} {milliseconds(value)}" for name, value in profile.stage_seconds.items())
    yield f"  of a profiled {milliseconds(profile.e2e_s)}: {shares}"


def _stage(stage: StageProfile) -> Iterator[str]:
    yield f"Stage {stage.name} ({stage.kind}, {stage.backend}, {stage.device})"
    yield from _activity(stage)
    yield from _ranges(stage)
    yield from _steps(stage.steps)
    yield from _operators(stage)
    yield from _copies(stage)
    yield from _memory(stage.memory)
    yield from _roofline(stage)
    yield from (f"  note: {note}" for note in stage.notes)


def _activity(stage: StageProfile) -> Iterator[str]:
    activity = stage.activity
    what = f"{activity.num_threads} threads" if activity.device == "cpu" else activity.device
    causes = ", ".join(
        f"{name} {value / activity.capacity_s:.0%}" for name, value in activity.idle_s.items() if activity.capacity_s
    )
    idle = f"{activity.idle_fraction:.0%} idle" + (f" ({causes})" if causes else "")
    yield f"  busy: {activity.busy_fraction:.0%} of {what}, {idle}, while it had a request"
    gaps = stage.launch_gaps
    if gaps is not None:
        yield (
            f"  launch gaps: {gaps.fraction_of_steps:.0%} of its steps' time, {count(gaps.count, 'gap')}, median "
            f"{gaps.median_s * 1e6:.1f} us, largest {milliseconds(gaps.largest_s)}"
        )


def _ranges(stage: StageProfile) -> Iterator[str]:
    yield "  ranges                        calls       total      own per call"
    for row in stage.ranges[:_MAX_RANGES]:
        yield (
            f"    {row.name:<26}{row.calls:>7g}{milliseconds(row.total_s):>12}{milliseconds(row.self_s):>9}"
            f"{milliseconds(row.median_call_s):>9}"
        )


def _steps(steps: Sequence[Step]) -> Iterator[str]:
    if not steps:
        return
    shown = steps if len(steps) <= _MAX_STEPS else (*steps[: _MAX_STEPS // 2], *steps[-_MAX_STEPS // 2 :])
    times = " ".join(f"{step.median_s * 1e3:.1f}{'!' if step.outlier else ''}" for step in shown)
    label = f"{steps[0].name}s" + ("" if len(shown) == len(steps) else f" (first and last {_MAX_STEPS // 2})")
    yield f"  {len(steps)} {label}: {times} ms"
    for step in steps:
        if step.outlier:
            yield (
                f"    outlier: {step.name} {step.number} takes {milliseconds(step.median_s)}, its neighbours "
                f"{milliseconds(step.usual_s)}"
            )


def _operators(stage: StageProfile) -> Iterator[str]:
    if not stage.operators:
        return
    yield "  operators by module (own time)"
    yield from _indented(
        (milliseconds(row.seconds), f"{row.fraction:.0%}", f"{row.calls:g}x", row.operator, _short(row.module))
        for row in stage.operators[:_MAX_OPERATORS]
    )


def _copies(stage: StageProfile) -> Iterator[str]:
    copies = stage.copies
    if copies.output_copies:
        yield (
            f"  output copies: {copies.output_copies:g}, {size(round(copies.output_bytes))} in all, "
            f"{milliseconds(copies.hidden_s)} hidden, {milliseconds(copies.exposed_s)} exposed"
        )
    if copies.places:
        yield "  copies by place"
        yield from _indented(
            (size(round(place.copied_bytes)), milliseconds(place.seconds), f"{place.calls:g}x",
             f"{place.range}: {place.operator}", _short(place.module or ""))
            for place in copies.places[:_MAX_PLACES]
        )  # fmt: skip


def _memory(usage: StageMemory) -> Iterator[str]:
    what = "allocated on the device" if usage.measure == "allocated" else "resident on the host"
    yield f"  memory: peak {memory(usage.peak_bytes)} {what}, in {usage.peak_phase}"
    adding = [phase for phase in usage.phases if phase.added_bytes >= _MIN_ADDED_BYTES]
    adding.sort(key=lambda phase: -phase.added_bytes)
    if adding:
        rows = ", ".join(f"{phase.name} +{memory(phase.added_bytes)}" for phase in adding[:_MAX_PHASES])
        yield f"    added by phase: {rows}"
    if usage.largest:
        yield "    largest tensors at a request's peak"
        yield from _indented(
            ((size(tensor.size_bytes), tensor.kind, tensor.where) for tensor in usage.largest[:_MAX_TENSORS]), 4
        )
    for budget in usage.budgets:
        of = "" if budget.budget_bytes is None else f" of {memory(budget.budget_bytes)}"
        share = "" if budget.used_fraction is None else f" ({budget.used_fraction:.1%})"
        yield f"    {budget.what}: {size(budget.used_bytes)}{of} used{share}"
    if usage.snapshot is not None:
        yield f"    allocations: {usage.snapshot} (pytorch.org/memory_viz shows it)"


def _roofline(stage: StageProfile) -> Iterator[str]:
    roofline = stage.roofline
    if roofline is None:
        return
    yield (
        f"  limit: {roofline.fraction:.1%} of what this machine could do: {milliseconds(roofline.bound_s)} for "
        f"{roofline.flops / 1e9:.2f} GFLOP and {size(round(roofline.moved_bytes))}, "
        f"{milliseconds(roofline.measured_s)} taken"
    )
    yield (
        f"    rates measured here: {roofline.flops_per_second / 1e9:.0f} GFLOP/s in {roofline.dtype}, "
        f"{roofline.copied_bytes_per_second / 2**30:.0f} GiB/s copied; most of it is bound by {roofline.limit}"
    )
    yield from _indented(
        (
            (milliseconds(part.bound_s), part.limit, _short(part.module))
            for part in roofline.parts[:_MAX_PARTS]
        ),
        4,
    )  # fmt: skip


def _hint(hint: Hint) -> str:
    where = "" if hint.stage is None else f"{hint.stage}: "
    return f"  - {where}{hint.message}: {hint.advice}"


def _indented(rows: Iterator[tuple[str, ...]] | Sequence[tuple[str, ...]], indent: int = 2) -> list[str]:
    return [" " * indent + line for line in aligned(list(rows), right=frozenset({0}))]


def _short(module: str) -> str:
    """Return a module's name without the prefix that all modules of a stage share."""
    return module if len(module) <= 60 else "..." + module[-57:]


def saved_text(paths: Sequence[str], took_s: float) -> str:
    return f"Saved {', '.join(paths)} after {seconds(took_s)}; https://ui.perfetto.dev opens the trace"
