"""The figures of a measurement, each with a table of its values."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import msgspec
from msgspec.structs import replace

from omni_cli.records.metrics import (
    ALLOCATED,
    DENOISE_STEP,
    E2E,
    METRICS,
    PERCENTILES,
    REPORTED_MEMORY,
    TTFT,
    samples_for,
)
from omni_cli.records.record import GpuUtilisation, Record, Sample, Utilisation, Variant, mapping
from omni_cli.records.results import Summary
from omni_cli.report.units import count, get_scale, quantity, quantity_interval, title
from omni_cli.report.view import MAX_DOTS, ChartRow, Colour, Element, Figure, Panel, Panels, Rows, Series, Shade, Table

MAX_TABLE_BLOCKS = 200

Summaries = Mapping[str, Mapping[str, Summary]]


def latency_parts(
    record: Record, summaries: Summaries, block_medians: Mapping[str, Mapping[int, float]]
) -> list[Element | None]:
    """Draw the distribution and the order of the end-to-end times, with a table of every metric."""
    measured = [variant for variant in record.variants if variant.samples]
    if not measured:
        return []
    scale, unit = get_scale(E2E, summaries[measured[0].name][E2E].median)
    values = {}
    for variant in measured:
        ordered = sorted(variant.samples, key=lambda sample: (sample.block, sample.position))
        values[variant.name] = [sample.e2e_s / scale for sample in ordered]
    longest = max(map(len, values.values()))
    thinned = f" One run in {-(-longest // MAX_DOTS)} is drawn." if longest > MAX_DOTS else ""
    rows, panels = [], []
    everything = [value for of_one in values.values() for value in of_one]
    for variant in measured:
        of_one, summary = values[variant.name], summaries[variant.name][E2E]
        bounds = None if summary.ci95 is None else (summary.ci95[0] / scale, summary.ci95[1] / scale)
        text = f"{quantity(E2E, summary.median)} {quantity_interval(E2E, summary.ci95, summary.median)}"
        centre = summary.median / scale
        rows.append(ChartRow(variant.name, text, dots=of_one, centre=centre, bounds=bounds, strong=True))
        order = range(1, len(of_one) + 1)
        level = Series("line", (1, longest), (centre, centre), "accent")
        series = (Series("thin", order, of_one), Series("dots", order, of_one), level)
        panels.append(Panel(variant.name, unit, series, (min(everything), max(everything))))
    whole = [(variant.name, E2E, summaries[variant.name][E2E]) for variant in measured]
    return [
        Figure(
            "How the latency spreads",
            "Each dot is one run, end to end. The diamond is the median, the bar its 95% interval." + thinned,
            Rows(tuple(rows), unit),
            _summary_table(whole, "End-to-end latency"),
        ),
        Figure(
            "Run by run",
            "The same runs in order; the line is the median. A step or a slope comes from the machine, or is a leak.",
            Panels(tuple(panels), "run", (1, longest)),
            _block_table({variant.name: block_medians[variant.name] for variant in measured}),
        ),
        *(_metrics_table(variant, summaries[variant.name]) for variant in measured),
    ]


def waterfall_figure(record: Record) -> Figure | None:
    """Draw the stages of one request, from the run with the median latency; None if a run has no parts."""
    chosen = [(variant, sample) for variant in record.variants if (sample := _median_run(variant)) is not None]
    parts = {variant.name: _parts(sample) for variant, sample in chosen}
    if not any(parts.values()):
        return None
    scale, unit = get_scale(E2E, max(sample.e2e_s for _, sample in chosen))
    overlapping = any(sum(parts[variant.name].values()) > _FULL_SCALE * run.e2e_s for variant, run in chosen)
    bars, rows = [], []
    for variant, run in chosen:
        heading = f"{variant.name}: {quantity(E2E, run.e2e_s)}" if len(chosen) > 1 else ""
        begins_s = 0.0
        for name, seconds in parts[variant.name].items():
            takes, share = quantity(E2E, seconds, run.e2e_s), f"{seconds / run.e2e_s:.0%}"
            bar = ((begins_s / scale, seconds / scale),)
            colour: Colour = "muted" if name == _REST else "accent"
            bars.append(ChartRow(name, f"{takes}  {share}", heading, bar, colour=colour))
            rows.append((variant.name, name, takes, share))
            begins_s += 0.0 if overlapping else seconds
            heading = ""
    table = Table("Parts of the median run", ("Variant", "Part", "Takes", "Share"), tuple(rows), frozenset({2, 3}))
    text = "The run whose latency is the median one. "
    if overlapping:
        text += "Its stages overlapped. Their starts are not in the record, so all bars begin at 0."
    else:
        text += "Parts follow one another; the unaccounted rest is at the end."
    return Figure("A request from stage to stage", text, Rows(tuple(bars), f"{unit} since the request was sent"), table)


def memory_figure(record: Record) -> Figure | None:
    """Draw the peaks, summed over the stages, with a table by stage. None if nothing was measured."""
    peaks = [
        (variant, metric, value)
        for variant in record.variants
        for metric in REPORTED_MEMORY
        if (value := getattr(variant.memory, metric))
    ]
    if not peaks:
        return None
    scale, unit = get_scale(ALLOCATED, max(value for _, _, value in peaks))
    several = len({metric for _, metric, _ in peaks}) > 1
    bars = []
    for number, (variant, metric, value) in enumerate(peaks):
        is_new = not number or variant is not peaks[number - 1][0]
        label, heading = (title(metric), variant.name if is_new else "") if several else (variant.name, "")
        bars.append(ChartRow(label, quantity(metric, value), heading, ((0.0, value / scale),)))
    text = "Peaks while running, the sum over the stages' processes: an upper bound, as they need not peak together."
    return Figure("Peak memory", text, Rows(tuple(bars), unit), _memory_table(record))


_FULL_SCALE = 1.02
"""Parts whose sum exceeds this share of a request overlapped."""


_REST = "everything else"


def _summary_table(rows: Sequence[tuple[str, str, Summary]], caption: str, first: str = "Variant") -> Table:
    columns = (first, "n", "Median", "95% CI", *(f"p{p}" for p in PERCENTILES), "Min", "Max")
    cells = tuple((label, *_summary_cells(metric, item)) for label, metric, item in rows)
    return Table(caption, columns, cells, frozenset(range(1, 8)))


def _summary_cells(metric: str, summary: Summary) -> tuple[str, ...]:
    like = summary.median
    percentiles = [(p, summary.percentile(p)) for p in PERCENTILES]
    return (
        str(summary.requests or summary.n),
        quantity(metric, like),
        quantity_interval(metric, summary.ci95, like),
        *(f"n < {samples_for(p)}" if value is None else quantity(metric, value, like) for p, value in percentiles),
        quantity(metric, summary.minimum, like),
        quantity(metric, summary.maximum, like),
    )


def _metrics_table(variant: Variant, summaries: Mapping[str, Summary]) -> Table:
    rows = [(title(metric), metric, summary) for metric, summary in summaries.items()]
    return replace(_summary_table(rows, f"All metrics of {variant.name}", "Metric"), folded=True)


def _block_table(medians: Mapping[str, Mapping[int, float]]) -> Table:
    """List the median of each block, from which comparisons are computed."""
    blocks = sorted({block for by_block in medians.values() for block in by_block})
    rows = tuple(
        (str(block), *(quantity(E2E, by_block.get(block)) for by_block in medians.values()))
        for block in blocks[:MAX_TABLE_BLOCKS]
    )
    left = len(blocks) - len(rows)
    caption = "Median latency of each block" + (f"; {left} more are in the record" if left else "")
    return Table(caption, ("Block", *medians), rows, frozenset(range(len(medians) + 1)))


def _median_run(variant: Variant) -> Sample | None:
    """Return the run with the median latency; of two, the faster."""
    ordered = sorted(variant.samples, key=lambda sample: sample.e2e_s)
    return ordered[(len(ordered) - 1) // 2] if ordered else None


def _parts(sample: Sample) -> dict[str, float]:
    """Return the seconds of a run's parts in order: its stages, or the parts of its only stage; and of the rest."""
    metrics, suffix = sample.metrics, ".latency_s"
    parts = {name.removesuffix(suffix): value for name, value in metrics.items() if name.endswith(suffix)}
    if not parts and TTFT in metrics:
        parts = {"until the first token": metrics[TTFT]}
    elif not parts:
        steps = sample.work.get("denoise_steps", 0.0) / (sample.work.get("requests", 1.0) or 1.0)
        for name in (name for name, metric in METRICS.items() if metric.is_part and metrics.get(name, 0.0) > 0):
            times, word = (steps, f"{steps:g} denoise steps") if name == DENOISE_STEP else (1.0, title(name))
            parts |= {word: metrics[name] * times} if times else {}
    rest = sample.e2e_s - sum(parts.values())
    return parts | {_REST: rest} if parts and rest > 0 else parts


