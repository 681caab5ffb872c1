"""Whether two measurements may be compared at all: machine, versions, workload, settings, and work done."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from omni_cli.record import Record, Variant

# What is measured (omni's version and commit), and what nobody can choose (load, clocks).
EXEMPT = frozenset({"code", "conditions"})
_MAX_LISTED = 4


@dataclass(frozen=True)
class Difference:
    """A field with different values; `ABSENT` on a side that lacks it."""

    field: str
    a: Any
    b: Any


ABSENT = "absent"


def record_mismatches(a: Record, b: Record) -> tuple[Difference, ...]:
    """Fields of environment and workload that forbid a comparison."""
    found = [
        *_differences("environment", _without(a.environment, EXEMPT), _without(b.environment, EXEMPT)),
        *_differences("workload", _without(a.workload, {"fingerprint"}), _without(b.workload, {"fingerprint"})),
    ]
    if not any(item.field.startswith("workload") for item in found):
        # Only where nothing else tells: the fingerprint differs whenever anything does.
        fingerprints = a.workload.get("fingerprint", ABSENT), b.workload.get("fingerprint", ABSENT)
        if fingerprints[0] != fingerprints[1]:
            found.append(Difference("workload.fingerprint", *fingerprints))
    return tuple(found)


def code_differences(a: Record, b: Record) -> tuple[Difference, ...]:
    """What differs on purpose: version and commit of the code that was measured."""
    return tuple(_differences("code", a.environment.get("code", {}), b.environment.get("code", {})))


def settings_differences(a: Variant, b: Variant) -> tuple[Difference, ...]:
    return tuple(_differences("settings", a.settings, b.settings))


def work_mismatches(a: Variant, b: Variant) -> tuple[Difference, ...]:
    """Kinds of work of which the two did different amounts in a run.

    Runs of one variant may differ from each other (other prompts), but both variants must have had the same ones: only
    runs of equal numbers are compared, where both say which had which.
    """
    numbers = {sample.number for sample in a.samples} & {sample.number for sample in b.samples}
    numbers = numbers or {sample.number for sample in (*a.samples, *b.samples)}
    amounts_a, amounts_b = _amounts(a, numbers), _amounts(b, numbers)
    found = []
    for name in sorted(amounts_a.keys() | amounts_b.keys()):
        left, right = amounts_a.get(name, ()), amounts_b.get(name, ())
        if len(left) != len(right) or not all(map(_close, left, right)):
            found.append(Difference(f"work.{name}", _listed(left), _listed(right)))
    return tuple(found)


def split_allowed(
    found: Iterable[Difference], allowed: Iterable[str]
) -> tuple[tuple[Difference, ...], tuple[Difference, ...]]:
    """(mismatches, allowed differences); `allowed` names fields, or whole parts of a record."""
    prefixes = tuple(allowed)
    kept: list[Difference] = []
    excused: list[Difference] = []
    for item in found:
        is_allowed = any(item.field == name or item.field.startswith(f"{name}.") for name in prefixes)
        (excused if is_allowed else kept).append(item)
    return tuple(kept), tuple(excused)


def _differences(prefix: str, a: Any, b: Any) -> Iterable[Difference]:
    """The leaves in which two JSON values differ, each with its dotted path."""
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        for key in dict.fromkeys([*a, *b]):
            yield from _differences(f"{prefix}.{key}", a.get(key, ABSENT), b.get(key, ABSENT))
    elif isinstance(a, bool) != isinstance(b, bool) or a != b:
        yield Difference(prefix, a, b)


def _without(part: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    left_out = set(names)
    return {key: value for key, value in part.items() if key not in left_out}


def _amounts(variant: Variant, numbers: Collection[int | None]) -> dict[str, tuple[float, ...]]:
    amounts: dict[str, set[float]] = {}
    for sample in (item for item in variant.samples if item.number in numbers):
        for name, value in sample.work.items():
            amounts.setdefault(name, set()).add(value)
    return {name: tuple(sorted(values)) for name, values in amounts.items()}


def _close(a: float, b: float) -> bool:
    return math.isclose(a, b, rel_tol=1e-9)


def _listed(amounts: tuple[float, ...]) -> str:
    if not amounts:
        return ABSENT
    shown = [f"{amount:g}" for amount in amounts[:_MAX_LISTED]]
    return ", ".join(shown) + (", ..." if len(amounts) > _MAX_LISTED else "")
