"""The machine's load during a benchmark, as a figure."""

from __future__ import annotations

from collections.abc import Sequence

from omni_cli.record import GpuUtilisation, Utilisation
from omni_cli.report.html.elements import Figure, Table
from omni_cli.report.html.svg import ACCENT, LINE, MUTED
from omni_cli.report.html.timelines import Band, Panel, drawn_panels
from omni_cli.report.units import count


def utilisation_figure(name: str, load: Utilisation | None) -> Figure | None:
    """Draw processor and devices over time; None if they were not sampled."""
    if load is None or not load.end_s:
        return None
    panels = [_processor(load)]
    if load.cpu_mhz:
        panels.append(Panel("Processor clock", "MHz", (Band("clock", load.cpu_mhz, MUTED, filled=False),), 0))
    for gpu in load.gpus:
        panels += _gpu(gpu, load.end_s)
    text = (
        f"Means over {load.interval_s:g} s. The coloured area is the measurement, the grey one on top of it all other "
        "programs. Where a device's clock was held down, its panel is shaded."
    )
    drawing = drawn_panels(f"{name}-machine", [0.0, *load.end_s], panels, "seconds since the first run")
    return Figure("How busy the machine was", text, drawing, _table(load))


def _processor(load: Utilisation) -> Panel:
    total = [min(busy + stolen, 1e6) for busy, stolen in zip(load.busy_cores, load.stolen_cores, strict=True)]
    bands = (Band("all programs", total, LINE), Band("the measurement", load.own_cores, ACCENT))
    return Panel("Processor", f"of {count(load.usable_cores, 'core')}", bands, load.usable_cores)


def _gpu(gpu: GpuUtilisation, ends: Sequence[float]) -> list[Panel]:
    marked: list[tuple[float, float]] = []
    for start, end, why in zip([0.0, *ends[:-1]], ends, gpu.throttled, strict=True):
        if why and marked and marked[-1][1] == start:
            marked[-1] = (marked[-1][0], end)
        elif why:
            marked.append((start, end))
    label = f"GPU {gpu.index} {gpu.name}"
    return [
        Panel(f"{label}, busy", "%", (Band("busy", gpu.utilisation_percent, ACCENT),), 100),
        Panel(f"{label}, clock", "MHz", (Band("clock", gpu.sm_clock_mhz, MUTED, filled=False),), 0, tuple(marked)),
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
