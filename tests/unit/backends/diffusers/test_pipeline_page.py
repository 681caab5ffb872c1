"""docs/pipelines.md, which a nightly test compares with what the classes do."""

from __future__ import annotations

from pathlib import Path

from support.tiny_pipelines.page import classes, page, rows_of

PAGE = Path(__file__).parents[4] / "docs" / "pipelines.md"


def test_the_page_has_every_class_of_this_diffusers_and_its_counts_are_those_of_its_rows():
    text = PAGE.read_text()
    rows = rows_of(text)
    assert set(rows) == set(classes()) and len(rows) > 200
    assert page(rows.values()) == text, "run scripts/pipeline_table.py --write"
