"""A folder of records over time: one file per record, written whole and never changed; one measurement is kept once."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from omni_cli.core.errors import InputError
from omni_cli.core.text import visible
from omni_cli.records.record import Record, load_record
from omni_cli.records.record_file import get_digest, save_record

_DIGITS = 12
_LATER_FIELDS = ("device_load", "energy")


@dataclass(frozen=True)
class Kept:
    """A record and the name of its file; `created` is its date in UTC, as in `2026-11-20T12:48:54Z`."""

    name: str
    created: str
    record: Record


def keep(record: Record, folder: Path) -> tuple[Path, bool]:
    """Write a record; return its file, and False if the folder has the same measurement already.

    Raises `InputError` for a record without a date, and `OutputError`.
    """
    created = utc(record.created, "its `created`")
    content = msgspec.to_builtins(record)
    measured = {name: content[name] for name in ("environment", "workload")}
    # A record from before a field was added keeps the name that it had.
    measured["variants"] = [
        {name: value for name, value in variant.items() if value or name not in _LATER_FIELDS}
        for variant in content["variants"]
    ]
    # Not the date: files of some tools have none, and then it is that of the file, which changes with each copy.
    suffix = f"-{get_digest(measured).partition(':')[2][:_DIGITS]}.json"
    known = sorted(folder.glob(f"*{suffix}"))
    if known:
        return known[0], False
    path = folder / f"{created.replace(':', '').replace('-', '')}{suffix}"
    save_record(record, path)
    return path, True


def read_folder(folder: Path) -> list[Kept]:
    """Return all records, the oldest first. Raises `InputError` for a missing folder, an empty one, a broken file."""
    if not folder.is_dir():
        message = f"there is no history in `{visible(str(folder))}`"
        raise InputError(message, hint=f"`omni history add RECORD --history {folder}` starts one")
    files = sorted(folder.glob("*.json"))
    if not files:
        message = f"the history in `{visible(str(folder))}` is empty"
        raise InputError(message, hint=f"`omni history add RECORD --history {folder}` adds a record")
    records = [(path.name, load_record(path)) for path in files]
    kept = [Kept(name, utc(record.created, f"`created` of `{visible(name)}`"), record) for name, record in records]
    return sorted(kept, key=lambda item: (item.created, item.name))


def utc(text: str, what: str) -> str:
    """Convert a date to UTC, in a form that sorts. Raises `InputError`, in which the date is called `what`."""
    try:
        moment = datetime.fromisoformat(text)
        return f"{moment.astimezone(UTC) if moment.tzinfo else moment:%Y-%m-%dT%H:%M:%SZ}"
    except (ValueError, OverflowError) as error:
        raise InputError(f"{what} is not a date: `{visible(text, 80)}`") from error
