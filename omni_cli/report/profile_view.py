"""A profile as a view: time and memory of a workload by part, and what to try."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from omni_cli.records.labels import get_facts
from omni_cli.records.metrics import E2E
from omni_cli.records.profile_record import (
    Budget,
    CopyPlace,
    LargeTensor,
    OperatorTime,
    Overhead,
    PhaseMemory,
    Profile,
    RangeTime,
    Roofline,
    RooflinePart,
    StageMemory,
    StageProfile,
    Step,
)  # fmt: skip
from omni_cli.report.profile_figures import activity_figure, memory_figure, request_figure, steps_figure
from omni_cli.report.shared_parts import get_device, origin_sections, workload_title
from omni_cli.report.units import (
    count,
    memory,
    milliseconds,
    one_line,
    quantity,
    ratio,
    seconds,
    size,
    size_change,
    title,
)
from omni_cli.report.view import Lines, Note, Paragraph, Section, Table, Verdict, View, make_table

T = TypeVar("T")

_MAX_ROWS = 25
_MAX_TEXT_ROWS = 8
_MAX_PLACES = 4
_MAX_TENSORS = 5
_MAX_PHASES = 6
_MAX_PARTS = 3
_MAX_STEPS = 12
_MIN_ADDED_BYTES = 2**20


def profile_view(profile: Profile) -> View:
    """Return the view of a profile: the whole, then stage by stage; a page draws what a text has in lines."""
    stages = profile.stages
    shares = ", ".join(f"{name} {milliseconds(value)}" for name, value in profile.stage_seconds.items())
    device = get_device(profile.environment)
    warm = f", {profile.num_iters_warmup} to warm up" if profile.num_iters_warmup else ""
    hints = [("" if hint.stage is None else f"{hint.stage}: ", hint) for hint in profile.hints]
    whole = [
        _overhead(profile),
        Paragraph(f"the profiled iteration of median length, {milliseconds(profile.e2e_s)}: {shares}"),
    ]
    drawn = [request_figure(profile), activity_figure(stages)]
    trace = Paragraph(f"The trace is in {one_line(profile.trace)}; Perfetto (ui.perfetto.dev) opens it.", only="page")
    advice = [Paragraph(f"- {where}{hint.message}: {hint.advice}") for where, hint in hints]
    return View(
        kind="Profile",
        title=workload_title(profile.workload),
        details=" · ".join(filter(None, [device, f"{count(profile.num_iters, 'iteration')}{warm}"])),
        created=profile.created,
        facts=get_facts(profile.environment, profile.workload, profile.created),
        verdict=_verdict(profile),
        heading=_heading(profile, device),
        notes=tuple(Note(f"{where}{hint.message}", hint.advice, "Hint") for where, hint in hints),
        sections=[
            Section("The whole", [*whole, *drawn, _limits(stages), trace]),
            *map(_stage_section, stages),
            Section("", advice, "Hints", only="text"),
            *origin_sections(profile.environment, profile.workload, profile.command),
        ],
    )


def saved_text(paths: Sequence[str], took_s: float) -> str:
    return f"Saved {', '.join(paths)} after {seconds(took_s)}; https://ui.perfetto.dev opens the trace"


def _heading(profile: Profile, device: str) -> str:
    workload, stages = profile.workload, profile.workload.get("stages")
    named = " + ".join(map(one_line, stages)) if isinstance(stages, list) else one_line(stages)
    parts = [
        f"{one_line(workload.get('profile'))}: {named}",
        f"batch {one_line(workload.get('batch_size'))}",
        device,
        f"{profile.num_iters_warmup} warm-up, then {profile.num_iters} profiled and as many unprofiled, interleaved",
    ]
    return ", ".join(filter(None, parts))


def _stage_section(stage: StageProfile) -> Section:
    """Return all of one stage."""
    parts = [
        Lines((*_start(stage), *_activity(stage))),
        _ranges(stage),
        Lines((*_steps(stage.steps), *_waits(stage))),
        steps_figure(stage),
        _operators(stage),
        Lines(tuple(_output_copies(stage))),
        _copies(stage),
        Lines(tuple(_memory(stage.memory))),
        memory_figure(stage),
        _phases(stage),
        _tensors(stage),
        _budgets(stage),
        _module_limits(stage),
        _count_omitted(stage),
        *(Paragraph(f"note: {note}") for note in stage.notes),
    ]
    title = f"Stage {stage.name} ({stage.kind}, {stage.backend}, {stage.device})"
    return Section(title, parts, title)


def _verdict(profile: Profile) -> Verdict:
    whole = next((item for item in profile.overhead if item.metric == E2E), None)
    unprofiled_s = profile.e2e_s if whole is None else whole.unprofiled_s
    sentences = []
    largest = max(profile.stage_seconds.items(), key=lambda item: item[1], default=None)
    if largest is not None and profile.e2e_s > 0:
        part, seconds = largest
        of = quantity(E2E, profile.e2e_s)
        share = f"{seconds / profile.e2e_s:.0%}, {quantity(E2E, seconds, profile.e2e_s)}"
        sentences.append(f"{one_line(part)} takes {share} of the profiled iteration of median length, {of}.")
    if whole is not None:
        times = ratio(whole.ratio, whole.ci95).removesuffix(" [n/a]")
        profiled = quantity(E2E, whole.profiled_s, unprofiled_s)
        sentences.append(f"Profiled, it takes {profiled}, {times} times as long.")
    sentences += [
        f"{one_line(stage.name)} reaches {stage.roofline.fraction:.0%} of this machine's {stage.roofline.limit} limit."
        for stage in profile.stages
        if stage.roofline is not None
    ]
    return Verdict(f"{quantity(E2E, unprofiled_s)} per iteration", "plain", tuple(sentences))


def _start(stage: StageProfile) -> Iterator[str]:
    phases = itertools.takewhile(lambda phase: phase.name != "first request", stage.memory.phases)
    named = (phase for phase in phases if phase.name != "between steps")
    parts = ", ".join(f"{one_line(phase.name)} {seconds(phase.duration_s)}" for phase in named)
    yield f"loaded in {seconds(stage.load_s)}" + (f": {parts}" if parts else "")


def _activity(stage: StageProfile) -> Iterator[str]:
    activity = stage.activity
    what = f"{activity.num_threads} threads" if activity.device == "cpu" else activity.device
    causes = ", ".join(
        f"{name} {value / activity.capacity_s:.0%}" for name, value in activity.idle_s.items() if activity.capacity_s
    )
    idle = f"{activity.idle_fraction:.0%} idle" + (f" ({causes})" if causes else "")
    yield f"busy: {activity.busy_fraction:.0%} of {what}, {idle}, while it had a request"
    gaps = stage.launch_gaps
    if gaps is not None:
        yield (
            f"launch gaps: {gaps.fraction_of_steps:.0%} of its steps' time, {count(gaps.count, 'gap')}, median "
            f"{gaps.median_s * 1e6:.1f} us, largest {milliseconds(gaps.largest_s)}"
        )


def _steps(steps: Sequence[Step]) -> Iterator[str]:
    if not steps:
        return
    shown = steps if len(steps) <= _MAX_STEPS else (*steps[: _MAX_STEPS // 2], *steps[-_MAX_STEPS // 2 :])
    times = " ".join(f"{step.median_s * 1e3:.1f}{'!' if step.outlier else ''}" for step in shown)
    label = f"{steps[0].name}s" + ("" if len(shown) == len(steps) else f" (first and last {_MAX_STEPS // 2})")
    yield f"{len(steps)} {label}: {times} ms"
    for step in steps:
        if step.outlier:
            yield (
                f"  outlier: {step.name} {step.number} takes {milliseconds(step.median_s)}, its neighbours "
                f"{milliseconds(step.usual_s)}"
            )


def _waits(stage: StageProfile) -> Iterator[str]:
    if stage.waits and stage.steps:
        what = "reads of numbers (of those on a GPU, each would wait for it)" if stage.device == "cpu" else "waits"
        parts = ", ".join(f"{one_line(name)} {times:.3g}" for name, times in stage.waits.items())
        yield f"{what} per {stage.steps[0].name}: {sum(stage.waits.values()):.3g} ({parts})"


def _output_copies(stage: StageProfile) -> Iterator[str]:
    copies = stage.copies
    if copies.output_copies:
        yield (
            f"output copies: {copies.output_copies:g}, {size(round(copies.output_bytes))} in all, "
            f"{milliseconds(copies.hidden_s)} hidden, {milliseconds(copies.exposed_s)} exposed"
        )


def _memory(usage: StageMemory) -> Iterator[str]:
    what = "allocated on the device" if usage.measure == "allocated" else "resident on the host"
    yield f"memory: peak {memory(usage.peak_bytes)} {what}, in {usage.peak_phase}"
    adding = sorted(
        (phase for phase in usage.phases if phase.added_bytes >= _MIN_ADDED_BYTES), key=lambda phase: -phase.added_bytes
    )
    if adding:
        yield "  added by phase: " + ", ".join(f"{p.name} +{memory(p.added_bytes)}" for p in adding[:_MAX_PHASES])
    if usage.snapshot is not None:
        yield f"  allocations: {usage.snapshot} (pytorch.org/memory_viz shows it)"


def _ranges(stage: StageProfile) -> Table | None:
    columns: dict[str, Callable[[RangeTime], str]] = {
        "Range": lambda item: one_line(item.name),
        "Calls": lambda item: f"{item.calls:g}",
        "Time": lambda item: quantity(E2E, item.total_s),
        "Without inner ranges": lambda item: quantity(E2E, item.self_s, item.total_s),
        "Median call": lambda item: quantity(E2E, item.median_call_s),
        "Share": lambda item: f"{item.fraction:.1%}",
    }
    return _details(f"Ranges of {one_line(stage.name)} per iteration", stage.ranges, columns, range(1, 6))


def _operators(stage: StageProfile) -> Table | None:
    columns: dict[str, Callable[[OperatorTime], str]] = {
        "Operator": lambda item: one_line(item.operator),
        "Module": lambda item: one_line(item.module),
        "Calls": lambda item: f"{item.calls:g}",
        "Time": lambda item: quantity(E2E, item.seconds),
        "Share": lambda item: f"{item.fraction:.1%}",
    }
    return _details(f"Operators of {one_line(stage.name)} per iteration", stage.operators, columns, (2, 3, 4))


def _copies(stage: StageProfile) -> Table | None:
    columns: dict[str, Callable[[CopyPlace], str]] = {
        "Copied in": lambda item: one_line(item.range),
        "By": lambda item: one_line(item.operator) + (f" in {one_line(item.module)}" if item.module else ""),
        "Calls": lambda item: f"{item.calls:g}",
        "Size": lambda item: size(round(item.copied_bytes)),
        "Time": lambda item: quantity(E2E, item.seconds),
    }
    caption = f"Copies of {one_line(stage.name)} per iteration"
    return _details(caption, stage.copies.places, columns, (2, 3, 4), most=_MAX_PLACES)


def _phases(stage: StageProfile) -> Table | None:
    columns: dict[str, Callable[[PhaseMemory], str]] = {
        "Phase": lambda item: one_line(item.name),
        "Times": lambda item: str(item.times),
        "Lasts": lambda item: quantity(E2E, item.duration_s),
        "Peak host RSS": lambda item: memory(item.peak_host_rss_bytes),
        "Peak allocated": lambda item: quantity("_bytes", item.peak_allocated_bytes),
        "Peak reserved": lambda item: quantity("_bytes", item.peak_reserved_bytes),
        "Added": lambda item: size_change(0, item.added_bytes),
    }
    return make_table(
        f"Memory of {one_line(stage.name)} by phase",
        stage.memory.phases,
        columns,
        range(1, 7),
        folded=True,
        only="page",
    )


def _tensors(stage: StageProfile) -> Table | None:
    columns: dict[str, Callable[[LargeTensor], str]] = {
        "Tensor": lambda item: one_line(item.where),
        "Kind": lambda item: item.kind,
        "Shape": lambda item: "-" if item.shape is None else " x ".join(map(str, item.shape[:8])),
        "Type": lambda item: one_line(item.dtype or "-"),
        "Size": lambda item: size(item.size_bytes),
    }
    caption = f"Largest tensors of {one_line(stage.name)} at its peak"
    return _details(caption, stage.memory.largest, columns, (4,), most=_MAX_TENSORS)


def _budgets(stage: StageProfile) -> Table | None:
    columns: dict[str, Callable[[Budget], str]] = {
        "Memory": lambda item: one_line(item.what),
        "Budget": lambda item: quantity("_bytes", item.budget_bytes),
        "Used": lambda item: size(item.used_bytes),
        "Share": lambda item: "-" if item.used_fraction is None else f"{item.used_fraction:.1%}",
    }
    return _details(f"Budgets of {one_line(stage.name)}", stage.memory.budgets, columns, (1, 2, 3))


def _limits(stages: Sequence[StageProfile]) -> Table | None:
    """List the machine's limits, and how close each stage comes to them."""
    roofs = [(stage.name, stage.roofline) for stage in stages if stage.roofline is not None]
    columns: dict[str, Callable[[tuple[str, Roofline]], str]] = {
        "Stage": lambda item: one_line(item[0]),
        "Computes": lambda item: f"{item[1].flops / 1e9:.3g} GFLOP",
        "Moves": lambda item: memory(round(item[1].moved_bytes)),
        "Machine computes": lambda item: f"{item[1].flops_per_second / 1e9:.3g} GFLOP/s in {item[1].dtype}",
        "Machine moves": lambda item: f"{item[1].copied_bytes_per_second / 2**30:.3g} GiB/s",
        "At best": lambda item: quantity(E2E, item[1].bound_s, item[1].measured_s),
        "Takes": lambda item: quantity(E2E, item[1].measured_s),
        "Reached": lambda item: f"{item[1].fraction:.1%}",
        "Limited by": lambda item: item[1].limit,
    }
    caption = "Distance to the machine's limits"
    return make_table(caption, roofs, columns, range(1, 8), lead=caption)


