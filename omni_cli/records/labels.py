"""Names for things that stand in one list: those that are alike carry what differs."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence

from omni_cli.core.text import visible
from omni_cli.records.record import Variant, mapping

_COMMIT_DIGITS = 10
_MOST_LETTERS = 40

Facts = Mapping[str, object]


def get_facts(environment: Facts, workload: Facts, created: str, variants: Sequence[Variant] = ()) -> Facts:
    """Return what may tell a record from others, the most telling first: settings, workload, machine, versions, commit,
    date."""
    settings = dict(variants[0].settings) if len(variants) == 1 else {}
    facts: dict[str, object] = {**_flatten(settings), **_flatten(workload)}
    for part in ("machine", "versions"):
        facts |= _flatten(environment.get(part))
    commit = mapping(environment.get("code")).get("commit")
    return {**facts, "commit": str(commit)[:_COMMIT_DIGITS] if commit else None, "of": created}


def tell_apart(names: Sequence[str], facts: Sequence[Facts]) -> list[str]:
    """Return the names, to those that are alike their values of the first facts that differ, and at last a number."""
    labels = list(names)
    for name in {name for name in names if names.count(name) > 1}:
        alike = [number for number, other in enumerate(names) if other == name]
        values: list[tuple[str, ...]] = [() for _ in alike]
        for field in dict.fromkeys(field for number in alike for field in facts[number]):
            column = [_word(field, facts[number].get(field)) for number in alike]
            more = [(*known, word) for known, word in zip(values, column, strict=True)]
            values = more if len({*more}) > len({*values}) else values
            if len({*values}) == len(alike):
                break
        for place, (number, found) in enumerate(zip(alike, values, strict=True)):
            words = [*filter(None, found), *([f"no. {place + 1}"] if values.count(found) > 1 else [])]
            labels[number] = f"{name} ({', '.join(words)})" if words else name
    return labels


def number_repeated(names: Iterable[str]) -> list[str]:
    """Return the names, with a number in those that occur again: `a`, `a (2)`."""
    taken: dict[str, None] = {}
    for name in names:
        candidates = itertools.chain([name], (f"{name} ({number})" for number in itertools.count(2)))
        taken[next(text for text in candidates if text not in taken)] = None
    return list(taken)


def _word(field: str, value: object) -> str:
    """Format `batch_size 8`; empty for an absent value, which the others' values tell apart."""
    return "" if value is None else f"{field.rpartition('.')[2]} {visible(str(value), _MOST_LETTERS)}"


def _flatten(value: object, prefix: str = "") -> dict[str, object]:
    """Return the leaves of nested mappings by their dotted names."""
    if not isinstance(value, Mapping):
        return {prefix: value} if prefix else {}
    leaves: dict[str, object] = {}
    for key, inner in value.items():
        if key != "fingerprint":  # it differs wherever a field does
            leaves |= _flatten(inner, f"{prefix}.{key}" if prefix else str(key))
    return leaves
