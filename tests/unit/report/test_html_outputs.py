"""Outputs on the page: side by side with their difference, and only bytes that are images or sound."""

from __future__ import annotations

import base64
import io
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from support.bench_records import pair, record
from support.html_pages import Element, parse

from omni_cli.cli.report_documents import load_view
from omni_cli.measure.bench import outputs as kept_module
from omni_cli.measure.bench.outputs import MAX_OUTPUTS, kept_outputs
from omni_cli.records.record import RATE, KeptOutput, load_record
from omni_cli.records.record_file import save_record
from omni_cli.report import shared_parts
from omni_cli.report.html.page import render_page

GREY = np.full((32, 48, 3), 100, np.uint8)
TONE = np.sin(np.arange(4_000) / 9).astype(np.float32)


def page_with(folder: Path, *outputs: tuple[KeptOutput, ...]) -> Element:
    variants = [
        type(variant)(**{name: getattr(variant, name) for name in variant.__struct_fields__} | {"outputs": kept})
        for variant, kept in zip(pair(blocks=4), outputs, strict=True)
    ]
    path = folder / "record.json"
    save_record(record(*variants), path)
    assert [variant.outputs for variant in load_record(path).variants] == list(outputs)
    return parse(render_page([load_view(path)]))


def pixels(element: Element) -> np.ndarray:
    header, _, data = (element.attributes["src"] or "").partition(",")
    assert header == "data:image/png;base64"
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(data))))


def test_images_stand_side_by_side_with_their_difference(tmp_path: Path) -> None:
    other = GREY.copy()
    other[4, 5] = (110, 100, 100)
    first = kept_outputs({"0.image.0": GREY}, None)
    second = kept_outputs({"0.image.0": other}, {"0.image.0": GREY})
    (gallery,) = page_with(tmp_path, first, second).all("section", class_="gallery")
    ours, theirs, difference = gallery.all("img")
    np.testing.assert_array_equal(pixels(ours), GREY)
    np.testing.assert_array_equal(pixels(theirs), other)
    expected = np.zeros_like(GREY)
    expected[4, 5, 0] = 255
    np.testing.assert_array_equal(pixels(difference), expected)
    assert difference.attributes["alt"] == "difference of b, times 25.5"
    assert [each.attributes["alt"] for each in (ours, theirs)] == ["a: 48x32", "b: 48x32"]
    assert "Image of request 0" in gallery.text


def test_a_video_is_a_sheet_of_frames_and_audio_a_player(tmp_path: Path) -> None:
    video = np.stack([np.full((32, 48, 3), 10 * i, np.uint8) for i in range(20)])
    arrays: dict[str, np.ndarray] = {"0.video.0": video, "1.audio.0": TONE, f"1.audio.0{RATE}": np.array(8_000)}
    kept = kept_outputs(arrays, None)
    page = page_with(tmp_path, kept, ())
    (sheet,) = page.all("img")
    shown = pixels(sheet)
    assert shown.shape == (3 * 32, 4 * 48, 3)
    assert (shown[0, 0, 0], shown[-1, -1, 0]) == (0, 190), "the first frame and the last one"
    (player,) = page.all("audio")
    header, _, data = (player.attributes["src"] or "").partition(",")
    with wave.open(io.BytesIO(base64.b64decode(data))) as file:
        assert (header, file.getnframes(), file.getframerate()) == ("data:audio/wav;base64", 4_000, 8_000)
    assert "controls" in player.attributes and player.attributes["aria-label"] == "a: 0.50 s, 8000 Hz"


def test_what_is_kept_has_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_module, "MAX_IMAGE_BYTES", 4_000)
    monkeypatch.setattr(kept_module, "MAX_AUDIO_BYTES", 4_000)
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    many = {f"{i}.image.0": noise for i in range(MAX_OUTPUTS + 3)}
    kept = kept_outputs(many, None)
    assert len(kept) == MAX_OUTPUTS and all(len(output.data) <= 4_000 for output in kept)
    (sound,) = kept_outputs({"0.audio.0": TONE, f"0.audio.0{RATE}": np.array(1_000)}, None)
    assert len(sound.data) < 4_100 and sound.text == "4.00 s, the first 2 s, 1000 Hz"


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        ("image", b"<svg xmlns='http://www.w3.org/2000/svg'><script>alert(1)</script></svg>"),
        ("image", b""),
        ("image", b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR" + (2**20).to_bytes(4) + (2**20).to_bytes(4)),
        ("audio", b"<script>"),
    ],
)
def test_bytes_that_are_no_image_and_no_sound_are_not_shown(tmp_path: Path, kind: Any, data: bytes) -> None:
    page = page_with(tmp_path, (KeptOutput(name="0.x.0", kind=kind, data=data),), ())
    assert page.all("img") == page.all("audio") == []
    assert "not shown: the record has no valid" in page.text


def test_outputs_beyond_the_limit_of_a_page_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = kept_outputs({f"{i}.image.0": GREY for i in range(2)}, None)
    monkeypatch.setattr(shared_parts, "MAX_BYTES", 3 * len(kept[0].data))
    page = page_with(tmp_path, kept, kept)
    assert len(page.all("img")) == 2
    assert "2 more outputs would make the page larger than" in page.text
