"""Read a file of any kind that has measurements: a bench record, or results of another tool."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from omni_cli.errors import InputError
from omni_cli.importers.building import Imported
from omni_cli.importers.serving import aiperf_requests, aiperf_summary, guidellm, sglang_serving, vllm_serve
from omni_cli.importers.timings import LEFT_OUT, action_data, action_values, hyperfine, pytest_benchmark
from omni_cli.record import first_problem, read_record
from omni_cli.record_file import Kind, located, read_bytes
from omni_cli.text import visible

_KIND = Kind("result", "omni", "omni bench --output-json FILE", "write it again")
_ACTION_SCRIPT = b"window.BENCHMARK_DATA ="

# The keys by which the file of a tool is recognised.
_DOCUMENTS: tuple[tuple[frozenset[str], str, Callable[[Any], list[Imported]]], ...] = (
    (frozenset({"machine_info", "benchmarks"}), "pytest-benchmark", pytest_benchmark),
    (frozenset({"lastUpdate", "entries"}), "github-action-benchmark", action_data),
    (frozenset({"model_id", "tokenizer_id", "completed"}), "vllm bench serve", vllm_serve),
    (frozenset({"random_input_len", "server_info", "completed"}), "sglang bench_serving", sglang_serving),
    (frozenset({"aiperf_version", "request_latency"}), "aiperf", aiperf_summary),
    (frozenset({"aiperf_version", "error_request_count"}), "aiperf", aiperf_summary),  # all failed
    (frozenset({"metadata", "benchmarks"}), "guidellm", guidellm),
    (frozenset({"results"}), "hyperfine", hyperfine),
)


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
        recognised = _recognised(content)
        if recognised is None:
            return []
        tool, read = recognised
        imported = [_dated(item, path) for item in read()]
    except (msgspec.ValidationError, TypeError, ValueError, LookupError, AttributeError, OverflowError) as error:
        raise InputError(f"`{label}` is not a complete file of {tool}: {located(error)}") from error
    except InputError as error:
        raise InputError(f"`{label}`: {error.message}", hint=error.hint) from error
    if not all(item.record.variants for item in imported) or not imported:
        left_out = [text for item in imported for text in item.missing if text.startswith(LEFT_OUT)]
        raise InputError(f"`{label}` of {tool} has no results", hint="; ".join(left_out) or None)
    for item in imported:
        problem = first_problem(item.record)
        if problem is not None:
            raise InputError(f"`{label}` of {tool}: {problem}")
    return imported


def load_newest(path: Path) -> Imported:
    """Return the newest record of a file, and a sentence on the others. Raises `InputError`."""
    *others, newest = load_any(path)
    if not others:
        return newest
    note = f"it has {len(others) + 1} runs, of which only the newest is used: `omni history add` takes all"
    return Imported(newest.record, (*newest.missing, note))


def _recognised(content: bytes) -> tuple[str, Callable[[], list[Imported]]] | None:
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
    if _has(document, frozenset({"metadata", "metrics"})):
        return "aiperf", partial(aiperf_requests, [document])
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


def _dated(item: Imported, path: Path) -> Imported:
    """Take the date of the file where the tool writes none."""
    if item.record.created:
        return item
    written = f"{datetime.fromtimestamp(path.stat().st_mtime, UTC):%Y-%m-%dT%H:%M:%SZ}"
    return replace(item, record=msgspec.structs.replace(item.record, created=written), undated=True)


def _with_commit(item: Imported, commit: str | None) -> Imported:
    if commit is None or "code" in item.record.environment:
        return item
    environment = {**item.record.environment, "code": {"commit": commit}}
    return replace(item, record=msgspec.structs.replace(item.record, environment=environment))
