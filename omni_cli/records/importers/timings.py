"""Files of hyperfine, pytest-benchmark and github-action-benchmark."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from omni_cli.core.errors import InputError
from omni_cli.records.importers.building import (
    FailedRun,
    Imported,
    count_failures,
    make_record,
    summary_variant,
    timed_variant,
)
from omni_cli.records.record import Variant, failure_sentence

NO_ORIGIN: Final = "it names neither the machine nor versions nor a commit: they are assumed to be equal"
_ONE_VALUE = "it has one value per benchmark, from which no interval follows: `omni history` can use it"
_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "usec": 1e-6, "ms": 1e-3, "msec": 1e-3, "s": 1.0, "sec": 1.0,
          "second": 1.0, "seconds": 1.0}  # fmt: skip
LEFT_OUT: Final = "left out, because their units are neither times nor rates"
_PER_SECOND = 0.0
_RATE = re.compile(r"(?:ops|iter|req|requests|iterations|it|runs)/(?:s|sec|second)")


class HyperfineResult(msgspec.Struct):
    """`exit_codes` has null for a run that a signal ended; older versions write none."""

    command: str
    times: list[float | None] = []
    exit_codes: list[int | None] = []
    median: float | None = None
    mean: float | None = None
    parameters: dict[str, Any] | None = None


class HyperfineFile(msgspec.Struct):
    results: list[HyperfineResult]


def hyperfine(document: Any) -> list[Imported]:
    """Read `hyperfine --export-json`."""
    results = msgspec.convert(document, HyperfineFile).results
    commands = [item.command for item in results]
    for item in results:
        if commands.count(item.command) > 1 and item.parameters:
            item.command += f" ({', '.join(f'{name}={value}' for name, value in item.parameters.items())})"
    missing = [NO_ORIGIN]
    missing += [f"`{item.command}` has no `times`: {_ONE_VALUE}" for item in results if not item.times]
    return [Imported(make_record("hyperfine", None, [_command(item) for item in results], {}), tuple(missing))]


def _command(result: HyperfineResult) -> Variant:
    times, codes = result.times, result.exit_codes
    if times and codes and len(times) != len(codes):
        raise InputError(f"`{result.command}` has {len(times)} `times`, but {len(codes)} `exit_codes`")
    exits = [
        None if code == 0 else FailedRun("ended by a signal" if code is None else f"exit code {code}", f"run {number}")
        for number, code in enumerate(codes, start=1)
    ]
    if times:
        return timed_variant(result.command, [code or time for time, code in itertools.zip_longest(times, exits)])
    error = failure_sentence(count_failures(exits), len(exits), "runs")
    # A median of all runs is that of the failed ones, too.
    value = None if error else result.mean if result.median is None else result.median
    return summary_variant(result.command, value, {}, error)


class PytestStats(msgspec.Struct):
    median: float | None = None
    data: list[float | None] = []


class PytestBenchmark(msgspec.Struct):
    fullname: str
    stats: PytestStats


class PytestCommit(msgspec.Struct, frozen=True):
    id: str | None = None


class PytestFile(msgspec.Struct):
    benchmarks: list[PytestBenchmark]
    machine_info: dict[str, Any] = {}
    commit_info: PytestCommit = PytestCommit()
    datetime: str = ""
    version: str = ""


def pytest_benchmark(document: Any) -> list[Imported]:
    """Read `pytest --benchmark-json`."""
    file = msgspec.convert(document, PytestFile)
    variants, without = [], 0
    for item in file.benchmarks:
        without += not item.stats.data
        variants.append(
            timed_variant(item.fullname, item.stats.data)
            if item.stats.data
            else summary_variant(item.fullname, item.stats.median, {})
        )
    missing = [f"it has no single rounds of {without} of {len(variants)} benchmarks: run pytest with "
               "`--benchmark-save-data`"] if without else []  # fmt: skip
    info = file.machine_info
    cpu = info.get("cpu")
    brand = cpu.get("brand_raw") if isinstance(cpu, dict) else None
    machine = {"node": info.get("node"), "cpu": brand, "kernel": info.get("release")}
    versions = {"python": str(info.get("python_version")), "pytest-benchmark": file.version}
    record = make_record(
        "pytest-benchmark", file.datetime or None, variants, {}, machine=machine, versions=versions,
        commit=None if file.commit_info.id == "unversioned" else file.commit_info.id,
    )  # fmt: skip
    return [Imported(record, tuple(missing))]


class ActionBench(msgspec.Struct):
    name: str
    value: float | None
    unit: str


class ActionCommit(msgspec.Struct):
    id: str


class ActionEntry(msgspec.Struct):
    commit: ActionCommit
    date: int
    tool: str
    benches: list[ActionBench]


class ActionFile(msgspec.Struct):
    entries: dict[str, list[ActionEntry]]


def action_data(document: Any) -> list[Imported]:
    """Read the data file of github-action-benchmark: one record per entry, the oldest first."""
    file = msgspec.convert(document, ActionFile)
    imported = []
    for suite, entries in file.entries.items():
        for entry in sorted(entries, key=lambda entry: entry.date):
            created = datetime.fromtimestamp(entry.date / 1000, UTC)
            settings = {"suite": suite, "tool": entry.tool}
            imported.append(_action_record(created, entry.benches, settings, entry.commit.id))
    return imported


def action_values(document: Any) -> list[Imported]:
    """Read what github-action-benchmark takes as `customSmallerIsBetter` or `customBiggerIsBetter`."""
    return [_action_record(None, msgspec.convert(document, list[ActionBench]), {}, None)]


def _action_record(
    created: datetime | None, benches: list[ActionBench], settings: dict[str, Any], commit: str | None
) -> Imported:
    variants = list(_action_variants(benches))
    unread = [f"`{item.name}` ({item.unit})" for item in benches if _scale(item) is None]
    missing = [_ONE_VALUE, "it names neither the machine nor versions: they are assumed to be equal"]
    if unread:
        missing.append(f"{LEFT_OUT}: {', '.join(unread)}")
    record = make_record("github-action-benchmark", created, variants, settings, commit=commit)
    return Imported(record, tuple(missing))


def _action_variants(benches: list[ActionBench]) -> Iterator[Variant]:
    for item in benches:
        scale = _scale(item)
        if scale is not None:
            value_s = item.value and (1 / item.value if scale == _PER_SECOND else item.value * scale)
            yield summary_variant(item.name, value_s, {})


def _scale(item: ActionBench) -> float | None:
    """Return the seconds of a unit of time, 0 for a rate, whose operations have a time, and None for any other unit."""
    unit = item.unit.strip().lower()
    return _PER_SECOND if _RATE.fullmatch(unit) else _UNITS.get(unit.partition("/")[0])
