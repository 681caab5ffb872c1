"""Load any kind of record for `omni report`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from omni_cli.errors import InputError
from omni_cli.profile_record import SCHEMA as PROFILE_SCHEMA
from omni_cli.profile_record import load_profile_record
from omni_cli.record import SCHEMA as BENCH_SCHEMA
from omni_cli.record import load_record
from omni_cli.record_file import Kind, read_document, read_json
from omni_cli.report.html.bench_part import bench_document
from omni_cli.report.html.compare_part import compare_page_document
from omni_cli.report.html.elements import Document
from omni_cli.report.html.profile_part import profile_page_document
from omni_cli.results import COMPARE_SCHEMA, CompareRecord
from omni_cli.stats.verdicts import own_answer
from omni_cli.text import visible

_SOURCES = "`omni bench --output-json FILE`, `omni profile` and `omni compare --json`"
_ANY = Kind("record", "omni", "omni bench --output-json FILE", f"write it again with {_SOURCES}")
_COMPARE = Kind("comparison", COMPARE_SCHEMA, "omni compare --json", "compare again with `omni compare --json > FILE`")

_MAX_DEPTH = 40
_MAX_NUMBER = 1e31


def load_document(name: str, path: Path) -> Document:
    """Read and check a record of any kind; `name` begins the ids of its figures in the page. Raises `InputError`."""
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
    return bench_document(name, own_answer(load_record(path)), visible(str(path)))


def _compare(name: str, path: Path) -> Document:
    return compare_page_document(name, read_document(path, CompareRecord, _COMPARE)[1], visible(str(path)))


_READERS: dict[str, Callable[[str, Path], Document]] = {
    BENCH_SCHEMA: _bench,
    PROFILE_SCHEMA: _profile,
    COMPARE_SCHEMA: _compare,
}
