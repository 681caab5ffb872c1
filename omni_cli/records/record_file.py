"""Records on the disk: JSON documents with a schema's name and a digest, written whole and read as untrusted."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from omni_cli.core.errors import InputError, OutputError
from omni_cli.core.files import reason_of, write_whole
from omni_cli.core.text import visible

MAX_BYTES = 256 * 2**20

Struct = TypeVar("Struct", bound=msgspec.Struct)


class Kind(msgspec.Struct, frozen=True):
    """A kind of record: its name in messages, its schema (`omni.bench/1`), the command that writes it, and the hint if
    it is broken. `renamed` maps each earlier schema, whose records can still be read, to the new names of its keys."""

    name: str
    schema: str
    source: str
    again: str
    renamed: Mapping[str, Mapping[str, str]] = msgspec.field(default_factory=dict)


def utc_now() -> str:
    """Return the time for a record's `created`, as in `2026-11-20T12:48:54Z`."""
    return f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"


def get_digest(value: object) -> str:
    """Return `sha256:...` of plain JSON types, independent of the order of keys."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()


def with_digest(record: msgspec.Struct) -> dict[str, object]:
    """Return a record that has a `digest` as plain JSON types, with the digest of everything else in it."""
    document = msgspec.to_builtins(record)
    document.pop("digest")
    return {**document, "digest": get_digest(document)}


def save_record(record: msgspec.Struct, path: Path) -> None:
    """Write a record with its digest, whole or not at all. Raises `OutputError`."""
    content = msgspec.json.format(msgspec.json.encode(with_digest(record)), indent=2) + b"\n"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, content)
    except (OSError, ValueError) as error:
        raise OutputError(f"cannot write the record `{path}`: {reason_of(error)}") from error


def read_document(path: Path, struct: type[Struct], kind: Kind) -> tuple[dict[str, Any], Struct]:
    """Return a file's document and its record. Raises `InputError`: unreadable, truncated, foreign or incomplete."""
    label = visible(str(path))
    document = _read_json(label, read_bytes(label, path, kind), kind)
    _check_schema(label, document, kind)
    names = kind.renamed.get(document["schema"])
    try:
        current = document if names is None else {**_with_keys(document, names), "schema": kind.schema}
        return document, msgspec.convert(current, struct)
    except (msgspec.ValidationError, RecursionError) as error:
        raise InputError(
            f"`{label}` is not a complete {kind.name}: {rephrase_location(error)}", hint=kind.again
        ) from error


def load_checked(
    path: Path, struct: type[Struct], kind: Kind, first_problem: Callable[[Struct], str | None] = lambda _record: None
) -> Struct:
    """Return a file's record. Raises `InputError` as `read_document` does, and for one that was edited or has a
    problem."""
    document, record = read_document(path, struct, kind)
    problem = digest_problem(document) or first_problem(record)
    if problem is not None:
        raise InputError(f"`{visible(str(path))}`: {problem}", hint=kind.again)
    return record


def read_json(path: Path, kind: Kind) -> Any:
    """Return the JSON content of a file. Raises `InputError`: unreadable, truncated or not JSON."""
    label = visible(str(path))
    return _read_json(label, read_bytes(label, path, kind), kind)


def digest_problem(document: dict[str, object]) -> str | None:
    """Return a sentence if a document was changed after it was written; one without a digest is trusted."""
    content = {key: value for key, value in document.items() if key != "digest"}
    if document.get("digest") is not None and document["digest"] != get_digest(content):
        return "the record was changed after it was written: its content does not fit its digest"
    return None


def read_bytes(label: str, path: Path, kind: Kind) -> bytes:
    """Return the content of a file. Raises `InputError`: unreadable, empty or larger than `MAX_BYTES`."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read the record `{label}`: {reason_of(error)}") from error
    if len(content) > MAX_BYTES:
        raise InputError(f"`{label}` is larger than {MAX_BYTES // 2**20} MiB, the maximum for a {kind.name}")
    if not content.strip():
        raise InputError(f"`{label}` is empty", hint=kind.again)
    return content


def _read_json(label: str, content: bytes, kind: Kind) -> Any:
    try:
        return msgspec.json.decode(content)
    except msgspec.DecodeError as error:
        # A truncated number is reported as malformed, at the position where the text ends.
        ends_in_number = re.search(r"invalid number \(byte (\d+)\)", str(error))
        if "truncated" in str(error) or (ends_in_number and int(ends_in_number[1]) >= len(content) - 1):
            message = f"`{label}` is truncated after {len(content)} bytes"
            raise InputError(message, hint=kind.again) from error
        raise InputError(f"`{label}` is not JSON: {visible(str(error))}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"`{label}` is not JSON: byte {error.start} is not UTF-8 text") from error
    except RecursionError as error:
        raise InputError(f"`{label}` is nested too deeply to be a {kind.name}") from error


def _with_keys(value: Any, names: Mapping[str, str]) -> Any:
    """Return JSON types with other keys, at all levels."""
    if isinstance(value, dict):
        return {names.get(key, key): _with_keys(item, names) for key, item in value.items()}
    return [_with_keys(item, names) for item in value] if isinstance(value, list) else value


def _check_schema(label: str, document: object, kind: Kind) -> None:
    schema = document.get("schema") if isinstance(document, dict) else None
    hint = f"records are written by `{kind.source}`"
    if not isinstance(schema, str):
        raise InputError(f"`{label}` is JSON, but not a {kind.name}: it has no `schema`", hint=hint)
    if schema == kind.schema or schema in kind.renamed:
        return
    if schema.startswith(kind.schema.partition("/")[0] + "/"):
        hint = "it was written by another version of omni: measure again with this version, or compare with that one"
    raise InputError(f"`{label}` has the schema `{visible(schema, 80)}`; a {kind.name} has `{kind.schema}`", hint=hint)


def rephrase_location(error: Exception) -> str:
    """Rephrase msgspec's message with its `$.variants[0].name`."""
    message, _, path = str(error).partition(" - at ")
    message = message[:1].lower() + message[1:]
    where = path.strip("`").removeprefix("$").removeprefix(".")
    return visible(f"{message} at `{where}`" if where else message)
