"""Aligned columns of plain text that fit the terminal."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Sequence
from itertools import zip_longest

_BREAK = re.compile(r"(?<=,)(?=[^\s\d])|(?<!\d) (?![^\[]*\])| (?=\[)")
"""Where a cell may go on in the next line: not in an interval, and not between a number and its unit."""


def aligned(rows: Sequence[Sequence[str]], *, right: frozenset[int] = frozenset(), gap: int = 2) -> list[str]:
    """Format rows of equally many cells as lines, indented by two blanks; columns in `right` are right-aligned.

    In a terminal that is too narrow, long cells go on in the lines below; a pipe gets one line per row.
    """
    if not rows:
        return []
    widths = _widths(list(zip(*rows, strict=True)), gap)
    return [
        "  "
        + (" " * gap)
        .join(
            cell.rjust(width) if index in right else cell.ljust(width)
            for index, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        .rstrip()
        for row in rows
        for line in zip_longest(*map(_folded, row, widths), fillvalue="")
    ]


def _widths(columns: Sequence[Sequence[str]], gap: int) -> list[int]:
    """Take from the widest column that can still be narrower until the lines fit."""
    widths = [max(map(len, column)) for column in columns]
    if not sys.stdout.isatty():
        return widths
    least = [max(len(part.rstrip()) for cell in column for part in _parts(cell)) for column in columns]
    for _ in range(2 + sum(widths) + gap * (len(widths) - 1) - shutil.get_terminal_size().columns):
        narrower = [index for index, width in enumerate(widths) if width > least[index]]
        if not narrower:
            break
        widths[max(narrower, key=widths.__getitem__)] -= 1
    return widths


def _folded(cell: str, width: int) -> list[str]:
    lines = [""]
    for part in _parts(cell):
        if len((lines[-1] + part).rstrip()) > width:
            lines.append("")
        lines[-1] += part
    return [line.rstrip() for line in lines]


def _parts(cell: str) -> list[str]:
    return _BREAK.sub(r"\g<0>\n", cell).split("\n")
