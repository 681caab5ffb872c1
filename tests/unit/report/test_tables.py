"""Tables that fit the terminal: cells go on below, numbers and their units stay whole."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from support.bench_records import ABBA, record, variant

from omni_cli.report.comparison_view import comparison_view
from omni_cli.report.comparison_words import Labels
from omni_cli.report.renderers import to_text
from omni_cli.report.tables import align
from omni_cli.stats.verdicts import compare_within

ROWS = [
    ("Metric", "A", "B / A [95% CI]", "Verdict"),
    ("Latency", "4.61 s", "0.872 [0.861, 0.893]", "faster"),
    ("Latency of a denoising step", "461.2 ms", "1.0072 [0.9861, 1.0093]", "no difference"),
]
WHOLE = ["4.61 s", "461.2 ms", "[0.861, 0.893]", "[0.9861, 1.0093]", "difference"]


def narrow(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    """Make stdout a terminal of that width."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", str(columns))


@pytest.mark.parametrize("columns", [40, 56, 64, 72, 200])
def test_rows_fit_and_numbers_stay_whole(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    narrow(monkeypatch, columns)
    lines = align(ROWS, right=frozenset({1}))
    text = "\n".join(lines)
    assert all(part in text for part in WHOLE)
    assert max(map(len, lines)) <= max(columns, 52) and (len(lines) == 3) == (columns > 79)
    assert sorted(" ".join(lines).split()) == sorted(" ".join(map(" ".join, ROWS)).split())


def test_what_cannot_be_broken_is_wider_than_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    narrow(monkeypatch, 20)
    assert align([("/a/long/folder/of/models", "x y")]) == ["  /a/long/folder/of/models  x", " " * 28 + "y"]


def test_a_pipe_gets_one_line_per_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    assert len(align([("word " * 30, "2")])) == 1


def test_long_names_of_variants_stand_in_the_heading_only() -> None:
    names = [f"talker.execution={mode},talker.output_copy=async" for mode in ("eager", "cudagraph")]
    times = np.array([[0.2, 0.21]] * 5)
    document = record(*(variant(name, times, slots=ABBA[i]) for i, name in enumerate(names)))
    heading, head, *_ = to_text(comparison_view(compare_within(document), Labels("a", "b"))).splitlines()
    assert heading.startswith(f"{names[1]} (B) against {names[0]} (A)") and head.split()[:3] == ["Metric", "A", "B"]
