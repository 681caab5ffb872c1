"""The reports of a search: as text and as a page."""

from __future__ import annotations

import html
from pathlib import Path

import msgspec
import pytest
from support.report_records import EVIL, tune_record

from omni_cli.cli.report_documents import load_view
from omni_cli.core.errors import InputError
from omni_cli.records.record import Variant
from omni_cli.records.record_file import save_record
from omni_cli.records.tune_record import Round
from omni_cli.report.html.drawing import draw_chart
from omni_cli.report.html.page import render_page
from omni_cli.report.renderers import to_text
from omni_cli.report.tune_view import tune_view
from omni_cli.report.view import Trade, Trades


def test_the_text_has_the_answer_and_every_setting() -> None:
    text = to_text(tune_view(tune_record()))
    lines = text.splitlines()
    assert f"Best: execution={EVIL}" in lines
    assert "With 95% probability, no setting that was searched is better." in lines
    assert any("execution=eager" in line and "2.0" in line and "worse" in line for line in lines)
    assert "  execution=cudagraph: it needs CUDA" in lines
    assert "execution=eager, which the search started from, costs" in text
    assert "psnr_db 40" in text


def test_an_answer_that_is_not_known_yet() -> None:
    assert "is not known yet" in to_text(tune_view(tune_record(rounds=2)))


def test_an_answer_without_another_setting_that_runs() -> None:
    record = tune_record()
    standings = tuple(
        item if item.name == record.winner else msgspec.structs.replace(item, state="infeasible", problem="it does not")
        for item in record.standings
    )
    text = to_text(tune_view(msgspec.structs.replace(record, standings=standings)))
    assert "No other setting can be the answer." in text and "probability" not in text


def test_the_page_draws_both_fronts_and_escapes_names(tmp_path: Path) -> None:
    path = tmp_path / "tune.json"
    save_record(tune_record(), path)
    page = render_page([load_view(path)])
    assert EVIL not in page and "&lt;script&gt;" in page
    assert f'<p class="word">Best: execution={html.escape(EVIL)}</p>' in page
    assert "Speed against memory" in page and "Speed against psnr db" in page
    assert page.count("<svg") == 4, "each figure in two widths"


def test_columns_without_a_value_are_left_out(tmp_path: Path) -> None:
    found = tune_record()
    standings = tuple(msgspec.structs.replace(item, memory_bytes=None, outputs=None) for item in found.standings)
    path = tmp_path / "tune.json"
    save_record(msgspec.structs.replace(found, standings=standings), path)
    page = render_page([load_view(path)])
    assert ">Starts<" in page and ">Memory<" not in page and ">Outputs<" not in page


def test_names_on_the_front_do_not_overlap() -> None:
    """The second setting has nearly the cost and memory of the best one, so that its name would cover the other's."""
    points = [Trade("fast", 1.0, None, 100.0, True, True), Trade("near", 1.01, None, 99.9, True, False)]
    far = [Trade("small", 2.0, None, 10.0, True, False), Trade("level", 1.9, None, 99.8, True, False)]
    drawing = draw_chart(Trades((*points, *far), "memory"), "t")
    for sheet in (drawing.wide, drawing.narrow):
        assert "fast" in sheet and "small" in sheet and "level" in sheet and "near" not in sheet


def test_an_edited_record_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "tune.json"
    save_record(tune_record(), path)
    path.write_text(path.read_text().replace('"margin": 0.05', '"margin": 0.5'))
    with pytest.raises(InputError, match="was changed after it was written"):
        load_view(path)


@pytest.mark.parametrize(
    "change",
    [
        {"margin": 0.0},
        {"candidates": ()},
        {"rounds": (Round(control="a", batches=((Variant(name="unknown"),),)),)},
    ],
)
def test_a_record_that_no_search_writes_is_rejected(change: dict, tmp_path: Path) -> None:
    path = tmp_path / "tune.json"
    save_record(msgspec.structs.replace(tune_record(), **change), path)
    with pytest.raises(InputError):
        load_view(path)
