"""The tables of a profile."""

from __future__ import annotations

from collections.abc import Sequence

from omni_cli.metrics import E2E
from omni_cli.profile_record import Profile, StageProfile
from omni_cli.report.bench_text import shown
from omni_cli.report.bench_units import quantity, ratio, size_change, title
from omni_cli.report.html.elements import Part, Table
from omni_cli.report.units import memory

MAX_ROWS = 25


def ranges_table(stage: StageProfile) -> Table | None:
    rows = tuple(
        (
            shown(item.name),
            f"{item.calls:g}",
            quantity(E2E, item.total_s),
            quantity(E2E, item.self_s, item.total_s),
            quantity(E2E, item.median_call_s),
            f"{item.fraction:.1%}",
        )
        for item in stage.ranges[:MAX_ROWS]
    )
    columns = ("Range", "Calls", "Time", "Without inner ranges", "Median call", "Share")
    return _table(f"Ranges of {shown(stage.name)} per iteration", columns, rows, range(1, 6))


def operators_table(stage: StageProfile) -> Table | None:
    rows = tuple(
        (
            shown(item.operator),
            shown(item.module),
            f"{item.calls:g}",
            quantity(E2E, item.seconds),
            f"{item.fraction:.1%}",
        )
        for item in stage.operators[:MAX_ROWS]
    )
    columns = ("Operator", "Module", "Calls", "Time", "Share")
    return _table(f"Operators of {shown(stage.name)} per iteration", columns, rows, (2, 3, 4))


def copies_table(stages: Sequence[StageProfile]) -> Table | None:
    rows = tuple(
        (
            f"{shown(stage.name)}: {shown(place.range)}",
            f"{shown(place.operator)}{f' in {shown(place.module)}' if place.module else ''}",
            f"{place.calls:g}",
            quantity("_bytes", place.copied_bytes),
            quantity(E2E, place.seconds),
        )
        for stage in stages
        for place in stage.copies.places[:MAX_ROWS]
    )
    return _table("Copies per iteration", ("Where", "By", "Calls", "Size", "Time"), rows, (2, 3, 4))


def memory_tables(stage: StageProfile) -> list[Part]:
    """List phases, the largest tensors at the peak, and budgets."""
    usage, name = stage.memory, shown(stage.name)
    phases = tuple(
        (
            shown(phase.name),
            str(phase.times),
            quantity(E2E, phase.duration_s),
            memory(phase.peak_host_rss_bytes),
            _size(phase.peak_allocated_bytes),
            _size(phase.peak_reserved_bytes),
            size_change(0, phase.added_bytes),
        )
        for phase in usage.phases
    )
    columns = ("Phase", "Times", "Lasts", "Peak host RSS", "Peak allocated", "Peak reserved", "Added")
    largest = tuple(
        (shown(item.where), item.kind, _shape(item.shape), shown(item.dtype or "-"), memory(item.size_bytes))
        for item in usage.largest[:MAX_ROWS]
    )
    budgets = tuple(
        (
            shown(item.what),
            _size(item.budget_bytes),
            memory(item.used_bytes),
            "-" if item.used_fraction is None else f"{item.used_fraction:.0%}",
        )
        for item in usage.budgets
    )
    tables = (
        _table(f"Memory of {name} by phase", columns, phases, range(1, 7)),
        _table(f"Largest tensors of {name} at its peak", ("Tensor", "Kind", "Shape", "Type", "Size"), largest, (4,)),
        _table(f"Budgets of {name}", ("Memory", "Budget", "Used", "Share"), budgets, (1, 2, 3)),
    )
    return [table for table in tables if table is not None]


def limits_tables(stages: Sequence[StageProfile]) -> list[Part]:
    """List the machine's limits, and how close each stage comes to them."""
    roofs = [(shown(stage.name), stage.roofline) for stage in stages if stage.roofline is not None]
    rows = tuple(
        (
            name,
            f"{roof.flops / 1e9:.3g} GFLOP",
            memory(round(roof.moved_bytes)),
            f"{roof.flops_per_second / 1e9:.3g} GFLOP/s",
            f"{roof.copied_bytes_per_second / 2**30:.3g} GiB/s",
            quantity(E2E, roof.bound_s, roof.measured_s),
            quantity(E2E, roof.measured_s),
            f"{roof.fraction:.0%}",
        )
        for name, roof in roofs
    )
    columns = ("Stage", "Computes", "Moves", "Machine computes", "Machine moves", "At best", "Takes", "Reached")
    whole = _table("Distance to the machine's limits", columns, rows, range(1, 8), folded=False)
    parts = [
        _table(
            f"Limits of {name} by module",
            ("Module", "Computes", "Moves", "At best", "Limited by"),
            tuple(
                (
                    shown(part.module),
                    f"{part.flops / 1e9:.3g} GFLOP",
                    memory(round(part.moved_bytes)),
                    quantity(E2E, part.bound_s),
                    part.limit,
                )
                for part in roof.parts[:MAX_ROWS]
            ),
            (1, 2, 3),
        )
        for name, roof in roofs
    ]
    omitted = [
        _table(f"Left out of the limits of {name}", ("What",), tuple((shown(text),) for text in roof.omitted), ())
        for name, roof in roofs
    ]
    return [table for table in (whole, *parts, *omitted) if table is not None]


def overhead_table(profile: Profile) -> Table | None:
    rows = tuple(
        (
            shown(title(item.metric)),
            quantity(E2E, item.unprofiled_s),
            quantity(E2E, item.profiled_s, item.unprofiled_s),
            ratio(item.ratio, item.ci95),
        )
        for item in profile.overhead
    )
    columns = ("Time", "Unprofiled", "Profiled", "Ratio [95% CI]")
    return _table("Unprofiled and profiled iterations, interleaved", columns, rows, (1, 2, 3), folded=False)


def _table(
    caption: str,
    columns: tuple[str, ...],
    rows: tuple[tuple[str, ...], ...],
    numeric: Sequence[int],
    *,
    folded: bool = True,
) -> Table | None:
    return Table(caption, columns, rows, frozenset(numeric), folded) if rows else None


def _size(value: int | None) -> str:
    return "-" if value is None else memory(value)


def _shape(shape: tuple[int, ...] | None) -> str:
    return "-" if shape is None else " x ".join(map(str, shape[:8]))
