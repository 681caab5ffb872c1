"""The report of `omni tune`: the standings, the answer, and what is known about it."""

from __future__ import annotations

from collections.abc import Sequence

from omni_cli.report.bench_run import short_title
from omni_cli.report.bench_units import limit, quantity, ratio, title
from omni_cli.report.tables import aligned
from omni_cli.report.units import count, seconds
from omni_cli.results import Outputs
from omni_cli.text import visible
from omni_cli.tune_record import Standing, TuneRecord

STATES = {"best": "best", "no worse": "within the margin", "worse": "worse", "open": "open", "infeasible": "-"}


def tune_text(record: TuneRecord) -> str:
    """Format the heading, the standings from the best to the worst, the settings that failed, and the answer."""
    workload = record.workload
    heading = (
        f"{short_title(workload)}, objective {title(record.objective)}, margin "
        f"{limit(record.margin)}, {count(len(record.candidates), 'setting')}, {count(record.starts, 'start')} in "
        f"{count(len(record.rounds), 'round')}, {seconds(record.elapsed_s)}"
    )
    ranked = ranking(record)
    columns, rows = settings_table(record, ranked)
    numbers = (title(record.objective), "memory", "starts")
    right = frozenset(place for place, column in enumerate(columns) if column in numbers)
    parts = [heading, "\n".join(aligned([columns, *rows], right=right))]
    failed = [item for item in record.standings if item.problem is not None]
    if failed:
        parts.append(
            "\n".join(["Cannot be the answer:", *(f"  {f.name}: {visible(f.problem or '', 500)}" for f in failed)])
        )
    parts.append(answer_text(record))
    return "\n\n".join(parts)


def ranking(record: TuneRecord) -> list[Standing]:
    """Return the settings that can be the answer, the best first."""
    able = [item for item in record.standings if item.state != "infeasible"]
    return sorted(able, key=lambda item: (item.state != "best", item.ratio is None, item.ratio or 0.0))


def settings_table(record: TuneRecord, ranked: Sequence[Standing]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Format the columns and rows of the settings, without columns that have no value.

    A server has no memory that can be read, and a single setting nothing to compare its outputs with.
    """
    columns = ("Setting", title(record.objective), "cost / best [95% CI]", "memory", "starts", "outputs", "")
    rows = [
        (
            item.name,
            quantity(record.objective, item.value),
            "1" if item.state == "best" else ratio(item.ratio, item.ci95),
            quantity("peak_bytes", item.memory_bytes),
            str(item.starts),
            outputs_text(item.outputs),
            STATES[item.state],
        )
        for item in ranked
    ]
    kept = [place for place in range(len(columns)) if {row[place] for row in rows} != {"-"}]
    return tuple(columns[place] for place in kept), [tuple(row[place] for place in kept) for row in rows]


def outputs_text(outputs: Outputs | None) -> str:
    """Format how far outputs differ from those of the first setting."""
    if outputs is None or outputs.identical is None:
        return "-"
    if outputs.identical:
        return "identical"
    return ", ".join(f"{name} {value:.4g}" for name, value in outputs.measures.items()) or "differ"


def answer_text(record: TuneRecord) -> str:
    """Say which setting is best, and how sure that is."""
    if record.winner is None:
        return "No setting can be the answer."
    if record.excess is None:
        return f"So far the best: {record.winner}. How much better another setting may be is not known yet."
    than = f" by more than {100 * record.excess:.1f}%" if record.excess > 0 else ""
    word = "Best" if record.verdict == "decided" else "So far the best"
    sure = f"With {1 - record.alpha:.0%} probability, no setting that was searched is better{than}."
    lines = [f"{word}: {record.winner}", sure]
    first = record.standings[0]
    if first.name != record.winner and first.ratio is not None and first.state != "infeasible":
        lines.append(
            f"{first.name}, which the search started from, costs {ratio(first.ratio, first.ci95)} times as much."
        )
    return "\n".join(lines)
