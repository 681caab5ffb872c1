"""Every output of every kind of record, word by word; `UPDATE_GOLDEN=1 pytest` on this file writes them again."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.bench_records import pair, record
from support.html_pages import Element, parse
from support.profile_records import small_profile
from support.report_records import bench_record, server_record, tune_record, verify_record

from omni_cli.cli.app import run
from omni_cli.cli.report_documents import load_view
from omni_cli.config.gate_limits import GateLimits
from omni_cli.records.record_file import save_record
from omni_cli.report.bench_view import LABELS, bench_view
from omni_cli.report.comparison_view import comparison_view
from omni_cli.report.html.page import render_page
from omni_cli.report.profile_view import profile_view
from omni_cli.report.renderers import to_junit, to_markdown, to_text
from omni_cli.report.tune_view import tune_view
from omni_cli.report.verify_view import verify_view
from omni_cli.stats.verdicts import ComparisonSpec, compare_within, own_report

pytestmark = pytest.mark.slow

GOLDEN = Path(__file__).parents[2] / "data" / "golden" / "reports.txt"
NIGHTLY = Path(__file__).parents[3] / "docs" / "commands" / "examples" / "nightly.json"
LIMITS = GateLimits({"e2e_s": 0.05, "peak_allocated_bytes": 0.3})


def bench_outputs(name: str, folder: Path) -> Iterator[tuple[str, str]]:
    found = {"bench": bench_record, "loadtest": server_record}[name]()
    yield "terminal", to_text(bench_view(own_report(msgspec.structs.replace(found, gate=None)), 3))
    yield "page", page_text(found, folder)


def gate_outputs(folder: Path) -> Iterator[tuple[str, str]]:
    cases = {
        "gate": compare_within(bench_record(), ComparisonSpec(limits=LIMITS)),
        "no gate": compare_within(record(*pair(12, 0.8, cv=0.01))),
    }
    for name, result in cases.items():
        view = comparison_view(result, LABELS)
        yield f"{name}: terminal", to_text(view)
        yield f"{name}: Markdown", to_markdown(view)
        yield f"{name}: JUnit", to_junit(view, "omni bench")


def compare_outputs(folder: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[tuple[str, str]]:
    paths = [folder / "a.json", folder / "b.json", folder / "c.json"]
    first, second = pair(12, 1.2, cv=0.01)
    items = (first, second, first)
    for path, item, size in zip(paths, items, (1, 1, 8), strict=True):
        save_record(record(msgspec.structs.replace(item, name="tiny"), batch_size=size), path)
    for name, other in (("slower", paths[1]), ("not comparable", paths[2])):
        files = ["--markdown", str(folder / "x.md"), "--junit", str(folder / "x.xml")]
        words = ["compare", str(paths[0]), str(other), "--max-regression", "5%"]
        run([*words, *files])
        printed = capsys.readouterr()
        yield f"{name}: terminal", printed.out + "----\n" + printed.err
        yield f"{name}: Markdown", (folder / "x.md").read_text()
        yield f"{name}: JUnit", (folder / "x.xml").read_text()
        run([*words, "--json"])
        (folder / "x.json").write_text(capsys.readouterr().out)
        yield f"{name}: page", "\n".join(shown_lines(parse(render_page([load_view(folder / "x.json")]))))


def history_outputs(folder: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[tuple[str, str]]:
    kept = str(folder / "history")
    assert run(["history", "add", str(NIGHTLY), "--history", kept, "-q"]) == 0
    capsys.readouterr()
    assert run(["history", "check", "--history", kept, "--markdown", str(folder / "x.md")]) == 1
    printed = capsys.readouterr()
    yield "terminal", printed.out + "----\n" + printed.err
    yield "Markdown", (folder / "x.md").read_text()
    yield "page", "\n".join(shown_lines(parse(render_page([load_view(folder / "history")]))))


def other_outputs(name: str, folder: Path) -> Iterator[tuple[str, str]]:
    makers: dict[str, Any] = {"profile": small_profile, "tune": tune_record, "verify": verify_record}
    found = makers[name]()
    views: dict[str, Any] = {
        "profile": profile_view,
        "tune": tune_view,
        "verify": lambda record: verify_view(record, strict=True),
    }
    view = views[name](found)
    yield "terminal", to_text(view)
    if name == "verify":
        yield "Markdown", to_markdown(view)
        yield "JUnit", to_junit(view, view.title)
    yield "page", page_text(found, folder)


def page_text(found: msgspec.Struct, folder: Path) -> str:
    path = folder / "record.json"
    save_record(found, path)
    return "\n".join(shown_lines(parse(render_page([load_view(path)]))))


def shown_lines(element: Element) -> Iterator[str]:
    """A page's text, a line for each row of a table and each block of text, without drawings."""
    if element.tag in ("svg", "style", "head"):
        return
    cells = [child.text for child in element.children if child.tag in ("th", "td", "dt", "dd")]
    if cells:
        yield f"{element.tag} {' | '.join(cells)}"
    elif element.tag in ("h1", "h2", "h3", "h4", "p", "caption", "summary", "pre", "li", "label") and element.text:
        yield f"{element.tag} {element.text}"
    else:
        for child in element.children:
            yield from shown_lines(child)


def test_every_output_is_as_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.chdir(tmp_path)
    folder = Path()
    outputs = {
        "bench": bench_outputs("bench", folder),
        "loadtest": bench_outputs("loadtest", folder),
        "comparison": gate_outputs(folder),
        "compare": compare_outputs(folder, capsys),
        "history": history_outputs(folder, capsys),
        **{name: other_outputs(name, folder) for name in ("profile", "tune", "verify")},
    }
    lines = []
    for record_name, items in outputs.items():
        for name, text in items:
            lines += [f"======== {record_name}, {name}", *text.rstrip().split("\n")]
    if os.environ.get("UPDATE_GOLDEN"):
        GOLDEN.parent.mkdir(exist_ok=True)
        GOLDEN.write_text("\n".join(lines) + "\n")
    expected = GOLDEN.read_text().splitlines()
    assert lines == expected, "\n".join(difflib.unified_diff(expected, lines, "before", "now", lineterm="", n=1))