def _memory_table(record: Record) -> Table:
    rows = []
    for variant in record.variants:
        rows.append((variant.name, "all", "run", *_peaks(msgspec.structs.asdict(variant.memory))))
        for stage, phases in variant.memory.stages.items():
            rows += [(variant.name, stage, phase, *_peaks(mapping(peaks))) for phase, peaks in mapping(phases).items()]
    columns = ("Variant", "Stage", "While", *(title(metric) for metric in REPORTED_MEMORY))
    return Table("Peak memory by stage", columns, tuple(rows), frozenset({3, 4, 5}))


def _peaks(peaks: Mapping[str, object]) -> tuple[str, ...]:
    return tuple(
        quantity(metric, value) if isinstance(value := peaks.get(metric), int) and value else "-"
        for metric in REPORTED_MEMORY
    )


def utilisation_figure(load: Utilisation | None) -> Figure | None:
    """Draw processor and devices over time; None if they were not sampled."""
    if load is None or not load.end_s:
        return None
    edges = [0.0, *load.end_s]
    total = [min(busy + stolen, 1e6) for busy, stolen in zip(load.busy_cores, load.stolen_cores, strict=True)]
    areas = (Series("area", edges, total, "line"), Series("area", edges, load.own_cores, "accent"))
    panels = [Panel("Processor", f"of {count(load.usable_cores, 'core')}", areas, (0, load.usable_cores))]
    if load.cpu_mhz:
        panels.append(Panel("Processor clock", "MHz", (Series("step", edges, load.cpu_mhz),), (0, 0)))
    for gpu in load.gpus:
        panels += _gpu(gpu, edges)
    text = (
        f"Means over {load.interval_s:g} s. The coloured area is the measurement, the grey one on top of it all other "
        "programs. Where a device's clock was held down, its panel is shaded."
    )
    chart = Panels(tuple(panels), "seconds since the first run", (0, edges[-1]), numbered=False)
    return Figure("How busy the machine was", text, chart, _table(load))


