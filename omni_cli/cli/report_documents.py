"""Load any kind of record for `omni report`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from omni_cli.errors import InputError
from omni_cli.history_folder import Kept, read_folder
from omni_cli.importers.building import Imported
from omni_cli.importers.files import load_foreign
from omni_cli.profile_record import SCHEMA as PROFILE_SCHEMA
from omni_cli.profile_record import load_profile_record
from omni_cli.record import SCHEMA as BENCH_SCHEMA
from omni_cli.record import load_record
from omni_cli.record_file import Kind, read_document, read_json
from omni_cli.report.html.bench_part import bench_document
from omni_cli.report.html.compare_part import compare_page_document
from omni_cli.report.html.elements import Advice, Document
from omni_cli.report.html.history_part import history_document
from omni_cli.report.html.machine import sentence
from omni_cli.report.html.profile_part import profile_page_document
from omni_cli.report.html.tune_part import tune_document_page
from omni_cli.report.html.verify_part import verify_document
from omni_cli.results import COMPARE_SCHEMA, HISTORY_SCHEMA, CompareRecord, HistoryRecord
from omni_cli.stats.history import get_history
from omni_cli.stats.verdicts import own_report
from omni_cli.text import visible
from omni_cli.tune_record import SCHEMAS as TUNE_SCHEMAS
from omni_cli.tune_record import load_tune_record
from omni_cli.verify_record import SCHEMA as VERIFY_SCHEMA
from omni_cli.verify_record import load_verify_record

_SOURCES = (
    "`omni bench --output-json FILE`, `omni profile`, `omni tune`, `omni verify --output-json FILE` and "
    "`omni compare --json`"
)
_ANY = Kind("record", "omni", "omni bench --output-json FILE", f"write it again with {_SOURCES}")
_COMPARE = Kind("comparison", COMPARE_SCHEMA, "omni compare --json", "compare again with `omni compare --json > FILE`")

_HISTORY = Kind("history", HISTORY_SCHEMA, "omni history show --json", "write it again: `omni history show --json`")

_MAX_DEPTH = 40
_MAX_NUMBER = 1e31


def load_document(name: str, path: Path) -> Document:
    """Read and check a record of any kind; `name` begins the ids of its figures in the page. Raises `InputError`."""
    if path.is_dir():
        return _get_history(name, read_folder(path), visible(str(path)))
    imported = load_foreign(path)
    if imported:
        return _imported(name, imported, visible(str(path)))
    document = read_json(path, _ANY)
    schema = document.get("schema") if isinstance(document, dict) else None
    show = _READERS.get(schema) if isinstance(schema, str) else None
    if show is None:
        what = f"has the schema `{visible(schema, 80)}`" if isinstance(schema, str) else "has no `schema`"
        hint = f"a report shows what is written by {_SOURCES}"
        raise InputError(f"`{visible(str(path))}` is not a record that a report can show: it {what}", hint=hint)
    problem = _unreasonable(document)
    if problem is not None:
        raise InputError(f"`{visible(str(path))}` is not a record of omni: it {problem}")
    return show(name, path)


def _unreasonable(value: object, depth: int = 0) -> str | None:
    """Describe the first value that arithmetic or a page cannot handle."""
    if depth > _MAX_DEPTH:
        return f"is nested more than {_MAX_DEPTH} levels deep"
    if isinstance(value, int | float):
        return None if abs(value) <= _MAX_NUMBER else f"contains numbers beyond {_MAX_NUMBER:g}"
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return next((problem for item in inner if (problem := _unreasonable(item, depth + 1))), None)


def _profile(name: str, path: Path) -> Document:
    return profile_page_document(name, load_profile_record(path), visible(str(path)))


def _bench(name: str, path: Path) -> Document:
    return bench_document(name, own_report(load_record(path)), visible(str(path)))


def _history(name: str, path: Path) -> Document:
    return history_document(name, read_document(path, HistoryRecord, _HISTORY)[1], visible(str(path)))


def _get_history(name: str, kept: Sequence[Kept], source: str) -> Document:
    return history_document(name, get_history(kept, source), source)


def _imported(name: str, imported: Sequence[Imported], source: str) -> Document:
    """Show the only record of another tool's file, or the history that the file has."""
    if len(imported) > 1:
        kept = [Kept(f"{number:06}", item.record.created, item.record) for number, item in enumerate(imported)]
        return _get_history(name, kept, source)
    (item,) = imported
    document = bench_document(name, own_report(item.record), source)
    return replace(document, advice=(*document.advice, *(Advice(sentence(text)) for text in item.missing)))


def _compare(name: str, path: Path) -> Document:
    return compare_page_document(name, read_document(path, CompareRecord, _COMPARE)[1], visible(str(path)))


def _tune(name: str, path: Path) -> Document:
    return tune_document_page(name, load_tune_record(path), visible(str(path)))


def _verify(_name: str, path: Path) -> Document:
    return verify_document(load_verify_record(path), visible(str(path)))


_READERS: dict[str, Callable[[str, Path], Document]] = {
    BENCH_SCHEMA: _bench,
    PROFILE_SCHEMA: _profile,
    COMPARE_SCHEMA: _compare,
    HISTORY_SCHEMA: _history,
    VERIFY_SCHEMA: _verify,
    **dict.fromkeys(TUNE_SCHEMAS, _tune),
}