def _module_limits(stage: StageProfile) -> Table | None:
    columns: dict[str, Callable[[RooflinePart], str]] = {
        "Module": lambda item: one_line(item.module),
        "Computes": lambda item: f"{item.flops / 1e9:.3g} GFLOP",
        "Moves": lambda item: memory(round(item.moved_bytes)),
        "At best": lambda item: quantity(E2E, item.bound_s),
        "Limited by": lambda item: item.limit,
    }
    parts = stage.roofline.parts if stage.roofline else ()
    return _details(f"Limits of {one_line(stage.name)} by module", parts, columns, (1, 2, 3), most=_MAX_PARTS)


def _count_omitted(stage: StageProfile) -> Table | None:
    omitted = stage.roofline.omitted if stage.roofline else ()
    caption = f"Left out of the limits of {one_line(stage.name)}"
    return make_table(caption, omitted, {"What": one_line}, (), folded=True, only="page")


def _overhead(profile: Profile) -> Table | None:
    columns: dict[str, Callable[[Overhead], str]] = {
        "Time": lambda item: one_line(title(item.metric)),
        "Unprofiled": lambda item: quantity(E2E, item.unprofiled_s),
        "Profiled": lambda item: quantity(E2E, item.profiled_s, item.unprofiled_s),
        "Ratio [95% CI]": lambda item: ratio(item.ratio, item.ci95),
    }
    caption = "Unprofiled and profiled iterations, interleaved"
    return make_table(caption, profile.overhead, columns, (1, 2), lead=caption)


def _details(
    caption: str,
    items: Sequence[T],
    columns: dict[str, Callable[[T], str]],
    numeric: Iterable[int],
    most: int = _MAX_TEXT_ROWS,
) -> Table | None:
    """Return a folded table of the first items, in text of even fewer."""
    return make_table(caption, items[:_MAX_ROWS], columns, numeric, folded=True, most=most)