def _gpu(gpu: GpuUtilisation, edges: Sequence[float]) -> list[Panel]:
    spans: list[Shade] = []
    for (start, end), why in zip(itertools.pairwise(edges), gpu.throttled, strict=True):
        if why and spans and spans[-1].end == start:
            spans[-1] = Shade(spans[-1].start, end)
        elif why:
            spans.append(Shade(start, end))
    label = f"GPU {gpu.index} {gpu.name}"
    busy, clock = Series("area", edges, gpu.utilisation_percent, "accent"), Series("step", edges, gpu.sm_clock_mhz)
    return [
        Panel(f"{label}, busy", "%", (busy,), (0, 100)),
        Panel(f"{label}, clock", "MHz", (clock,), (0, 0), tuple(spans)),
    ]


def _table(load: Utilisation) -> Table:
    others = [max(0.0, busy - own) for busy, own in zip(load.busy_cores, load.own_cores, strict=True)]
    series = [
        ("the measurement, cores", load.own_cores),
        ("other programs, cores", others),
        ("kept by the machine's host, cores", load.stolen_cores),
        ("quota used up, % of periods", [100 * value for value in load.held_back]),
        ("processor clock, MHz", load.cpu_mhz),
    ]
    for gpu in load.gpus:
        series += [
            (f"GPU {gpu.index} busy, %", gpu.utilisation_percent),
            (f"GPU {gpu.index} clock, MHz", gpu.sm_clock_mhz),
            (f"GPU {gpu.index} temperature, °C", gpu.temperature_c),
            (f"GPU {gpu.index} power, W", gpu.power_w),
            (f"GPU {gpu.index} throttled, % of the time", [100.0 * bool(why) for why in gpu.throttled]),
        ]
    rows = tuple(
        (label, *(f"{value:.4g}" for value in (sum(values) / len(values), min(values), max(values))))
        for label, values in series
        if values
    )
    caption = f"{count(len(load.end_s), 'sample')} in {load.end_s[-1]:.0f} s, which took {1000 * load.cost_s:.0f} ms"
    return Table(caption, ("What", "Mean", "Lowest", "Highest"), rows, frozenset({1, 2, 3}))
