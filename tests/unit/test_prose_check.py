"""`scripts/prose_check.py`: what it reports, what it leaves alone, and that the tree has no findings."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_spec = importlib.util.spec_from_file_location("prose_check", ROOT / "scripts" / "prose_check.py")
assert _spec is not None and _spec.loader is not None
prose_check = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(prose_check)


@pytest.mark.parametrize(
    ("path", "source", "expected"),
    [
        ("a.md", "Fine.\nTwo pictures.\n", [(2, "pictures: use image")]),
        ("a.md", "A hang.\n", [(1, "A hang: use considered hung")]),
        ("a.md", "```\nin turns\n```\nin turns\n", [(4, "in turns: use interleaved, alternate")]),
        ("a.md", "Workers hang; 8 requests per client.\n", []),
        ("a.md", "A hang of paintings. <!-- prose: ok -->\n", []),
        ("a.md", "8 requests a second\n", [(1, "requests a second: use per")]),
        ("a.md", "All but for the last; not A but B.\n", [(1, "but for the: use except")]),
        ("a.md", "one row a stage\n", [(1, "row a stage: use per")]),
        ("a.py", "picture = 1  # in turns\n", [(1, "in turns: use interleaved, alternate")]),
        ("a.py", "x = f'{y} is told {z}'\n", [(1, "is told: use is listed, reports")]),
        ("a.py", "def test_take_turns(): ...\n", [(1, "take turns: use interleaved, alternate")]),
        ("a.py", '"""Whether it runs."""\n', [(1, "docstring opens with Whether: use a verb or a noun phrase")]),
        ("a.py", 'x = """\nmend\n"""\n', [(2, "mend: use fix")]),
        ("a.py", "class Unwanted: ...\n", [(1, f"Unwanted: use {prose_check._RENAMED}")]),
        ("a.py", "# unwanted; that is None\n", []),
        ("a.md", "A second heat.\n", [(1, "heat: use batch, round")]),
        ("a.md", "The counters are in `samples[].engagement`.\n", []),
    ],
)
def test_findings(path: str, source: str, expected: list[tuple[int, str]]) -> None:
    assert list(prose_check.findings(path, source)) == expected


def test_a_finding_names_the_file_and_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(prose_check, "ROOT", tmp_path)
    (tmp_path / "a.md").write_text("fine\n")
    assert prose_check.main(["a.md"]) == 0
    (tmp_path / "a.md").write_text("\npicture\n")
    assert prose_check.main(["a.md"]) == 1
    assert capsys.readouterr().out == "a.md:2: picture: use image\n"
