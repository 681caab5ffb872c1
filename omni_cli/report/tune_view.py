"""A search of `omni tune` as a view: the answer, speed against memory and quality, and every setting."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from omni_cli.core.text import visible
from omni_cli.records.labels import get_facts
from omni_cli.records.results import MEASURES, Outputs
from omni_cli.records.tune_record import Standing, TuneRecord
from omni_cli.report.shared_parts import get_device, notes_on_variants, origin_sections, short_title, workload_title
from omni_cli.report.units import count, get_scale, limit, quantity, ratio, seconds, title
from omni_cli.report.view import Element, Figure, Paragraph, Section, Table, Tone, Trade, Trades, Verdict, View

_MEMORY = "peak_bytes"
_STATES = {"best": "best", "no worse": "within the margin", "worse": "worse", "open": "open", "infeasible": "-"}


def tune_view(record: TuneRecord) -> View:
    """Return the view of a search: the settings from the best to the worst, those that failed, and the answer."""
    able = [item for item in record.standings if item.state != "infeasible"]
    ranked = sorted(able, key=lambda item: (item.state != "best", item.ratio is None, item.ratio or 0.0))
    conditions = [
        f"objective {title(record.objective)}",
        f"margin {limit(record.margin)}",
        count(len(record.candidates), "setting"),
        f"{count(record.starts, 'start')} in {count(len(record.rounds), 'round')}",
        seconds(record.elapsed_s),
    ]
    word, *sentences = answer = _answer(record)
    tone: Tone = "good"
    if record.verdict != "decided":
        word, sentences, tone = record.verdict, answer, "bad" if record.verdict == "infeasible" else "open"
    failed = [(item.name, item.problem) for item in record.standings if item.problem is not None]
    on_front = [item.name for item in ranked if item.on_front]
    memory = _figure("Speed against memory", ranked, _MEMORY, lambda item: item.memory_bytes, on_front)
    return View(
        kind="Search",
        title=workload_title(record.workload),
        details=" · ".join(filter(None, [*conditions, get_device(record.environment)])),
        created=record.created,
        facts=get_facts(record.environment, record.workload, record.created),
        verdict=Verdict(word, tone, tuple(sentences)),
        heading=", ".join([short_title(record.workload), *conditions]),
        closing="\n".join(answer),
        notes=notes_on_variants(variant for each in record.rounds for batch in each.batches for variant in batch),
        sections=[
            Section("Trade-offs", [memory, *_quality_figures(ranked)]),
            Section("Settings", [_settings(record, ranked)]),
            Section(
                "Not possible",
                [Paragraph(f"{name}: {visible(problem, 500)}") for name, problem in failed],
                heading="Cannot be the answer:",
            ),
            *origin_sections(record.environment, record.workload, record.command),
        ],
    )


def _settings(record: TuneRecord, ranked: Sequence[Standing]) -> Table:
    """List the settings, without columns that have no value.

    A server has no memory that can be read, and a single setting nothing to compare its outputs with.
    """
    columns = ("Setting", title(record.objective), "Cost / best [95% CI]", "Memory", "Starts", "Outputs", "")
    rows = [
        (
            item.name,
            quantity(record.objective, item.value),
            "1" if item.state == "best" else ratio(item.ratio, item.ci95),
            quantity(_MEMORY, item.memory_bytes),
            str(item.starts),
            _differences(item.outputs),
            _STATES[item.state],
        )
        for item in ranked
    ]
    kept = [place for place in range(len(columns)) if {row[place] for row in rows} != {"-"}]
    numeric = frozenset(number for number, place in enumerate(kept) if place in (1, 3, 4))
    cells = tuple(tuple(row[place] for place in kept) for row in rows)
    return Table("From the best to the worst", tuple(columns[place] for place in kept), cells, numeric)


def _differences(outputs: Outputs | None) -> str:
    """Format how far outputs differ from those of the first setting."""
    if outputs is None or outputs.identical is None:
        return "-"
    if outputs.identical:
        return "identical"
    return ", ".join(f"{name} {value:.4g}" for name, value in outputs.measures.items()) or "differ"


def _answer(record: TuneRecord) -> list[str]:
    """Say which setting is best, and how sure that is."""
    if record.winner is None:
        return ["No setting can be the answer."]
    if record.excess is None:
        return [f"So far the best: {record.winner}. How much better another setting may be is not known yet."]
    than = f" by more than {100 * record.excess:.1f}%" if record.excess > 0 else ""
    word = "Best" if record.verdict == "decided" else "So far the best"
    sure = f"With {1 - record.alpha:.0%} probability, no setting that was searched is better{than}."
    if all(item.state == "infeasible" for item in record.standings if item.name != record.winner):
        sure = "No other setting can be the answer."
    lines = [f"{word}: {record.winner}", sure]
    first = record.standings[0]
    if first.name != record.winner and first.ratio is not None and first.state != "infeasible":
        lines.append(
            f"{first.name}, which the search started from, costs {ratio(first.ratio, first.ci95)} times as much."
        )
    return lines


def _quality_figures(ranked: Sequence[Standing]) -> list[Element | None]:
    """Draw each measure of outputs that at least two settings have; equal outputs have none."""
    figures: list[Element | None] = []
    for measure in MEASURES:

        def value(item: Standing, measure: str = measure) -> float | None:
            return None if item.outputs is None else item.outputs.measures.get(measure)

        if sum(value(item) is not None for item in ranked) > 1:
            figures.append(_figure(f"Speed against {title(measure)}", ranked, measure, value))
    return figures


def _figure(
    heading: str,
    ranked: Sequence[Standing],
    metric: str,
    value: Callable[[Standing], float | None],
    on_front: Collection[str] = (),
) -> Figure | None:
    known = [(item, amount) for item in ranked if item.ratio is not None and (amount := value(item)) is not None]
    if not known:
        return None
    scale, unit = get_scale(metric, max(amount for _, amount in known))
    trades = tuple(
        Trade(item.name, item.ratio or 1.0, item.ci95, amount / scale, item.name in on_front, item.state == "best")
        for item, amount in known
    )
    rows = tuple((item.name, ratio(item.ratio, item.ci95), quantity(metric, amount)) for item, amount in known)
    text = "Each diamond is a setting, the bar its 95% interval; further left is faster."
    if any(trade.on_front for trade in trades):
        text += " The line joins those that no other setting beats in both."
    label = title(metric) + (f" ({unit})" if unit != "1" else "")
    table = Table(heading, ("Setting", "Cost / best [95% CI]", title(metric)), rows, frozenset({1, 2}))
    return Figure(heading, text, Trades(trades, label), table)
