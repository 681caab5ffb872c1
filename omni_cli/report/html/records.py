"""Any record that can be shown, from its file to its document."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from omni_cli.config.diagnostics import visible
from omni_cli.errors import InputError
from omni_cli.record import SCHEMA as BENCH_SCHEMA
from omni_cli.record import load_record
from omni_cli.record_file import Kind, read_document, read_schema
from omni_cli.report.bench_json import COMPARE_SCHEMA
from omni_cli.report.html.bench_part import bench_document
from omni_cli.report.html.compare_part import compare_page_document
from omni_cli.report.html.elements import Document
from omni_cli.report.html.stored import CompareDocument

_SOURCES = "`omni bench --output-json FILE`, `omni profile` and `omni compare --json`"
_ANY = Kind("record", "omni", "omni bench --output-json FILE", f"make it again with {_SOURCES}")
_COMPARE = Kind("comparison", COMPARE_SCHEMA, "omni compare --json", "compare again with `omni compare --json > FILE`")


def load_document(name: str, path: Path) -> Document:
    """Read and check a record of any kind; `name` begins the ids of its figures in the page. Raises `InputError`."""
    schema = read_schema(path, _ANY)
    show = _READERS.get(schema) if isinstance(schema, str) else None
    if show is None:
        what = f"has the schema `{visible(schema, 80)}`" if isinstance(schema, str) else "has no `schema`"
        hint = f"a report shows what is written by {_SOURCES}"
        raise InputError(f"`{visible(str(path))}` is no record that a report can show: it {what}", hint=hint)
    return show(name, path)


def _bench(name: str, path: Path) -> Document:
    return bench_document(name, load_record(path), visible(path.name))


def _compare(name: str, path: Path) -> Document:
    return compare_page_document(name, read_document(path, CompareDocument, _COMPARE)[1], visible(path.name))


_READERS: dict[str, Callable[[str, Path], Document]] = {BENCH_SCHEMA: _bench, COMPARE_SCHEMA: _compare}
