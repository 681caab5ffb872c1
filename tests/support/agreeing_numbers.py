"""Ratios and percentages beside two values, in any printed text: which of them do not follow from these."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator

_UNITS = {
    "s": 1.0, "ms": 1e-3, "us": 1e-6, "GiB": 2.0**30, "MiB": 2.0**20, "kJ": 1e3, "J": 1.0, "mJ": 1e-3, "%": 0.01,
    "/s": 1.0, "": 1.0,
}  # fmt: skip
_NUMBER = r"(-?[\d,]*\d(?:\.\d+)?)"
_VALUE = re.compile(_NUMBER + r" ?(s|ms|us|GiB|MiB|kJ|J|mJ|/s|%|)")
_AS = re.compile(r".* \(as (.*)\)")
_CHANGE = re.compile(r"([-+][\d.]+)%(?: \[|,|$)")
_RATIO = re.compile(r"(\d+\.\d+)(?: [\[(]|$)")

Range = tuple[float, float]


def find_wrong(text: str) -> list[str]:
    """Return the lines in which a ratio or a change does not follow from the two values before it."""
    return [line for line in text.splitlines() if any(not _agrees(*found) for found in _triples(line))]


def count_triples(text: str) -> int:
    return sum(1 for line in text.splitlines() for _ in _triples(line))


def _triples(line: str) -> Iterator[tuple[Range, Range, Range]]:
    """Yield two values and what is said of them: b over a, as far as their digits tell."""
    line = re.sub(r" -> |(?<=[\w%]), (?=[-+]\d)|\s*\|\s*", "  ", html.unescape(line))
    cells = [cell.strip("`* ") for cell in re.split(r"\s{2,}", line)]
    for first, second, third in zip(cells, cells[1:], cells[2:], strict=False):
        a, b, said = _value(first), _value(second), _said(third)
        if a is not None and b is not None and said is not None:
            yield a, b, said


def _agrees(a: Range, b: Range, said: Range) -> bool:
    slack = 1e-9
    return b[0] <= a[1] * said[1] + slack and b[1] >= a[0] * said[0] - slack


def _value(cell: str) -> Range | None:
    if shown := _AS.fullmatch(cell):
        cell = shown[1]
    found = _VALUE.fullmatch(cell)
    if not found or not (found[2] or shown):
        return None  # of numbers without a unit, nothing tells that they are values
    return _range(found[1], _UNITS[found[2]])


def _said(cell: str) -> Range | None:
    if found := _CHANGE.match(cell):
        low, high = _range(found[1], 0.01)
        return 1 + low, 1 + high
    found = _RATIO.match(cell)
    return _range(found[1], 1.0) if found else None


def _range(digits: str, scale: float) -> Range:
    half = 0.5 * 10.0 ** -len(digits.partition(".")[2])
    value = float(digits.replace(",", ""))
    return scale * (value - half), scale * (value + half)
