"""Read a file of any kind that has measurements: a bench record, or results of another tool."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from omni_cli.core.errors import InputError
from omni_cli.core.text import visible
from omni_cli.records.importers.building import Imported
from omni_cli.records.importers.serving import aiperf_requests, aiperf_summary, guidellm, sglang_serving, vllm_serve
from omni_cli.records.importers.timings import LEFT_OUT, action_data, action_values, hyperfine, pytest_benchmark
from omni_cli.records.record import Record, first_problem, read_record
from omni_cli.records.record_file import Kind, read_bytes, rephrase_location

_KIND = Kind("result", "omni", "omni bench --output-json FILE", "write it again")
_ACTION_SCRIPT = b"window.BENCHMARK_DATA ="

# The keys by which the file of a tool is recognised.
_DOCUMENTS: tuple[tuple[frozenset[str], str, Callable[[Any], list[Imported]]], ...] = (
    (frozenset({"metadata", "metrics"}), "aiperf", lambda document: aiperf_requests([document])),
    (frozenset({"machine_info", "benchmarks"}), "pytest-benchmark", pytest_benchmark),
    (frozenset({"lastUpdate", "entries"}), "github-action-benchmark", action_data),
    (frozenset({"model_id", "tokenizer_id", "completed"}), "vllm bench serve", vllm_serve),
    (frozenset({"random_input_len", "server_info", "completed"}), "sglang bench_serving", sglang_serving),
    (frozenset({"aiperf_version", "request_latency"}), "aiperf", aiperf_summary),
    (frozenset({"aiperf_version", "error_request_count"}), "aiperf", aiperf_summary),  # all failed
    (frozenset({"metadata", "benchmarks"}), "guidellm", guidellm),
    (frozenset({"results"}), "hyperfine", hyperfine),
)

_DATE = re.compile(
    r"(?<!\d)(20\d\d)[-_]?([01]\d)[-_]?([0-3]\d)(?:[T_-]?([0-2]\d)[:_-]?([0-5]\d)(?:[:_-]?([0-5]\d))?)?(?!\d)"
)
_APART = timedelta(minutes=1)  # files of a copy or a checkout are written within seconds


def load_any(path: Path, *, commit: str | None = None) -> list[Imported]:
    """Return the records of a file, the oldest first. Raises `InputError`.

    `commit` is the measured one, for files that do not name it.
    """
    imported = load_foreign(path)
    if imported:
        return [_with_commit(item, commit) for item in imported]
    record, edit = read_record(path)
    return [Imported(record, edit=edit)]


def load_foreign(path: Path) -> list[Imported]:
    """Return the records of another tool's file, the oldest first; empty for any other file. Raises `InputError`."""
    label = visible(str(path))
    content, tool = read_bytes(label, path, _KIND), "another tool"
    try:
        recognised = _recognise_tool(content)
        if recognised is None:
            return []
        tool, read = recognised
        imported = [_add_date(item, path) for item in read()]
        for item in imported:
            msgspec.convert(msgspec.to_builtins(item.record), Record)
    except (msgspec.ValidationError, TypeError, ValueError, LookupError, AttributeError, OverflowError) as error:
        raise InputError(f"`{label}` is not a complete file of {tool}: {rephrase_location(error)}") from error
    except InputError as error:
        raise InputError(f"`{label}`: {error.message}", hint=error.hint) from error
    if not all(item.record.variants for item in imported) or not imported:
        left_out = [text for item in imported for text in item.missing if text.startswith(LEFT_OUT)]
        raise InputError(f"`{label}` of {tool} has no results", hint="; ".join(left_out) or None)
    for item in imported:
        if problem := first_problem(item.record):
            raise InputError(f"`{label}` of {tool}: {problem}")
    return imported


def load_newest(path: Path) -> Imported:
    """Return the newest record of a file, and a sentence on the others. Raises `InputError`."""
    *others, newest = load_any(path)
    if not others:
        return newest
    note = f"it has {len(others) + 1} runs, of which only the newest is used: `omni history add` takes all"
    return Imported(newest.record, (*newest.missing, note))


