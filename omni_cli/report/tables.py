"""Aligned columns of plain text."""

from __future__ import annotations

from collections.abc import Sequence


def aligned(rows: Sequence[Sequence[str]], *, right: frozenset[int] = frozenset(), gap: int = 2) -> list[str]:
    """Format rows of equally many cells as lines, indented by two blanks; columns in `right` are right-aligned."""
    if not rows:
        return []
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  "
        + (" " * gap)
        .join(
            cell.rjust(width) if index in right else cell.ljust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        .rstrip()
        for row in rows
    ]
