"""Aligned columns of plain text that fit the terminal, and the planned memory of a chain as a table."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING

from omni_cli.report.units import memory

if TYPE_CHECKING:
    from omni_cli.core.machine import PlannedMemory

_BREAK = re.compile(r"(?<=,)(?=[^\s\d])|(?<!\d) (?![^\[]*\])| (?=\[)")
"""Where a cell may go on in the next line: not in an interval, and not between a number and its unit."""


def align(rows: Sequence[Sequence[str]], *, right: frozenset[int] = frozenset(), gap: int = 2) -> list[str]:
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
        for line in zip_longest(*map(_fold, row, widths), fillvalue="")
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


def _fold(cell: str, width: int) -> list[str]:
    lines = [""]
    for part in _parts(cell):
        if len((lines[-1] + part).rstrip()) > width:
            lines.append("")
        lines[-1] += part
    return [line.rstrip() for line in lines]


def _parts(cell: str) -> list[str]:
    return _BREAK.sub(r"\g<0>\n", cell).split("\n")


_ADAPTERS = "ADAPTERS"
_HEADER = ("STAGE", "DEVICE", "WEIGHTS", _ADAPTERS, "KV CACHE", "OTHER (ESTIMATE)")


def memory_lines(stages: Iterable[PlannedMemory]) -> list[str]:
    """Return the lines of the table, with a row per rank; adapters have a column if there are any."""
    rows = [
        (
            stage.name,
            stage.device,
            memory(stage.weights_bytes) if stage.weights_bytes else "unknown",
            _size(stage.adapters_bytes, "unknown") if stage.adapters_bytes != 0 else "",
            _size(stage.kv_cache_bytes) if stage.share_bytes is None else f"the rest of {memory(stage.share_bytes)}",
            _size(stage.other_bytes) if stage.share_bytes is None else "",
        )
        for stage in stages
    ]
    shown = [index for index, name in enumerate(_HEADER) if name != _ADAPTERS or any(row[index] for row in rows)]
    lines = [[row[index] for index in shown] for row in (_HEADER, *rows)]
    return align(lines, right=frozenset(range(2, len(shown))))


def _size(num_bytes: int | None, absent: str = "") -> str:
    return absent if num_bytes is None else memory(num_bytes)
