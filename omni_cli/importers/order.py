"""The order of files without a date of their own: by dates in their names, their modification times, or their names."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec

from omni_cli.importers.building import Imported

_DATE = re.compile(
    r"(?<!\d)(20\d\d)[-_]?([01]\d)[-_]?([0-3]\d)(?:[T_-]?([0-2]\d)[:_-]?([0-5]\d)(?:[:_-]?([0-5]\d))?)?(?!\d)"
)
_APART = timedelta(minutes=1)  # files of a copy or a checkout are written within seconds


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
        record = msgspec.structs.replace(item.record, created=f"{moment:%Y-%m-%dT%H:%M:%SZ}")
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
