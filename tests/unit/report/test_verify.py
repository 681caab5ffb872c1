"""A verification as a page, as text, and compared with an earlier one."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import numpy as np
import pytest

from omni_cli.cli.app import run
from omni_cli.cli.report_documents import load_document
from omni_cli.encoding import encode_png, encode_wav
from omni_cli.record import KeptOutput
from omni_cli.record_file import save_record
from omni_cli.report.html.page import render_page
from omni_cli.report.verify_text import probabilities_text, verify_markdown, verify_text
from omni_cli.verify_record import DifferentPair, MeanMax, Row, TokenProbability, VerifyRecord

EVIL = "<script>alert(1)</script>"
IMAGE = encode_png(np.zeros((4, 4, 3), np.uint8))
SOUND = encode_wav(np.zeros(100, np.float32), 24000)


def image(text: str) -> KeptOutput:
    return KeptOutput(name="0.image.0", kind="image", data=IMAGE, text=text)


def sound(text: str) -> KeptOutput:
    return KeptOutput(name="0.audio.0", kind="audio", data=SOUND, text=text)


ROWS = (
    Row(check="reference", stage="thinker", verdict="equal", logprob_diff=MeanMax(mean=1e-6, max=2e-5), same_top=1.0),
    Row(
        check="reference", stage="talker", verdict="near tie", request="text 0", position=7, expected="12", got="13",
        expected_probability=0.31, got_probability=0.3, margin=0.03,
    ),
    Row(
        check="streamed = whole", stage="thinker", verdict="different", request=EVIL, why="the text differs",
        pair=DifferentPair(expected_text=f"a long {EVIL} road home", got_text="a long  road home"),
    ),
    Row(
        check="reference", stage="image", verdict="different", max_abs_diff=9.0, psnr_db=31.25,
        pair=DifferentPair(expected=image("4x4"), got=image("4x4")),
    ),
    Row(
        check="repeat", stage="token2wav", verdict="different", mode="without prefix cache",
        pair=DifferentPair(expected=sound("0.1 s"), got=sound("0.2 s")),
    ),
    Row(check="seed", stage="token2wav", verdict="not checked", why="it has none"),
)  # fmt: skip


def record(rows: tuple[Row, ...] = ROWS) -> VerifyRecord:
    return VerifyRecord(
        created="2026-11-27T00:00:00Z", command=("omni", "verify"), environment={"machine": {"cpu": "a CPU"}},
        subject={"profile": "tiny-omni", "dtype": "float32"}, rows=rows, elapsed_s=12.0,
    )  # fmt: skip


def saved(path: Path, rows: tuple[Row, ...] = ROWS) -> Path:
    save_record(record(rows), path)
    return path


def test_the_text_has_a_line_per_row_with_its_details() -> None:
    text = verify_text(record())
    lines = text.splitlines()
    assert len(lines) == len(ROWS) + 3
    assert "request `text 0`, position 7; `13` (p = 0.3) instead of `12` (p = 0.31); margin 0.03" in lines[2]
    assert "PSNR 31.2 dB" in text and "repeat (without prefix cache)" in text
    assert lines[-1] == "6 rows: 3 different, 1 near tie, 1 equal, 1 not checked (12.0 s)"
    assert verify_markdown(record()).count("\n| ") == len(ROWS) + 1
    assert "&lt;script>" in verify_markdown(record())


def test_the_page_shows_differences_in_texts_images_and_sound(tmp_path: Path) -> None:
    page = render_page([load_document("r0", saved(tmp_path / "verify.json"))])
    assert EVIL not in page and "&lt;script&gt;alert(1)&lt;/script&gt;</del>" in page
    assert page.count('type="checkbox"') == 1 and page.count("data:image/png") == 2
    assert page.count("<audio controls") == 2
    assert "3 different, 1 near tie, 1 equal, 1 not checked" in page


def test_two_records_show_what_became_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = saved(tmp_path / "before.json", tuple(msgspec.structs.replace(row, verdict="equal") for row in ROWS[:3]))
    after = saved(tmp_path / "after.json", (*ROWS[:2], ROWS[2], ROWS[5]))
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