def _recognise_tool(content: bytes) -> tuple[str, Callable[[], list[Imported]]] | None:
    """Return the tool that wrote the file and its reader; None for a record of omni and for anything unknown."""
    text = content.strip()
    if text.startswith(_ACTION_SCRIPT):
        text = text[len(_ACTION_SCRIPT) :].rstrip(b"; \n")
    try:
        document = json.loads(text)
    except RecursionError:
        return None
    except ValueError:
        return _lines(text)
    if isinstance(document, list) and document and _has(document[0], frozenset({"name", "value", "unit"})):
        return "github-action-benchmark", partial(action_values, document)
    return _document(document)


def _document(document: Any) -> tuple[str, Callable[[], list[Imported]]] | None:
    if not isinstance(document, dict) or "schema" in document:
        return None
    for keys, tool, read in _DOCUMENTS:
        if _has(document, keys):
            return tool, partial(read, document)
    return None


def _lines(text: bytes) -> tuple[str, Callable[[], list[Imported]]] | None:
    """Recognise files with one document per line. Raises `InputError` for a broken line after those of a tool."""
    documents: list[Any] = []
    for number, line in enumerate(text.splitlines(), start=1):
        try:
            documents += [json.loads(line)] if line.strip() else []
        except (ValueError, RecursionError) as error:
            if documents and _document(documents[0]) is not None:
                raise InputError(f"line {number} is not JSON", hint="is the file truncated? write it again") from error
            return None
    if documents and all(_has(item, frozenset({"metadata", "metrics"})) for item in documents):
        return "aiperf", partial(aiperf_requests, documents)
    runs = [_document(item) for item in documents]
    if not runs or None in runs:
        return None
    return next(run[0] for run in runs if run), lambda: [item for run in runs if run for item in run[1]()]


def _has(document: Any, keys: frozenset[str]) -> bool:
    return isinstance(document, dict) and keys <= document.keys()


def _add_date(item: Imported, path: Path) -> Imported:
    """Take the date of the file where the tool writes none."""
    if item.record.created:
        return item
    written = f"{datetime.fromtimestamp(path.stat().st_mtime, UTC):%Y-%m-%dT%H:%M:%SZ}"
    return replace(item, record=replace(item.record, created=written), undated=True)


def _with_commit(item: Imported, commit: str | None) -> Imported:
    if commit is None or "code" in item.record.environment:
        return item
    environment = {**item.record.environment, "code": {"commit": commit}}
    return replace(item, record=replace(item.record, environment=environment))


def in_order(files: Sequence[tuple[Path, Imported]]) -> tuple[list[tuple[Path, Imported]], str | None]:
    """Date the records of undated files so that they keep their order; return a sentence if that is a guess.

    Several records of one file are in the order of their lines.
    """
    undated = [number for number, (_, item) in enumerate(files) if item.undated]
    paths = {files[number][0]: datetime.fromisoformat(files[number][1].record.created) for number in undated}
    named = {path: _date_in(path.stem) for path in paths}
    if all(named.values()):
        moments, guess = {path: moment for path, moment in named.items() if moment}, None
    else:
        moments, guess = _of_files(paths)
    dated, taken = list(files), set[datetime]()
    for number in undated:
        path, item = files[number]
        moment = moments[path]
        while moment in taken:
            moment += timedelta(seconds=1)
        taken.add(moment)
        record = replace(item.record, created=f"{moment:%Y-%m-%dT%H:%M:%SZ}")
        dated[number] = (path, replace(item, record=record))
    return dated, guess


def _of_files(written: dict[Path, datetime]) -> tuple[dict[Path, datetime], str | None]:
    """Return the modification times, or seconds in the order of the names if these are too close to tell."""
    times = sorted(written.values())
    if all(later - earlier >= _APART for earlier, later in itertools.pairwise(times)):
        return written, None
    by_name = sorted(written, key=lambda path: [int(p) if p.isdigit() else p for p in re.split(r"(\d+)", str(path))])
    guess = (
        f"{len(written)} files have no date and were written within seconds of each other: they are taken in the order "
        "of their names; a date in each name, such as 2026-11-20.json, decides"
    )
    return {path: times[0] + timedelta(seconds=number) for number, path in enumerate(by_name)}, guess


def _date_in(name: str) -> datetime | None:
    found = _DATE.search(name)
    try:
        year, month, day, hour, minute, second = map(int, found.groups(default="0")) if found else (0,) * 6
        return datetime(year, month, day, hour, minute, second, tzinfo=UTC)
    except ValueError:
        return None
