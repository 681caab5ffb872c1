"""The figures of a profile, each with a table of its values."""

from __future__ import annotations

from collections.abc import Sequence

from omni_cli.records.metrics import E2E
from omni_cli.records.profile_record import Profile, Span, StageProfile, base_name
from omni_cli.report.units import count, get_scale, memory, one_line, quantity
from omni_cli.report.view import ChartRow, Colour, Figure, Panel, Panels, Rows, Series, Shade, Table

MAX_PARTS = 400
"""Maximum number of bars in one row of the waterfall; the shortest are left out."""

_MAX_DEPTH = 3

MIN_SHARE = 0.01
"""Parts below this share of a request get no row."""

MAX_STEPS = 400


def request_figure(profile: Profile) -> Figure | None:
    """Draw the request from stage to stage; the table adds up to the whole."""
    if not profile.request:
        return None
    scale, unit = get_scale(E2E, profile.e2e_s)
    bars = []
    for track in dict.fromkeys(span.track for span in profile.request):
        spans = [span for span in profile.request if span.track == track]
        bars.append(_bar(track, [span for span in spans if span.depth == 0], scale, strong=True))
        inner = [span for span in spans if 1 <= span.depth <= _MAX_DEPTH]
        kinds: dict[str, list[Span]] = {}
        for span in inner:
            kinds.setdefault(base_name(span.name), []).append(span)
        bars += [
            _bar(kind, of_kind, scale)
            for kind, of_kind in kinds.items()
            if sum(span.duration_s for span in of_kind) >= MIN_SHARE * profile.e2e_s
        ]
    rows = tuple(
        (one_line(part), quantity(E2E, seconds, profile.e2e_s), f"{_share(seconds, profile.e2e_s):.1%}")
        for part, seconds in profile.stage_seconds.items()
    )
    total = ("all", quantity(E2E, profile.e2e_s), "100.0%")
    table = Table("Time of the iteration", ("Stage", "Time", "Share"), (*rows, total), frozenset({1, 2}))
    text = (
        "The profiled iteration whose time is the median. Each stage's request, and below it the parts of its work "
        f"that take {MIN_SHARE:.0%} of the whole or more."
    )
    return Figure("A request from stage to stage", text, Rows(tuple(bars), f"{unit} since the request was sent"), table)


def activity_figure(stages: Sequence[StageProfile]) -> Figure | None:
    """Draw busy and idle time of each stage's device, with idle time by cause."""
    if not stages:
        return None
    scale, unit = get_scale(E2E, max(stage.activity.capacity_s for stage in stages) or 1.0)
    bars, rows = [], []
    for stage in stages:
        name, activity, gaps = one_line(stage.name), stage.activity, stage.launch_gaps
        device = count(activity.num_threads, "thread") if activity.device == "cpu" else activity.device
        heading = f"{stage.name}: {device}, busy {activity.busy_fraction:.0%}"
        idle = {f"idle: {cause}": seconds for cause, seconds in activity.idle_s.items()}
        for label, seconds in {"busy": activity.busy_s, **idle}.items():
            colour: Colour = "muted" if label in idle else "accent"
            share = _share(seconds, activity.capacity_s)
            time = quantity(E2E, seconds, activity.capacity_s)
            bar = ((0.0, seconds / scale),)
            bars.append(ChartRow(label, f"{time}  {share:.0%}", heading, bar, colour=colour))
            rows.append((name, one_line(label), time, f"{share:.1%}"))
            heading = ""
        if gaps is not None:
            what = f"{count(gaps.count, 'launch gap')} within steps"
            of_steps = f"{gaps.fraction_of_steps:.1%} of the steps"
            rows.append((name, what, quantity(E2E, gaps.total_s), of_steps))
    table = Table(
        "Busy and idle time per iteration", ("Stage", "What", "Time", "Share"), tuple(rows), frozenset({2, 3})
    )
    text = (
        "Shares of the time in which a stage had a request, times its threads where the device is the processor. "
        "Idle time is split by its cause."
    )
    return Figure("Busy and idle", text, Rows(tuple(bars), unit), table)


