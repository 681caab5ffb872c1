"""From the values in another tool's file to a record."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from omni_cli.record import E2E, Failures, Record, Sample, Variant, workload_fingerprint

MOST_BLOCKS = 200
REQUEST_BLOCKS = 20

Row = dict[str, float | None]
"""A request: `e2e_s` (None if it failed), `ttft_s`, `tpot_s`, `input_tokens`, `output_tokens`."""

_TOKENS = ("input_tokens", "output_tokens")


@dataclass(frozen=True)
class Imported:
    """A record, and sentences on what its file lacks. `edit` is one on a change that contradicts an omni record."""

    record: Record
    missing: tuple[str, ...] = ()
    edit: str | None = None


def record_of(
    tool: str,
    created: str,
    variants: Sequence[Variant],
    settings: Mapping[str, Any],
    *,
    machine: Mapping[str, Any] | None = None,
    versions: Mapping[str, str] | None = None,
    commit: str | None = None,
) -> Record:
    """Make a record. Everything in `settings`, `machine` and `versions` has to be equal in comparable ones."""
    workload: dict[str, object] = {"kind": "imported", "tool": tool, "settings": dict(settings)}
    environment: dict[str, Any] = {"machine": dict(machine or {}), "versions": dict(versions or {})}
    if commit is not None:
        environment["code"] = {"commit": commit}
    return Record(
        created=created,
        environment=environment,
        workload={**workload, "fingerprint": workload_fingerprint(workload)},
        variants=tuple(variants),
    )


def timed_variant(name: str, times_s: Sequence[float]) -> Variant:
    """Make a variant of runs in the order in which they ran: a block each, or the medians of neighbours if many."""
    medians = [statistics.median(part) for part in _parts(times_s, MOST_BLOCKS)]
    return Variant(name=name, samples=tuple(_sample(number, value) for number, value in enumerate(medians)))


def request_variant(name: str, rows: Sequence[Row]) -> Variant | None:
    """Make a variant of requests in the order in which they were sent, in blocks of neighbours; None if all failed."""
    answered = sum(row[E2E] is not None for row in rows)
    parts: list[Sequence[Row]] = []
    for blocks in range(min(REQUEST_BLOCKS, answered), 0, -1):
        parts = list(_parts(rows, blocks))
        if all(any(row[E2E] is not None for row in part) for part in parts):
            break
    samples = tuple(_window(number, part) for number, part in enumerate(parts))
    return Variant(name=name, samples=samples) if samples else None


def summary_variant(name: str, value_s: float, metrics: Mapping[str, float]) -> Variant:
    """Make a variant of a file that has one value for a whole run."""
    return Variant(name=name, samples=(_sample(0, value_s, dict(metrics)),))


def _sample(number: int, value_s: float, metrics: dict[str, float] | None = None) -> Sample:
    return Sample(block=number, position=0, number=number, e2e_s=value_s, metrics=metrics or {})


def _window(number: int, rows: Sequence[Row]) -> Sample:
    columns = {name: [row.get(name) for row in rows] for name in (E2E, "ttft_s", "tpot_s")}
    medians = {name: statistics.median(values) for name, column in columns.items() if (values := _known(column))}
    failed = sum(value is None for value in columns[E2E])
    work = {name: float(sum(_known([row.get(name) for row in rows]))) for name in _TOKENS}
    return Sample(
        block=number,
        position=0,
        number=number,
        e2e_s=medians.pop(E2E),
        metrics=medians,
        work={"requests": float(len(rows) - failed), **{name: amount for name, amount in work.items() if amount}},
        requests={name: tuple(column) for name, column in columns.items() if _known(column)},
        failures={"failed": Failures(count=failed, first="the file has no answer")} if failed else {},
    )


def _known(values: Sequence[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _parts(values: Sequence[Any], most: int) -> list[Sequence[Any]]:
    """Split into at most `most` parts of neighbours, of nearly equal lengths."""
    count = min(most, len(values))
    edges = [len(values) * number // count for number in range(count + 1)] if count else [0]
    return [values[start:end] for start, end in itertools.pairwise(edges)]
