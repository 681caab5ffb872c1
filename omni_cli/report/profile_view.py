"""A profile as a view: time and memory of a workload by part, and what to try."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from omni_cli.records.labels import get_facts
from omni_cli.records.metrics import E2E
from omni_cli.records.profile_record import Profile, StageMemory, StageProfile, Step
from omni_cli.report.profile_figures import activity_figure, memory_figure, request_figure, steps_figure
from omni_cli.report.shared_parts import get_device, notes_on_requests, origin_sections, workload_title
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
from omni_cli.report.view import Lines, Note, Paragraph, Section, Table, Verdict, View

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
    overhead = "Unprofiled and profiled iterations, interleaved"
    limits = "Distance to the machine's limits"
    names = (one_line(stage.name) for stage in stages if stage.roofline is not None)
    roofs = [stage.roofline for stage in stages if stage.roofline is not None]
    whole = [
        _table(overhead, profile.overhead, _OVERHEAD, (1, 2), lead=overhead),
        Paragraph(f"the profiled iteration of median length, {milliseconds(profile.e2e_s)}: {shares}"),
    ]
    drawn = [
        request_figure(profile),
        activity_figure(stages),
        _table(limits, roofs, {"Stage": lambda _: next(names), **_LIMITS}, range(1, 8), lead=limits),
    ]
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
        notes=(
            *notes_on_requests(profile.notes),
            *(Note(f"{where}{hint.message}", hint.advice, "Hint") for where, hint in hints),
        ),
        sections=[
            Section("The whole", [*whole, *drawn, trace]),
            *map(_stage_section, stages),
            Section("", advice, "Hints", only="text"),
            *origin_sections(profile.environment, profile.workload, profile.command),
        ],
    )


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
    name, roofline, usage = one_line(stage.name), stage.roofline, stage.memory
    limited, omitted = (roofline.parts, roofline.omitted) if roofline else ((), ())
    tensors = _details(f"Largest tensors of {name} at its peak", usage.largest, _TENSORS, (4,), _MAX_TENSORS)
    parts = [
        Lines((*_start(stage), *_activity(stage))),
        _details(f"Ranges of {name} per iteration", stage.ranges, _RANGES, range(1, 6)),
        Lines((*_steps(stage.steps), *_waits(stage))),
        steps_figure(stage),
        _details(f"Operators of {name} per iteration", stage.operators, _OPERATORS, (2, 3, 4)),
        Lines(tuple(_output_copies(stage))),
        _details(f"Copies of {name} per iteration", stage.copies.places, _COPIES, (2, 3, 4), _MAX_PLACES),
        Lines(tuple(_memory(usage))),
        memory_figure(stage),
        _table(f"Memory of {name} by phase", usage.phases, _PHASES, range(1, 7), folded=True, only="page"),
        tensors,
        _details(f"Budgets of {name}", usage.budgets, _BUDGETS, (1, 2, 3)),
        _details(f"Limits of {name} by module", limited, _MODULE_LIMITS, (1, 2, 3), _MAX_PARTS),
        _table(f"Left out of the limits of {name}", omitted, {"What": one_line}, (), folded=True, only="page"),
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
        part, took_s = largest
        of = quantity(E2E, profile.e2e_s)
        share = f"{took_s / profile.e2e_s:.0%}, {quantity(E2E, took_s, profile.e2e_s)}"
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


Columns = Mapping[str, str | Callable[[Any], str]]
"""Columns by their heads: the field that a column shows, or a function that formats an item."""

_RANGES: Columns = {
    "Range": "name", "Calls": "calls", "Time": "total_s",
    "Without inner ranges": lambda item: quantity(E2E, item.self_s, item.total_s),
    "Median call": "median_call_s", "Share": "fraction",
}  # fmt: skip
_OPERATORS: Columns = {
    "Operator": "operator", "Module": "module", "Calls": "calls", "Time": "seconds", "Share": "fraction",
}  # fmt: skip
_COPIES: Columns = {
    "Copied in": "range",
    "By": lambda item: one_line(item.operator) + (f" in {one_line(item.module)}" if item.module else ""),
    "Calls": "calls", "Size": lambda item: size(round(item.copied_bytes)), "Time": "seconds",
}  # fmt: skip
_PHASES: Columns = {
    "Phase": "name", "Times": "times", "Lasts": "duration_s", "Peak host RSS": "peak_host_rss_bytes",
    "Peak allocated": "peak_allocated_bytes", "Peak reserved": "peak_reserved_bytes",
    "Added": lambda item: size_change(0, item.added_bytes),
}  # fmt: skip
_TENSORS: Columns = {
    "Tensor": "where", "Kind": "kind",
    "Shape": lambda item: "-" if item.shape is None else " x ".join(map(str, item.shape[:8])),
    "Type": "dtype", "Size": lambda item: size(item.size_bytes),
}  # fmt: skip
_BUDGETS: Columns = {
    "Memory": "what", "Budget": "budget_bytes", "Used": lambda item: size(item.used_bytes), "Share": "used_fraction",
}  # fmt: skip
_WORK: Columns = {"Computes": lambda item: f"{item.flops / 1e9:.3g} GFLOP", "Moves": "moved_bytes"}
_LIMITS: Columns = {
    **_WORK,
    "Machine computes": lambda item: f"{item.flops_per_second / 1e9:.3g} GFLOP/s in {item.dtype}",
    "Machine moves": lambda item: f"{item.copied_bytes_per_second / 2**30:.3g} GiB/s",
    "At best": lambda item: quantity(E2E, item.bound_s, item.measured_s),
    "Takes": "measured_s", "Reached": "fraction", "Limited by": "limit",
}  # fmt: skip
_MODULE_LIMITS: Columns = {"Module": "module", **_WORK, "At best": "bound_s", "Limited by": "limit"}
_OVERHEAD: Columns = {
    "Time": lambda item: one_line(title(item.metric)), "Unprofiled": "unprofiled_s",
    "Profiled": lambda item: quantity(E2E, item.profiled_s, item.unprofiled_s),
    "Ratio [95% CI]": lambda item: ratio(item.ratio, item.ci95),
}  # fmt: skip


def _show(item: object, column: str | Callable[[Any], str]) -> str:
    """Format a field by the unit that its name has."""
    if not isinstance(column, str):
        return column(item)
    value = getattr(item, column)
    if value is None or isinstance(value, str):
        return one_line(value or "-")
    if column.endswith("fraction"):
        return f"{value:.1%}"
    if column.endswith("_bytes"):
        return memory(round(value))
    if column.endswith(("seconds", "_s")):
        return quantity(E2E, value)
    return str(value) if isinstance(value, int) else f"{value:g}"


def _table(
    caption: str, items: Sequence[Any], columns: Columns, numeric: Iterable[int], **options: Any
) -> Table | None:
    """Return a table with a row per item; None without items."""
    rows = tuple(tuple(_show(item, column) for column in columns.values()) for item in items)
    return Table(caption, tuple(columns), rows, frozenset(numeric), **options) if rows else None


def _details(
    caption: str, items: Sequence[Any], columns: Columns, numeric: Iterable[int], most: int = _MAX_TEXT_ROWS
) -> Table | None:
    """Return a folded table of the first items, in text of even fewer."""
    return _table(caption, items[:_MAX_ROWS], columns, numeric, folded=True, most=most)
