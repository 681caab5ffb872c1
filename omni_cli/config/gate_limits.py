"""The limits of a gate, from a file or from options."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from omni_cli.text import suggest, visible

DEFAULT_METRIC = "e2e_s"
MEMORY = "max_memory_regression"

_PERCENT = re.compile(r"\s*([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*(%?)\s*")
_MAX_LIMIT = 10.0
_QUALITY = re.compile(r"\s*([a-z][a-z_]{0,99})\s*(>=|<=)\s*(-?[0-9]{1,9}(?:\.[0-9]{0,9})?(?:e-?[0-9]{1,2})?)\s*")


@dataclass(frozen=True)
class QualityLimit:
    """A limit on a measure of outputs that differ, such as `psnr_db>=40`."""

    metric: str
    relation: str
    value: float

    def __str__(self) -> str:
        return f"{self.metric}{self.relation}{self.value:g}"

    def allows(self, value: float) -> bool:
        return value >= self.value if self.relation == ">=" else value <= self.value


@dataclass(frozen=True)
class GateLimits:
    """The allowed worsening of each metric: 0.05 is 5 %. `places` are the positions of limits in a file.

    `max_abs_diff` is None if outputs need not agree, 0 if they must be identical. `memory` limits the memory that the
    measurement has: allocated on a device, else resident on the host. `quality` limits how far outputs may differ.
    """

    metrics: Mapping[str, float]
    max_abs_diff: float | None = None
    places: Mapping[str, str] = field(default_factory=dict)
    memory: float | None = None
    quality: tuple[QualityLimit, ...] = ()

    @property
    def max_regression(self) -> float | None:
        """The widest limit on a time, for the report; None if only memory is gated."""
        return max((limit for name, limit in self.metrics.items() if not name.endswith("_bytes")), default=None)

    def with_memory(self, metric: str) -> GateLimits:
        """Turn the limit on memory into one on `metric`, unless that has a limit of its own."""
        if self.memory is None or metric in self.metrics:
            return self
        places = {metric if name == MEMORY else name: place for name, place in self.places.items()}
        return dataclasses.replace(self, metrics={**self.metrics, metric: self.memory}, places=places, memory=None)


def parse_fraction(text: str) -> float:
    """Parse `5%` or `0.05` as 0.05. Raises `ValueError` with a sentence."""
    match = _PERCENT.fullmatch(text)
    if match is None:
        raise ValueError(f"expected a percentage such as 5%, not `{visible(text, 40)}`")
    value = float(match[1]) / (100 if match[2] else 1)
    if not match[2] and value >= 1:
        raise ValueError(f"`{visible(text, 40)}` would be {value:.0%}: write `{text.strip()}%` if percent is meant")
    if not math.isfinite(value) or value > _MAX_LIMIT:
        raise ValueError(f"`{visible(text, 40)}` is no limit: expected at most {_MAX_LIMIT:.0%}")
    return value


def parse_quality(text: str, measures: Collection[str]) -> QualityLimit:
    """Parse `psnr_db>=40`. Raises `ValueError` with a sentence."""
    match = _QUALITY.fullmatch(text)
    if match is None:
        raise ValueError(f"expected a limit such as psnr_db>=40 or max_abs_diff<=0.01, not `{visible(text, 80)}`")
    if match[1] not in measures:
        near = suggest(match[1], measures)
        raise ValueError(f"no measure `{match[1]}`; {near or 'there are ' + ', '.join(measures)}")
    return QualityLimit(match[1], match[2], float(match[3]))


def merge_limits(
    limits: GateLimits | None,
    *,
    max_regression: float | None = None,
    max_memory_regression: float | None = None,
    metrics: tuple[str, ...] = (),
    identical_outputs: bool = False,
    quality: tuple[QualityLimit, ...] = (),
) -> GateLimits | None:
    """Merge the limits of a file with those of the options, which override them; None if neither gates anything.

    `max_regression` applies to `metrics`, or to `e2e_s` if that is empty.
    """
    merged = dict(limits.metrics) if limits else {}
    places = dict(limits.places) if limits else {}
    if max_regression is not None:
        for name in metrics or (DEFAULT_METRIC,):
            merged[name] = max_regression
            places.pop(name, None)
    memory = limits.memory if limits else None
    if max_memory_regression is not None:
        memory = max_memory_regression
        # The option overrides every limit of the file on memory.
        for name in [MEMORY, *(name for name in merged if name.endswith("_bytes"))]:
            merged.pop(name, None)
            places.pop(name, None)
    difference = 0.0 if identical_outputs else limits.max_abs_diff if limits else None
    names = {limit.metric for limit in quality}
    quality += tuple(limit for limit in (limits.quality if limits else ()) if limit.metric not in names)
    if not merged and difference is None and memory is None and not quality:
        return None
    return GateLimits(merged, difference, places, memory, quality)
