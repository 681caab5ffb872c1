"""`omni report` as a command: its output, its errors, and that other commands do not import it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from support.bench_records import ENVIRONMENT, pair, record
from support.html_pages import parse
from support.profile_records import small_profile

from omni_cli.cli.app import run
from omni_cli.records.record_file import save_record, with_digest


@pytest.fixture
def bench(tmp_path: Path) -> Path:
    path = tmp_path / "bench.json"
    save_record(record(*pair(blocks=8)), path)
    return path


def failure(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """stderr of a command that ends with a usage error and prints nothing."""
    assert run(["report", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("error:") == 1 and "Traceback" not in captured.err
    return captured.err


@pytest.mark.slow
def test_one_page_of_several_records(bench: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    profile, page = tmp_path / "profile.json", tmp_path / "out.html"
    save_record(small_profile(), profile)
    assert run(["report", str(bench), str(profile), "-o", str(page)]) == 0
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == (f"{page}\n", "")
    text = page.read_text(encoding="utf-8")
    assert text.lstrip().startswith("<!doctype html>") and "Benchmark" in text and "Profile" in text
    assert not list(tmp_path.glob(".omni-*"))


@pytest.mark.slow
def test_the_same_records_make_the_same_page(bench: Path, tmp_path: Path) -> None:
    pages = [tmp_path / "1.html", tmp_path / "2.html"]
    for page in pages:
        assert run(["report", str(bench), "-o", str(page)]) == 0
    assert pages[0].read_bytes() == pages[1].read_bytes()


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "is empty"),
        (b"{\"schema\": \"omni.bench/1\", \"vari", "is truncated"),
        (b"<html>", "is not JSON"),
        (b"\xff\xfe", "is not JSON"),
        (b"[1, 2]", "has no `schema`"),
        (b"{}", "has no `schema`"),
        (b'{"schema": 5}', "has no `schema`"),
        (b'{"schema": "omni.generate/1"}', "has the schema `omni.generate/1`"),
        (b'{"schema": "omni.bench/1"}', "is not a complete bench record"),
        (b'{"schema": "omni.compare/1", "a": 1}', "is not a complete comparison"),
        (b'{"schema": "omni.profile/1"}', "is not a complete profile record"),
        (b'{"schema": "omni.compare/1", "x": 1e300}', "contains numbers beyond"),
        (b'{"schema": "omni.compare/1", "x": ' + b"[" * 60 + b"]" * 60 + b"}", "is nested more than"),
        (b'{"x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "is nested too deeply"),
    ],
)  # fmt: skip
def test_files_other_than_records(
    content: bytes, expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad, page = tmp_path / "bad.json", tmp_path / "page.html"
    bad.write_bytes(content)
    page.write_text("the page of yesterday")
    message = failure(capsys, str(bad), "-o", str(page))
    assert expected in message and "bad.json" in message
    assert page.read_text() == "the page of yesterday"


@pytest.mark.slow
def test_one_bad_record_among_good_ones(bench: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad, page = tmp_path / "bad.json", tmp_path / "page.html"
    bad.write_text("{}")
    page.write_text("the page of yesterday")
    assert "bad.json" in failure(capsys, str(bench), str(bad), "-o", str(page))
    assert page.read_text() == "the page of yesterday"


def test_a_record_that_was_changed(bench: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads(bench.read_text())
    document["variants"][0]["samples"][0]["e2e_s"] *= 0.5
    bench.write_text(json.dumps(document))
    assert "was changed after it was written" in failure(capsys, str(bench), "-o", str(tmp_path / "page.html"))


def test_verdicts_that_no_omni_wrote(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = with_digest(record(*pair(blocks=8)))
    del document["digest"]
    document["gate"] = {"verdict": "excellent"}
    path = tmp_path / "record.json"
    path.write_text(json.dumps(document))
    assert "invalid enum value 'excellent' at `gate.verdict`" in failure(
        capsys, str(path), "-o", str(tmp_path / "page.html")
    )


def test_files_that_are_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = str(tmp_path / "page.html")
    assert "No such file" in failure(capsys, str(tmp_path / "none.json"), "-o", page)
    assert "is empty" in failure(capsys, str(tmp_path), "-o", page)
    assert "RECORD..." in failure(capsys)


@pytest.mark.slow
def test_targets_that_cannot_be_written(bench: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "is a folder" in failure(capsys, str(bench), "-o", str(tmp_path))
    assert "no folder" in failure(capsys, str(bench), "-o", str(tmp_path / "no/page.html"))
    content = bench.read_bytes()
    assert "would overwrite the record" in failure(capsys, str(bench), "-o", str(bench))
    assert bench.read_bytes() == content
    assert run(["report", str(bench), "-o", str(tmp_path / "page.pdf")]) == 0
    assert "gets an HTML page, whatever its name" in capsys.readouterr().err
    assert "cannot write `/proc/page.html`" in failure(capsys, str(bench), "-o", "/proc/page.html")


@pytest.mark.slow
def test_a_disk_that_is_full_leaves_nothing(bench: Path, tmp_path: Path) -> None:
    """A file of limited size simulates a full disk: the write fails in the middle."""
    page = tmp_path / "page.html"
    page.write_text("the page of yesterday")
    program = "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000));"
    program += "import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
    program += "from omni_cli.cli.app import run; sys.exit(run(sys.argv[1:]))"
    result = subprocess.run(
        [sys.executable, "-c", program, "report", str(bench), "-o", str(page)], capture_output=True, text=True
    )
    assert result.returncode == 2, result.stderr
    assert f"cannot write `{page}`: File too large" in result.stderr
    assert page.read_text() == "the page of yesterday"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bench.json", "page.html"]


BLOCKED = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == sys.argv[1]:
            raise ImportError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocker())
from omni_cli.cli.app import run
sys.exit(run(sys.argv[2:]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("library", ["jinja2", "numpy"])
def test_a_library_that_is_missing(library: str, bench: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-c", BLOCKED, library, "report", str(bench), "-o", str(tmp_path / "page.html")]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 6 and result.stdout == ""
    assert f"error: a report needs {library}, which is not installed" in result.stderr
    assert 'hint: install it with `pip install "omni-cli[report]"`' in result.stderr


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [["--help"], ["report", "--help"], ["profiles", "list"]])
def test_nothing_but_a_page_loads_what_draws_it(arguments: list[str]) -> None:
    program = (
        "import sys; from omni_cli.cli.app import run; run(sys.argv[1:]); sys.stdout.flush();"
        "sys.exit(any(name in sys.modules for name in ('jinja2', 'omni_cli.report.html.svg', 'torch')))"
    )
    result = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


@pytest.mark.slow
def test_two_bench_records_are_compared_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = pair(12, 1.3)
    for name, item, commit in (("before", first, "a1"), ("after", second, "b2")):
        changed = msgspec.structs.replace(item, name="tiny")
        save_record(record(changed, environment={**ENVIRONMENT, "code": {"commit": commit}}), tmp_path / f"{name}.json")
    page = tmp_path / "page.html"
    assert run(["report", str(tmp_path / "before.json"), str(tmp_path / "after.json"), "-o", str(page)]) == 0
    found = parse(page.read_text(encoding="utf-8"))
    comparison, *records = found.all("article")
    assert len(records) == 2
    verdict = comparison.one("div", class_="verdict bad")
    assert verdict.one("p", class_="word").text == "slower" and "after.json ran" in verdict.text
    assert "Differs only in: code.commit (a1 -> b2)." in verdict.text
    links = [link.text for link in found.one("nav").all("a")]
    assert links[0] == "slower after.json against before.json"
    assert [text.rpartition("(")[2] for text in links[1:]] == ["commit a1)", "commit b2)"]


@pytest.mark.slow
def test_records_without_a_common_variant_are_shown_side_by_side(
    bench: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other.json"
    save_record(record(*(msgspec.structs.replace(item, name=f"{item.name} 2") for item in pair(blocks=8))), other)
    assert run(["report", str(bench), str(other), "-o", str(tmp_path / "x.html")]) == 0
    assert "warning: not compared: the records have no variant in common" in capsys.readouterr().err
