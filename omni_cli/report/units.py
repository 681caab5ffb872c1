"""Numbers for people: three significant digits, always with a unit."""

from __future__ import annotations


def seconds(value: float) -> str:
    """Format `0.48 s`, `14.9 s`, `125 s`."""
    return f"{value:.2f} s" if value < 10 else f"{value:.1f} s" if value < 100 else f"{value:.0f} s"


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
