"""Numbers for people: with a unit, all values of a row in the same one; a metric's name without its unit."""

from __future__ import annotations

import math
from collections.abc import Mapping

from omni_cli.records.metrics import E2E, WORD_ERRORS, get_unit, higher_is_better, is_energy

_SCALES = {"s": ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")), "J": ((1e3, "kJ"), (1.0, "J"), (1e-3, "mJ"))}


def title(metric: str) -> str:
    """`ttft_s` as `ttft`, `images_per_second` as `images per second`, `peak_host_rss_bytes` as `peak host rss`."""
    name = metric.removesuffix("_bytes").removesuffix("_s").removesuffix("_j") if metric != E2E else "e2e"
    return name.replace("_", " ")


def metric_title(metric: str) -> str:
    return title(metric) + (" (more is better)" if higher_is_better(metric) else "")


def quantity(metric: str, value: float | None, like: float | None = None) -> str:
    """Format `100.1 ms`, `15.8 GiB`, `3.21/s`, `0.82`, in the unit that suits `like`."""
    if value is None or not math.isfinite(value):
        return "-"
    like = value if not like or not math.isfinite(like) else like
    if get_unit(metric) == "bytes":
        return memory(int(value))
    scale, unit = get_scale(metric, like)
    digits = _digits(value / scale, like / scale)
    return f"{digits}/s" if unit == "per second" else digits if unit == "1" else f"{digits} {unit}"


def get_scale(metric: str, like: float) -> tuple[float, str]:
    """Return the divisor and the unit that `quantity` chooses for `like`."""
    match get_unit(metric):
        case "bytes":
            return (2.0**30, "GiB") if like >= 2**30 else (2.0**20, "MiB")
        case "s" | "J" as unit:
            return next((entry for entry in _SCALES[unit] if abs(like) >= entry[0]), _SCALES[unit][-1])
        case unit:
            return 1.0, unit


def quantity_interval(metric: str, bounds: tuple[float, float] | None, like: float) -> str:
    """Format `[99.8, 100.4]` in the unit of `quantity(metric, like)`; `n/a` without bounds."""
    if bounds is None:
        return "n/a"
    low, high = (quantity(metric, bound, like).split(" ")[0].removesuffix("/s") for bound in bounds)
    return f"[{low}, {high}]"


def word_for(metric: str, verdict: str) -> str:
    """Name the verdict on a metric: energy is not slow, nor are words."""
    words = {"slower": "more energy", "faster": "less energy"} if is_energy(metric) else {}
    words = {"slower": "worse", "faster": "better"} if metric in WORD_ERRORS else words
    return words.get(verdict, verdict)


def size_change(a_bytes: int, b_bytes: int) -> str:
    """Format `+1.3 GiB`, `-12 MiB`, `+0 MiB`."""
    return ("-" if b_bytes < a_bytes else "+") + memory(abs(b_bytes - a_bytes))


def ratio(value: float | None, bounds: tuple[float, float] | None) -> str:
    """Format `1.029 [1.021, 1.037]`, with decimals that fit the interval's width."""
    if value is None:
        return "-"
    if bounds is None:
        return f"{value:.3f} [n/a]"
    width = bounds[1] - bounds[0]
    decimals = 3 if width <= 0 else min(max(1 - math.floor(math.log10(width)), 2), 5)
    return f"{value:.{decimals}f} [{bounds[0]:.{decimals}f}, {bounds[1]:.{decimals}f}]"


def percent(value: float, decimals: int = 1) -> str:
    """Format a signed change: `+7.0%`, `-0.2%`; never `-0.0%`."""
    text = f"{100 * value:+.{decimals}f}%"
    return text.replace("-", "+") if not text.strip("+-0.%") else text


def percent_interval(value: float, bounds: tuple[float, float]) -> str:
    """Format `+7.0% [+6.1%, +7.9%]`, with a second decimal for narrow intervals."""
    decimals = 2 if bounds[1] - bounds[0] < 0.005 else 1
    low, high = (percent(bound, decimals) for bound in bounds)
    return f"{percent(value, decimals)} [{low}, {high}]"


def limit(value: float) -> str:
    """`5%`, `0.5%`."""
    return f"{100 * value:g}%"


def _digits(value: float, like: float) -> str:
    """Format with four significant digits of `like`."""
    if like == 0:
        return f"{value:.3g}"
    return f"{value:.{min(max(3 - math.floor(math.log10(abs(like))), 0), 6)}f}"


def seconds(value: float) -> str:
    """Format `0.48 s`, `14.9 s`, `125 s`."""
    return f"{value:.2f} s" if value < 10 else f"{value:.1f} s" if value < 100 else f"{value:.0f} s"


def duration(value_s: float) -> str:
    """Format an estimate of a time with two digits: `40 s`, `25 min`, `5.8 h`."""
    scale, unit = (1, "s") if value_s < 100 else (60, "min") if value_s < 6000 else (3600, "h")
    value = float(f"{value_s / scale:.2g}")
    return f"{value:.0f} {unit}" if value >= 10 else f"{f'{value:.1f}'.removesuffix('.0')} {unit}"


def milliseconds(value_s: float) -> str:
    """Format a short time given in seconds: `38 ms`, `0.6 ms`, `45 µs`."""
    value = value_s * 1000
    if 0 < value < 0.1:
        return f"{value * 1000:.0f} µs"
    return f"{value:.0f} ms" if value >= 10 else f"{value:.1f} ms"


def memory(num_bytes: int) -> str:
    """Format `15.8 GiB`, `312 MiB`."""
    return f"{num_bytes / 2**30:.1f} GiB" if num_bytes >= 2**30 else f"{num_bytes / 2**20:.0f} MiB"


def size(num_bytes: int) -> str:
    """Format like `memory`, with smaller units: `312 MiB`, `24 KiB`, `96 B`."""
    if num_bytes >= 2**20:
        return memory(num_bytes)
    return f"{num_bytes / 2**10:.0f} KiB" if num_bytes >= 2**10 else f"{num_bytes} B"


def sample_rate(hertz: int) -> str:
    """Format `24 kHz`, `22.05 kHz`."""
    return f"{hertz / 1000:g} kHz"


def count(number: int, unit: str) -> str:
    """Format `1 token`, `16 tokens`."""
    return f"{number} {unit}" if number == 1 else f"{number} {unit}s"


def one_line(value: object) -> str:
    """Format a value of a record on one line of limited length."""
    text = value if isinstance(value, str) else _format_plain(value)
    text = "".join(character if character.isprintable() else "?" for character in text)
    return text if len(text) <= 60 else text[:57] + "..."


def _format_plain(value: object) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_format_plain(inner)}" for key, inner in value.items()) + "}"
    return str(value)