def memory_figure(stage: StageProfile) -> Figure | None:
    """Draw a stage's memory over time, with the phase of its peak shaded; None without several samples."""
    usage = stage.memory
    if len(usage.timeline) < 2:
        return None
    timeline = sorted(usage.timeline, key=lambda sample: sample.at_s)
    scale, unit = get_scale("_bytes", usage.peak_bytes)
    series = [("host RSS", [sample.host_rss_bytes for sample in timeline], usage.measure == "host_rss")]
    for label, key in (("reserved", "reserved_bytes"), ("allocated", "allocated_bytes")):
        values = [getattr(sample, key) for sample in timeline]
        if None not in values:
            series.append((label, values, usage.measure == label))
    edges = [*(sample.at_s for sample in timeline), timeline[-1].at_s]
    once = [phase for phase in usage.phases if phase.name == usage.peak_phase and phase.times == 1]
    spans = tuple(Shade(phase.start_s, phase.start_s + phase.duration_s, "soft") for phase in once)
    panels = []
    for label, values, is_peak in series:
        drawn = [Series("step", edges, [value / scale for value in values], "accent" if is_peak else "muted")]
        if is_peak:
            highest = max(range(len(values)), key=values.__getitem__)
            drawn.append(Series("diamond", (timeline[highest].at_s,), (values[highest] / scale,), "accent"))
        panels.append(Panel(label, unit, tuple(drawn), (0, 0), spans))
    rows = tuple((label, memory(values[0]), memory(max(values)), memory(values[-1])) for label, values, _ in series)
    text = f"The peak, {memory(usage.peak_bytes)}, is in the phase “{one_line(usage.peak_phase)}”."
    text += " The phase is shaded, the highest sample marked." if once else " The highest sample is marked."
    name = f"Memory of {one_line(stage.name)}"
    table = Table(name, ("Memory", "First", "Highest", "Last"), rows, frozenset({1, 2, 3}))
    chart = Panels(tuple(panels), "seconds since the stage's process began", (0, edges[-1]), numbered=False)
    return Figure(name, text, chart, table)


def steps_figure(stage: StageProfile) -> Figure | None:
    """Draw a line over a stage's steps, with outliers marked; None without steps."""
    steps = stage.steps[:MAX_STEPS]
    if not steps:
        return None
    scale, unit = get_scale(E2E, max(step.median_s for step in steps) or 1.0)
    dots = [(step.number, value / scale) for step in steps for value in step.samples_s]
    medians = [(step.number, step.median_s / scale, step.outlier) for step in steps]
    marked = [(number, median) for number, median, is_outlier in medians if is_outlier]
    series = (
        Series("dots", [number for number, _ in dots], [value for _, value in dots]),
        Series("line", [number for number, *_ in medians], [median for _, median, _ in medians], "accent"),
        Series("rings", [number for number, _ in marked], [median for _, median in marked], "bad"),
    )
    ends = (steps[0].number, steps[-1].number)
    chart = Panels((Panel("", unit, series),), one_line(steps[0].name), ends, height=210)
    text = "Each dot is one iteration's step, the line their median."
    if marked:
        text += f" Outliers, marked by a ring: {', '.join(str(number) for number, _ in marked)}."
    rows = tuple(
        (
            f"{one_line(step.name)} {step.number}",
            quantity(E2E, step.median_s),
            quantity(E2E, step.usual_s, step.median_s),
            "outlier" if step.outlier else "",
        )
        for step in steps
    )
    name = f"Steps of {one_line(stage.name)}"
    table = Table(name, ("Step", "Median", "Usual here", "Remark"), rows, frozenset({1, 2}))
    return Figure(name, text, chart, table)


def _bar(name: str, spans: Sequence[Span], scale: float, *, strong: bool = False) -> ChartRow:
    longest = sorted(spans, key=lambda span: -span.duration_s)[:MAX_PARTS]
    parts = tuple((span.start_s / scale, span.duration_s / scale) for span in longest)
    times = f"{len(spans)} times, " if len(spans) > 1 else ""
    text = f"{times}{quantity(E2E, sum(span.duration_s for span in spans))}"
    return ChartRow(name, text, bars=parts, colour="accent" if strong else "muted", strong=strong)


def _share(part: float, whole: float) -> float:
    return part / whole if whole > 0 else 0.0
