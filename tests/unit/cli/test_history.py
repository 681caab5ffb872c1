"""`omni history` from the command line: files, exit codes, errors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from omni_cli.cli.app import run

EXAMPLES = Path(__file__).parents[3] / "docs" / "commands" / "examples"


@pytest.fixture
def folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """The 40 nights of the example, with a step of 25 % at the 29th."""
    path = tmp_path / "history"
    assert run(["history", "add", str(EXAMPLES / "nightly.json"), "--history", str(path), "-q"]) == 0
    capsys.readouterr()
    return path


def test_check_fails_on_a_regression_and_names_the_commits(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    entries = json.loads((EXAMPLES / "nightly.json").read_text())["entries"]["Nightly"]
    assert run(["history", "check", "--history", str(folder), "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    (change,) = document["series"][0]["changes"]
    assert change["at"] == 28 and change["good"] == entries[27]["commit"]["id"]
    assert change["bad"] == entries[28]["commit"]["id"]
    assert 1.2 < change["ci95"][0] < change["ci95"][1] < 1.3
    assert document["verdict"] == "regression"


def test_a_step_that_is_accepted_is_no_regression(folder: Path, tmp_path: Path) -> None:
    markdown = tmp_path / "check.md"
    check = ["history", "check", "--history", str(folder), "--markdown", str(markdown)]
    assert run([*check, "--since", "2026-11-01"]) == 0
    assert run([*check, "--max-regression", "40%"]) == 0
    assert run([*check, "--max-regression", "25.5%"]) == 3
    assert run([*check, "--max-regression", "10%"]) == 1
    assert "worse by" in markdown.read_text()


def test_the_first_nights_are_inconclusive(folder: Path) -> None:
    for path in sorted(folder.iterdir())[12:]:
        path.unlink()
    assert run(["history", "check", "--history", str(folder)]) == 3


@pytest.mark.slow
def test_report_draws_the_folder_and_the_document(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["history", "check", "--history", str(folder), "--json"]) == 1
    (tmp_path / "check.json").write_text(capsys.readouterr().out)
    page = tmp_path / "page.html"
    assert run(["report", str(folder), str(tmp_path / "check.json"), "-o", str(page)]) == 0
    content = page.read_text()
    assert "check: regression" in content and "(1) slower since" in content and content.count("<svg") == 4


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["check", "--history", "none"], "there is no history in `none`"),
        (["show", "--history", "empty"], "the history in `empty` is empty"),
        (["add", "none.json", "--history", "empty"], "No such file"),
        (["check", "--history", "history", "--since", "yesterday"], "`--since` is not a date: `yesterday`"),
        (["check", "--history", "history", "--max-regression", "5"], "`5` would be 500%"),
        (["check", "--history", "history", "--metric", "e2e"], "unknown metric `e2e`"),
    ],
)
def test_mistakes(
    words: list[str], message: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder.parent)
    Path("empty").mkdir()
    assert run(["history", *words]) == 2
    printed = capsys.readouterr().err
    assert message in printed and printed.count("error: ") == 1
    assert not list(Path("empty").iterdir())


def test_a_broken_file_is_named_and_nothing_is_skipped(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken = sorted(folder.iterdir())[5]
    broken.write_bytes(broken.read_bytes()[:-200])
    assert run(["history", "check", "--history", str(folder)]) == 2
    assert f"{broken}` is truncated" in capsys.readouterr().err


def test_a_changed_record_is_refused_and_nothing_is_added(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads((EXAMPLES / "before.json").read_text())
    document["variants"][0]["samples"][0]["e2e_s"] *= 2
    edited = tmp_path / "edited.json"
    edited.write_text(json.dumps(document))
    words = ["history", "add", str(EXAMPLES / "after.json"), str(edited), "--history", str(tmp_path / "history")]
    assert run(words) == 2
    assert "changed after it was written" in capsys.readouterr().err
    assert not (tmp_path / "history").exists()


def test_a_folder_that_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "file"
    file.write_text("")
    assert run(["history", "add", str(EXAMPLES / "before.json"), "--history", str(file)]) == 2
    assert "cannot write the record" in capsys.readouterr().err


@pytest.mark.slow
def test_a_night_that_failed(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads((EXAMPLES / "nightly.json").read_text())
    newest = document["entries"]["Nightly"][-1]
    newest["date"] += 24 * 3600 * 1000
    name = newest["benches"][0]["name"]
    newest["benches"][0]["value"] = 0
    document["entries"]["Nightly"] = [newest]
    path = tmp_path / "tonight.json"
    path.write_text(json.dumps(document))
    assert run(["history", "add", str(path), "--history", str(folder), "--json"]) == 0
    printed = capsys.readouterr()
    (entry,) = json.loads(printed.out)["records"]
    assert entry["failures"] == [f"variant `{name}` failed: 0 s is not a duration"]
    assert f"warning: {path}: {entry['failures'][0]}; no series uses it" in printed.err
    markdown, page = tmp_path / "check.md", tmp_path / "page.html"
    assert run(["history", "check", "--history", str(folder), "--markdown", str(markdown)]) == 6
    printed = capsys.readouterr()
    assert f"error: failed: {name}: 0 s is not a duration" in printed.err
    assert "Failed, and in no series\n  2026-" in printed.out and "Check: failed" in printed.out
    assert "### omni history: failed" in markdown.read_text() and "in no series: 2026-" in markdown.read_text()
    assert run(["history", "show", "--history", str(folder)]) == 0
    assert "Failed, and in no series" in capsys.readouterr().out
    assert run(["report", str(folder), "-o", str(page)]) == 0
    assert "Failed, and in no series" in page.read_text()


def test_a_file_is_no_folder_of_a_history(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "history").write_text("")
    words = ["history", "add", str(EXAMPLES / "nightly.json"), "--history", str(tmp_path / "history")]
    assert run(words) == 2 and "a file has the name of the folder" in capsys.readouterr().err
