"""Load any kind of record for `omni report`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from msgspec.structs import replace

from omni_cli.core.errors import InputError
from omni_cli.core.text import visible
from omni_cli.records.history_folder import Kept, read_folder
from omni_cli.records.importers.building import Imported
from omni_cli.records.importers.files import load_foreign
from omni_cli.records.profile_record import SCHEMA as PROFILE_SCHEMA
from omni_cli.records.profile_record import load_profile_record
from omni_cli.records.record import SCHEMA as BENCH_SCHEMA
from omni_cli.records.record import load_record
from omni_cli.records.record_file import Kind, read_document, read_json
from omni_cli.records.results import COMPARE_SCHEMA, HISTORY_SCHEMA, CompareRecord, HistoryRecord
from omni_cli.records.tune_record import SCHEMAS as TUNE_SCHEMAS
from omni_cli.records.tune_record import load_tune_record
from omni_cli.records.verify_record import SCHEMA as VERIFY_SCHEMA
from omni_cli.records.verify_record import load_verify_record
from omni_cli.report.bench_view import bench_view
from omni_cli.report.comparison_view import view_of_document
from omni_cli.report.history_view import history_view
from omni_cli.report.profile_view import profile_view
from omni_cli.report.tune_view import tune_view
from omni_cli.report.verify_view import verify_view
from omni_cli.report.view import View
from omni_cli.stats.history import get_history
from omni_cli.stats.verdicts import own_report

_SOURCES = (
    "`omni bench --output-json FILE`, `omni profile`, `omni tune`, `omni verify --output-json FILE` and "
    "`omni compare --json`"
)
_ANY = Kind("record", "omni", "omni bench --output-json FILE", f"write it again with {_SOURCES}")
_COMPARE = Kind("comparison", COMPARE_SCHEMA, "omni compare --json", "compare again with `omni compare --json > FILE`")

_HISTORY = Kind("history", HISTORY_SCHEMA, "omni history show --json", "write it again: `omni history show --json`")

_MAX_DEPTH = 40
_MAX_NUMBER = 1e31


def load_view(path: Path) -> View:
    """Read and check a record of any kind. Raises `InputError`."""
    return replace(_load(path), source=visible(str(path)))


def _load(path: Path) -> View:
    if path.is_dir():
        return history_view(get_history(read_folder(path), visible(str(path))))
    imported = load_foreign(path)
    if imported:
        return _view_imported(imported, visible(str(path)))
    document = read_json(path, _ANY)
    schema = document.get("schema") if isinstance(document, dict) else None
    read = _READERS.get(schema) if isinstance(schema, str) else None
    if read is None:
        what = f"has the schema `{visible(schema, 80)}`" if isinstance(schema, str) else "has no `schema`"
        hint = f"a report shows what is written by {_SOURCES}"
        raise InputError(f"`{visible(str(path))}` is not a record that a report can show: it {what}", hint=hint)
    problem = _unreasonable(document)
    if problem is not None:
        raise InputError(f"`{visible(str(path))}` is not a record of omni: it {problem}")
    return read(path)


def _unreasonable(value: object, depth: int = 0) -> str | None:
    """Describe the first value that arithmetic or a page cannot handle."""
    if depth > _MAX_DEPTH:
        return f"is nested more than {_MAX_DEPTH} levels deep"
    if isinstance(value, int | float):
        return None if abs(value) <= _MAX_NUMBER else f"contains numbers beyond {_MAX_NUMBER:g}"
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return next((problem for item in inner if (problem := _unreasonable(item, depth + 1))), None)


def _view_imported(imported: Sequence[Imported], source: str) -> View:
    """Show the only record of another tool's file, or the history that the file has."""
    if len(imported) > 1:
        kept = [Kept(f"{number:06}", item.record.created, item.record) for number, item in enumerate(imported)]
        return history_view(get_history(kept, source))
    (item,) = imported
    return bench_view(own_report(item.record), missing=item.missing)


_READERS: dict[str, Callable[[Path], View]] = {
    BENCH_SCHEMA: lambda path: bench_view(own_report(load_record(path))),
    PROFILE_SCHEMA: lambda path: profile_view(load_profile_record(path)),
    COMPARE_SCHEMA: lambda path: view_of_document(read_document(path, CompareRecord, _COMPARE)[1]),
    HISTORY_SCHEMA: lambda path: history_view(read_document(path, HistoryRecord, _HISTORY)[1]),
    VERIFY_SCHEMA: lambda path: verify_view(load_verify_record(path)),
    **dict.fromkeys(TUNE_SCHEMAS, lambda path: tune_view(load_tune_record(path))),
}
