"""From the values in another tool's file to a record."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, TypeGuard

import msgspec

from omni_cli.core.text import visible
from omni_cli.records.labels import number_repeated
from omni_cli.records.metrics import E2E, TPOT, TTFT, Row, columns, known_values, summarise_values
from omni_cli.records.record import (
    Failures,
    Record,
    Sample,
    Variant,
    failure_sentence,
    summed_failures,
    workload_fingerprint,
)

MOST_BLOCKS = 200
REQUEST_BLOCKS = 20

_TIMES = (E2E, TTFT, TPOT)
_TOKENS = ("input_tokens", "output_tokens")


class FailedRun(msgspec.Struct, frozen=True):
    """A run or a request that failed, or several alike. They are counted by `kind`; `message` is that of the first."""

    kind: str
    message: str
    count: int = 1


class Imported(msgspec.Struct, frozen=True):
    """A record, and sentences on what its file lacks. `edit` is one on a change that contradicts an omni record.

    `undated`: the file does not say when it was measured.
    """

    record: Record
    missing: tuple[str, ...] = ()
    edit: str | None = None
    undated: bool = False


def make_record(
    tool: str,
    created: datetime | str | None,
    variants: Sequence[Variant],
    settings: Mapping[str, Any],
    *,
    machine: Mapping[str, Any] | None = None,
    versions: Mapping[str, str] | None = None,
    commit: str | None = None,
) -> Record:
    """Make a record. Everything in `settings`, `machine` and `versions` has to be equal in comparable ones.

    Settings are what was asked for, never what was counted: a run of a fixed duration has other counts each night.
    A moment without a zone is local time.
    """
    if isinstance(created, datetime):
        created = f"{created.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"
    workload: dict[str, object] = {"kind": "imported", "tool": tool, "settings": dict(settings)}
    environment: dict[str, Any] = {"machine": dict(machine or {}), "versions": dict(versions or {})}
    if commit is not None:
        environment["code"] = {"commit": commit}
    # Measurements of the same command are kept apart.
    names = number_repeated(variant.name for variant in variants)
    return Record(
        created=created or "",
        environment=environment,
        workload={**workload, "fingerprint": workload_fingerprint(workload)},
        variants=tuple(msgspec.structs.replace(item, name=name) for item, name in zip(variants, names, strict=True)),
    )


def timed_variant(name: str, runs: Sequence[float | FailedRun | None]) -> Variant:
    """Make a variant of runs in the order in which they ran: a block each, or the medians of neighbours if many.

    A run whose time cannot be one failed, and failed ones are no samples.
    """
    checked = [
        run if isinstance(run, FailedRun) or _is_time(run) else FailedRun("no duration", f"run {number} with {run}")
        for number, run in enumerate(runs, start=1)
    ]
    medians = [statistics.median(part) for part in _parts([run for run in checked if _is_time(run)], MOST_BLOCKS)]
    samples = tuple(_sample(number, value) for number, value in enumerate(medians))
    error = failure_sentence(count_failures(checked), len(checked), "runs") or (None if samples else "it has no runs")
    return Variant(name=name, samples=samples, error=error)


def request_variant(name: str, rows: Sequence[Row | FailedRun], failed: int = 0) -> Variant:
    """Make a variant of requests in the order in which they were sent, in blocks of neighbours.

    `failed` is how many the tool says failed. A request without times that can be its own failed, too.
    """
    checked = [row if isinstance(row, FailedRun) else _check_row(row) for row in rows]
    answers = [row for row in checked if isinstance(row, dict)]
    answered, first_s = len(answers), min(known_values(answers, "start_s"), default=0.0)
    for row in answers:
        row["start_s"] = (start := row.get("start_s")) and start - first_s
    parts: list[Sequence[Row | FailedRun]] = []
    for blocks in range(min(REQUEST_BLOCKS, answered), 0, -1):
        parts = list(_parts(checked, blocks))
        if all(any(isinstance(row, dict) for row in part) for part in parts):
            break
    error = failure_sentence(count_failures(checked), len(checked), "requests") or (
        None if checked else "it has no requests"
    )
    if failed > len(checked) - answered:
        error = f"{failed} of {max(failed, len(checked))} requests failed"
    return Variant(name=name, samples=tuple(_window(number, part) for number, part in enumerate(parts)), error=error)


def summary_variant(name: str, value_s: Any, metrics: Mapping[str, Any], error: str | None = None) -> Variant:
    """Make a variant of a file that has one value for a whole run; `error` is a sentence on its failures."""
    wrong = [value for value in (value_s, *filter(None, metrics.values())) if not _is_time(value)]
    if wrong:
        error = error or ("it has no time" if wrong[0] is None else f"{wrong[0]:g} s is not a duration")
    samples = () if wrong else (_sample(0, value_s, dict(metrics)),)
    return Variant(name=name, samples=samples, error=error)


def count_failures(items: Iterable[object]) -> dict[str, Failures]:
    """Count the failed ones by kind."""
    return summed_failures(
        (visible(item.kind, 60), Failures(count=item.count, first=visible(item.message)))
        for item in items
        if isinstance(item, FailedRun)
    )


def _check_row(row: Row) -> Row | FailedRun:
    if not row.get(E2E):
        return FailedRun("no answer", "no answer")
    for name in _TIMES:
        value = row.get(name)
        if value is not None and not _is_time(value) and (name == E2E or value != 0):
            return FailedRun("no duration", f"its `{name}` is {value}")
    return row


def _is_time(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and math.isfinite(value) and value > 0


def _sample(number: int, value_s: float, metrics: dict[str, float] | None = None) -> Sample:
    return Sample(block=number, position=0, number=number, e2e_s=value_s, metrics=metrics or {})


def _window(number: int, rows: Sequence[Row | FailedRun]) -> Sample:
    answers: list[Row] = [row if isinstance(row, dict) else {} for row in rows]
    medians = summarise_values({name: known_values(answers, name) for name in _TIMES})
    work = {name: float(sum(known_values(answers, name))) for name in _TOKENS}
    return Sample(
        block=number,
        position=0,
        e2e_s=medians.pop(E2E),
        metrics=medians,
        work={"requests": float(sum(map(bool, answers))), **{name: amount for name, amount in work.items() if amount}},
        requests=columns([{name: row.get(name) for name in ("start_s", *_TIMES)} for row in answers]),
        failures=count_failures(rows),
    )


def _parts(values: Sequence[Any], most: int) -> list[Sequence[Any]]:
    """Split into at most `most` parts of neighbours, of nearly equal lengths."""
    count = min(most, len(values))
    edges = [len(values) * number // count for number in range(count + 1)] if count else [0]
    return [values[start:end] for start, end in itertools.pairwise(edges)]
