"""The limits of a gate, from a small YAML file, with the positions of all mistakes, or from options."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct, field
from msgspec.structs import replace

from omni_cli.config.diagnostics import Diagnostic, SourceText, in_source_order, render_all
from omni_cli.core.errors import InputError, UsageError
from omni_cli.core.text import suggest, visible
from omni_cli.records.metrics import E2E
from omni_cli.records.results import MEASURES

if TYPE_CHECKING:
    from omni_cli.config.yaml_tree import Tree

MEMORY = "max_memory_regression"

_PERCENT = re.compile(r"\s*([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*(%?)\s*")
_MAX_LIMIT = 10.0
_QUALITY = re.compile(r"\s*([a-z][a-z_]{0,99})\s*(>=|<=)\s*(-?[0-9]{1,9}(?:\.[0-9]{0,9})?(?:e-?[0-9]{1,2})?)\s*")


class QualityLimit(Struct, frozen=True):
    """A limit on a measure of outputs that differ, such as `psnr_db>=40`."""

    metric: str
    relation: str
    value: float

    def __str__(self) -> str:
        return f"{self.metric}{self.relation}{self.value:g}"

    def allows(self, value: float) -> bool:
        return value >= self.value if self.relation == ">=" else value <= self.value


class GateLimits(Struct, frozen=True):
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
        return replace(self, metrics={**self.metrics, metric: self.memory}, places=places, memory=None)


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
        for name in metrics or (E2E,):
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


_KEYS = ("version", "description", "max_regression", "max_memory_regression", "outputs", "quality", "metrics")
_METRIC = re.compile(r"[a-z][a-z0-9_.]{0,99}")
_UNGATEABLE = {"peak_reserved_bytes": "reserved memory depends on what ran before; gate `peak_allocated_bytes`"}


class GateFileError(UsageError):
    """A gate file with mistakes; `diagnostics` holds them in source order, never empty."""

    def __init__(self, diagnostics: tuple[Diagnostic, ...]) -> None:
        self.diagnostics = in_source_order(diagnostics)
        super().__init__(render_all(self.diagnostics))


def load_gate_file(path: Path) -> GateLimits:
    """Read a gate file. Raises `InputError` if it is unreadable, `GateFileError` with every mistake in it."""
    from omni_cli.config.yaml_tree import MAX_BYTES, parse_yaml  # not needed by limits of options

    label = visible(str(path))
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
        text = content.decode("utf-8-sig")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8 text"
        raise InputError(f"cannot read the gate file `{label}`: {reason}") from error
    if len(content) > MAX_BYTES:
        raise InputError(f"`{label}` is larger than {MAX_BYTES // 1024} KiB, the maximum for a gate file")
    example = "a gate file starts with `version: 1` and names limits under `metrics:`"
    tree = parse_yaml(SourceText.of_text(label, text), text, kind="gate file", example=example)
    if tree.data is None or tree.diagnostics:
        raise GateFileError(tuple(tree.diagnostics))
    return _GateReader(tree, tree.data).read()


class _GateReader:
    """Collects limits and mistakes from the data of one file."""

    def __init__(self, tree: Tree, data: dict[str, object]) -> None:
        self.tree = tree
        self.data = data

    def read(self) -> GateLimits:
        for key in self.data:
            if key not in _KEYS:
                self._add((key,), f"unknown key `{visible(key, 80)}` in a gate file", suggest(key, _KEYS), key=True)
        if self.data.get("version") != 1:
            self._add(("version",), "expected `version: 1`")
        if not isinstance(self.data.get("description", ""), str):
            self._add(("description",), "`description` is not a string")
        general = self._limit(("max_regression",), self.data.get("max_regression"))
        metrics, places = self._metrics(general)
        memory = self._limit((MEMORY,), self.data.get(MEMORY))
        if memory is not None:
            places[MEMORY] = self._label((MEMORY,))
        difference, quality = self._outputs(), tuple(self._quality())
        if not self.tree.diagnostics and not metrics and difference is None and memory is None and not quality:
            self._add((), "the gate file limits nothing", "name a metric: `metrics: {e2e_s: 5%}`")
        if self.tree.diagnostics:
            raise GateFileError(tuple(self.tree.diagnostics))
        return GateLimits(metrics, difference, places, memory, quality)

    def _metrics(self, general: float | None) -> tuple[dict[str, float], dict[str, str]]:
        listed = self.data.get("metrics", {})
        if not isinstance(listed, dict):
            self._add(("metrics",), "`metrics` is not a mapping of metric to limit", "write `metrics: {e2e_s: 5%}`")
            return {}, {}
        limits: dict[str, float] = {}
        places: dict[str, str] = {}
        for name, value in listed.items():
            path = ("metrics", name)
            if not _METRIC.fullmatch(name) or name in _UNGATEABLE:
                hint = _UNGATEABLE.get(name, "a metric is named as in the record: e2e_s, ttft_s, peak_allocated_bytes")
                self._add(path, f"`{visible(name, 80)}` cannot be gated", hint, key=True)
                continue
            if value is None and general is None:
                self._add(path, f"`{name}` has no limit", "write one here, or `max_regression` above", key=True)
                continue
            limit = general if value is None else self._limit(path, value)
            if limit is not None:
                limits[name] = limit
                places[name] = self._label(path)
        if general is not None and "metrics" not in self.data:
            limits[E2E] = general
            places[E2E] = self._label(("max_regression",))
        return limits, places

    def _limit(self, path: tuple[str, ...], value: object) -> float | None:
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            self._add(path, f"`{visible(path[-1], 80)}` is not a percentage", "write it as 5% or 0.05")
            return None
        try:
            limit = parse_fraction(value if isinstance(value, str) else repr(value))
        except ValueError as error:
            self._add(path, str(error))
            return None
        if limit == 0 and not path[-1].endswith("_bytes") and path[-1] != MEMORY:
            self._add(path, "a limit of 0 for a time cannot be judged", "leave room for noise: write 2%")
            return None
        return limit

    def _outputs(self) -> float | None:
        value = self.data.get("outputs", "ignore")
        if value == "ignore":
            return None
        if value == "identical":
            return 0.0
        if isinstance(value, dict) and set(value) == {"max_abs_diff"}:
            difference = value["max_abs_diff"]
            is_number = isinstance(difference, int | float) and not isinstance(difference, bool)
            if is_number and 0 <= difference < math.inf:
                return float(difference)
        hint = "expected `ignore`, `identical` or `{max_abs_diff: 1e-4}`"
        self._add(("outputs",), "invalid value for `outputs`", hint)
        return None

    def _quality(self) -> Iterator[QualityLimit]:
        listed = self.data.get("quality", [])
        if not isinstance(listed, list):
            self._add(("quality",), "`quality` is not a list of limits", "write `quality: [psnr_db>=40]`")
            return
        for number, text in enumerate(listed):
            try:
                yield parse_quality(str(text), MEASURES)
            except ValueError as error:
                self._add(("quality", number), str(error))

    def _add(self, path: tuple[str | int, ...], message: str, hint: str | None = None, *, key: bool = False) -> None:
        self.tree.refuse(self.tree.key_location(path) if key else self.tree.location(path), message, hint)

    def _label(self, path: tuple[str, ...]) -> str:
        return self.tree.key_location(path).label
