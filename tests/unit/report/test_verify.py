"""A verification as a page, as text, and compared with an earlier one."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from support.report_records import EVIL, VERIFY_ROWS, verify_record

from omni_cli.cli.app import run
from omni_cli.cli.report_documents import load_view
from omni_cli.records.record_file import save_record
from omni_cli.records.verify_record import Row, TokenProbability
from omni_cli.report.html.page import render_page
from omni_cli.report.renderers import to_junit, to_markdown, to_text
from omni_cli.report.verify_view import probabilities_text, verify_view


def saved(path: Path, rows: tuple[Row, ...] = VERIFY_ROWS) -> Path:
    save_record(verify_record(rows), path)
    return path


def test_the_text_has_a_line_per_row_with_its_details() -> None:
    text = to_text(verify_view(verify_record()))
    lines = text.splitlines()
    assert len(lines) == len(VERIFY_ROWS) + 3
    assert "request `text 0`, position 7; `13` (p = 0.3) instead of `12` (p = 0.31); margin 0.03" in lines[2]
    assert "PSNR 31.2 dB" in text and "repeat (without prefix cache)" in text
    assert lines[-1] == "6 rows: 3 different, 1 near tie, 1 equal, 1 not checked (12.0 s)"
    markdown = to_markdown(verify_view(verify_record()))
    assert markdown.count("\n| ") == len(VERIFY_ROWS) + 2 and "\\<script>" in markdown


def test_a_run_that_decided_nothing_is_no_passed_suite() -> None:
    unchecked = [row for row in VERIFY_ROWS if row.verdict == "not checked"]
    assert 'errors="1"' in to_junit(verify_view(verify_record(tuple(unchecked))), "x")
    assert 'errors="0"' in to_junit(verify_view(verify_record()), "x")


def test_the_page_shows_differences_in_texts_images_and_sound(tmp_path: Path) -> None:
    page = render_page([load_view(saved(tmp_path / "verify.json"))])
    assert EVIL not in page and "&lt;script&gt;alert(1)&lt;/script&gt;</del>" in page
    assert page.count('type="checkbox"') == 1 and page.count("data:image/png") == 2
    assert page.count("<audio controls") == 2
    assert "3 different, 1 near tie, 1 equal, 1 not checked" in page


def test_two_records_show_what_became_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = saved(
        tmp_path / "before.json", tuple(msgspec.structs.replace(row, verdict="equal") for row in VERIFY_ROWS[:3])
    )
    after = saved(tmp_path / "after.json", (*VERIFY_ROWS[:2], VERIFY_ROWS[2], VERIFY_ROWS[5]))
    assert run(["compare", str(before), str(after)]) == 5
    out = capsys.readouterr().out
    assert out.splitlines()[0].split()[0] == "worse" and "equal -> different" in out and "absent -> not checked" in out
    assert run(["compare", str(after), str(before)]) == 0
    assert "better" in capsys.readouterr().out
    assert run(["compare", str(before), str(before)]) == 0
    assert capsys.readouterr().out == "no verdict has changed\n"
    assert run(["compare", str(before), str(after), "--json"]) == 5
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "omni.verify-compare/1" and document["changes"][0]["is_worse"] is True
    assert run(["compare", str(before)]) == 2


def test_an_edited_record_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = saved(tmp_path / "verify.json")
    path.write_text(path.read_text().replace('"near tie"', '"equal"'))
    assert run(["report", str(path), "-o", str(tmp_path / "page.html")]) == 2
    assert run(["compare", str(path), str(path)]) == 2
    assert "verify" in capsys.readouterr().err


def test_probabilities_are_a_table_of_the_first() -> None:
    items = [
        TokenProbability(
            request="0", stage="model", position=position, token_id=5, token="a\n", engine_logprob=-1.0,
            reference_logprob=-1.1, ratio=0.9048,
        )
        for position in range(250)
    ]  # fmt: skip
    lines = probabilities_text(items).splitlines()
    assert len(lines) == 202 and "-1.100000  0.904800" in lines[1] and "and 50 more" in lines[-1]
