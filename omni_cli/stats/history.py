"""Records over time: one series per variant, metric and comparable conditions, its steps, and the verdict on them.

A step is looked for as a nightly job meets it: after each record, between the newest `AFTER` records and up to
`REFERENCE` before them. It is the difference of their means without outliers, and counts if

* it is a multiple of the spread of the series, from which earlier steps and a weekly wave (of three weeks) have
  been taken out. The spread includes what noise and drift have added so far, and a few records say little of it;
* it stays one beside a straight line through both parts, since a ramp has no commit;
* four of the newest five records show at least half of it: three outliers are no step.

Error rates, beside those of ruptures' PELT and of Otava, are measured by `benchmarks/history_calibration.py`. Neither
is used: looked at after each record, they raise more false alarms at the same power.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from datetime import datetime, timedelta
from statistics import NormalDist

import msgspec
import numpy as np

from omni_cli.records.history_folder import Kept
from omni_cli.records.labels import get_facts, tell_apart
from omni_cli.records.metrics import GATED_MEMORY, RESOLUTION, worsening
from omni_cli.records.record import Variant, mapping
from omni_cli.records.results import (
    Bounds,
    Difference,
    GateVerdict,
    HistoryChange,
    HistoryFailure,
    HistoryPoint,
    HistoryRecord,
    HistorySeries,
)
from omni_cli.stats.blocks import metric_names, summarise
from omni_cli.stats.comparable import mean_work_differences, record_mismatches, settings_differences, split_allowed
from omni_cli.stats.compare import MARGIN
from omni_cli.stats.gate import check_metrics

BEFORE, AFTER = 8, 5
"""Records that the first step needs on either side; between two steps, `AFTER` are enough."""

REFERENCE = 20
"""Records before a step that it is measured from, at most."""

WINDOW = 60
"""Records that the spread is taken from, at most."""

THRESHOLD = 2.75
"""Standard errors at which a step counts."""

Z95 = 1.96
"""Half the width of a step's 95 % interval in standard errors."""

_FEW = 4  # records that double the threshold, if the spread is known from no more
_MAD = 1.4826
_OUTLIER = 3.0  # standard deviations from the median
_INFLATION = 1.1  # of standard errors, since the spread is an estimate and nights resemble each other
_WEEKS = 3  # of which a weekly wave is known
_BY_CHANCE = 0.01  # probability at which one is taken for real
_SHOWING = 0.75  # share of the newest records that have to show half of the step
_POWER = NormalDist().inv_cdf(0.8)
_NEAR = 2.4  # sum of absolute deviations, in standard deviations, that another place of the step may add

MIN_RECORDS = BEFORE + AFTER
"""Records that a series needs before its first step can be seen."""

_NIGHT = timedelta(hours=24)  # the records of one night count together
_ORDER: tuple[GateVerdict, ...] = ("failed", "regression", "inconclusive", "not comparable", "pass")


class Shift(msgspec.Struct, frozen=True):
    """A change between the records `at - 1` and `at`, first seen at the record `found`, all counted from 0.

    It lies between the records `earliest - 1` and `latest`. `size` is in the unit of the values.
    """

    at: int
    earliest: int
    latest: int
    found: int
    size: float
    standard_error: float


class Steps(msgspec.Struct, frozen=True):
    """The steps of a series, and the smallest size that its newest records would have shown in 80 % of the cases.

    That is None if there are too few records, in all or since the last step.
    """

    shifts: tuple[Shift, ...]
    detectable: float | None


def find_steps(
    values: np.ndarray, noise: float, margin: float, threshold: float = THRESHOLD, days: np.ndarray | None = None
) -> Steps:
    """Find the steps of float64 (n,) that are larger than `margin`, each where it was first seen.

    `noise` is the standard error of a value that is known from within the records, or 0. `days` are the days of the
    values as numbers, by default one after the other.
    """
    level = np.array(values, dtype=np.float64)  # without the steps
    days = np.arange(len(values)) if days is None else days
    shifts: list[Shift] = []
    start, detectable = 0, None
    for end in range(BEFORE + AFTER, len(values) + 1):
        at = end - AFTER
        if shifts and at - start < AFTER:
            continue
        first = max(start, at - REFERENCE)
        week = _weekly(level[:end], days[:end])
        calm, rest = values[:end] - week, level[:end] - week
        # Noise may have grown with the last step.
        spread = max(noise, *(_spread(rest[since:at]) for since in (max(at - WINDOW, 0), first)))
        size, error = _difference(calm[first:at], calm[at:], spread)
        known = max(at - BEFORE - AFTER + 1, _FEW)
        needed = max(threshold * (1 + _FEW / known) * error, margin + error)
        if _is_step(calm[first:at], calm[at:], size, needed):
            shifts.append(_shift(calm, start, first, spread))
            start, detectable = shifts[-1].at, None
            level[start:] -= shifts[-1].size
        else:
            detectable = needed + _POWER * error
    week = _weekly(level, days)
    return Steps(tuple(_measure(values - week, shifts, max(noise, _spread((level - week)[-WINDOW:])))), detectable)


def _weekly(level: np.ndarray, days: np.ndarray) -> np.ndarray:
    """Return what a weekly wave adds to each record, as all but the newest show it; 0 throughout if they do not."""
    parts = np.stack([np.cos(2 * np.pi / 7 * days), np.sin(2 * np.pi / 7 * days), np.ones(len(days))], axis=1)
    known = slice(max(len(level) - AFTER - WINDOW, 0), max(len(level) - AFTER, 0))
    if len(level[known]) < 7 * _WEEKS:
        return np.zeros(len(level))
    off = level[known] - np.median(level[known])
    usual = np.abs(off) <= _OUTLIER * _spread(off)
    fit = np.linalg.lstsq(parts[known][usual], off[usual])[0]
    left, all_of_it = np.var(off[usual] - parts[known][usual] @ fit), np.var(off[usual])
    # The probability that noise alone leaves so little.
    by_chance = (left / all_of_it) ** ((usual.sum() - parts.shape[1]) / 2) if all_of_it else 1.0
    return np.asarray(parts[:, :2] @ fit[:2] * (by_chance < _BY_CHANCE))


def _difference(before: np.ndarray, after: np.ndarray, spread: float) -> tuple[float, float]:
    """Return the difference of the means without outliers, and its standard error."""
    off = [np.abs(part - np.median(part)) for part in (before, after)]
    kept = [part[far <= max(_OUTLIER * spread, far.min())] for part, far in zip((before, after), off, strict=True)]
    error = _INFLATION * spread * math.sqrt(sum(1 / len(part) for part in kept))
    return float(kept[1].mean() - kept[0].mean()), error


def _is_step(before: np.ndarray, after: np.ndarray, size: float, needed: float) -> bool:
    if abs(size) <= needed:
        return False
    beside_a_line = size - _slope(before, after) * (len(before) + len(after)) / 2
    shows = (after - np.median(before)) / size > 0.5
    return beside_a_line * size > 0 and abs(beside_a_line) > needed and float(shows.mean()) >= _SHOWING


def _shift(values: np.ndarray, start: int, first: int, spread: float) -> Shift:
    """Place a step that the newest of `values` show, where absolute deviations from the medians are the smallest."""
    at = len(values) - AFTER
    places = np.arange(max(start + AFTER, at - AFTER + 1), at + AFTER - 1)
    costs = np.array([_deviation(values[first:place], np.sum) + _deviation(values[place:], np.sum) for place in places])
    best = int(places[costs.argmin()])
    near = places[costs <= costs.min() + _NEAR * spread]
    size, error = _difference(values[first:best], values[best:], spread)
    return Shift(best, int(near[0]), int(near[-1]), len(values) - 1, size, error)


def _measure(values: np.ndarray, shifts: Sequence[Shift], spread: float) -> Iterator[Shift]:
    """Yield the steps with the sizes that all records until now give them."""
    edges = [0, *(shift.at for shift in shifts), len(values)]
    for begin, shift, end in zip(edges, shifts, edges[2:], strict=False):
        before, after = values[max(begin, shift.at - REFERENCE) : shift.at], values[shift.at : end][:REFERENCE]
        size, error = _difference(before, after, spread)
        yield msgspec.structs.replace(shift, size=size, standard_error=error)


def _slope(*parts: np.ndarray) -> float:
    """Return the median slope between two records of the same part."""
    pairs = [(part, *np.triu_indices(len(part), 1)) for part in parts]
    return float(np.median(np.concatenate([(part[b] - part[a]) / (b - a) for part, a, b in pairs])))


def _spread(values: np.ndarray) -> float:
    return _MAD * _deviation(values, np.median)


def _deviation(values: np.ndarray, over: Callable[[np.ndarray], float]) -> float:
    """Return the median or the sum of the absolute deviations from the median."""
    return float(over(np.abs(values - np.median(values))))


class _Group(msgspec.Struct):
    """Comparable runs of one variant and workload; `differences` are those of its first run from the group before."""

    differences: tuple[Difference, ...]
    is_current: bool = False
    label: str = ""
    runs: list[tuple[Kept, Variant]] = msgspec.field(default_factory=list)


def get_history(
    kept: Sequence[Kept], folder: str, metrics: Sequence[str] | None = None, allowed: Collection[str] = ()
) -> HistoryRecord:
    """Find the steps of every series of `metrics`, by default of all. Raises `UsageError` for an unknown metric.

    `allowed` names fields that may differ within a series.
    """
    variants = [variant for item in kept for variant in item.record.variants]
    known = dict.fromkeys(name for variant in variants for name in metric_names(variant))
    if metrics is not None:
        check_metrics(metrics, known)
    chosen = list(metrics or (*known, *GATED_MEMORY))
    grouped = [
        (group, metric, points)
        for group in _group(kept, allowed)
        for metric in chosen
        if (points := _points(group, metric))
    ]
    # Each further series is another chance of a false alarm, and the bound holds for all series together.
    threshold = math.sqrt(THRESHOLD**2 + 2 * math.log(max(len(grouped), 1)))
    series = tuple(_series(*item, threshold) for item in grouped)
    return HistoryRecord(folder=folder, series=series, failures=tuple(_failures(kept, allowed)))


def judge_history(history: HistoryRecord, limit: float | None = None, since: str = "") -> HistoryRecord:
    """Add the verdict on the series that go on, and on the variants that failed last.

    A worsening that is still there is a regression; with `limit` only if its whole interval lies beyond that. Steps and
    failures before the date `since` are known and do not count.
    """
    failed = [item for item in history.failures if item.is_current and item.created >= since]
    reasons = [f"{item.variant}: {item.reason}" for item in failed]
    verdicts: list[GateVerdict] = ["failed" for _ in failed]
    for series in history.series:
        if series.is_current:
            verdict, reason = _verdict(series, limit, since)
            verdicts.append(verdict)
            reasons += [f"{series.name}, {series.metric}: {reason}"] if reason else []
    verdict = next((item for item in _ORDER if item in verdicts), "inconclusive")
    return msgspec.structs.replace(history, verdict=verdict, reasons=tuple(reasons))


def _verdict(series: HistorySeries, limit: float | None, since: str) -> tuple[GateVerdict, str]:
    points = len(series.points)
    if points == 1 and series.differences:
        return "not comparable", f"the first record with {_list_differences(series.differences)}"
    for change in series.changes:
        if not change.is_open or change.same_commit or series.points[change.at].created < since:
            continue
        bounds = sorted(worsening(series.metric, bound) for bound in change.ci95)
        if limit is None or bounds[0] > limit:
            return "regression", f"worse by {worsening(series.metric, change.ratio):.1%} since record {change.at + 1}"
        if bounds[1] > limit:
            return "inconclusive", f"worse by {bounds[0]:.1%} to {bounds[1]:.1%} since record {change.at + 1}"
    if series.detectable is None:
        since_step = points - (series.changes[-1].at if series.changes else 0)
        where, needed = ("since the last step", 2 * AFTER) if series.changes else ("that are comparable", MIN_RECORDS)
        return "inconclusive", f"{since_step} records {where}; to see a step takes {needed}"
    if limit is not None and series.detectable > limit:
        return "inconclusive", f"too noisy: a worsening of less than {series.detectable:.1%} would not be seen"
    return "pass", ""


def _group(kept: Sequence[Kept], allowed: Collection[str]) -> list[_Group]:
    groups: dict[tuple[str, object], list[_Group]] = {}
    for item in kept:
        for variant in item.record.variants:
            if variant.failure or not variant.samples:
                continue
            own = groups.setdefault((variant.name, item.record.workload.get("fingerprint")), [])
            # The latest first: of several earlier groups, its differences explain best why a new one begins.
            apart = [(_differences(group.runs[0], (item, variant), allowed), group) for group in reversed(own)]
            group = next((group for differences, group in apart if not differences), None)
            if group is None:
                group = _Group(apart[0][0] if apart else ())
                own.append(group)
            group.runs.append((item, variant))
    for own in groups.values():
        newest = max(own, key=lambda group: (group.runs[-1][0].created, group.runs[-1][0].name))
        newest.is_current = _is_of_last_night(newest.runs[-1][0], kept)
    found = [group for own in groups.values() for group in own]
    parts = [(item.record, item.created[:10], variant) for item, variant in (group.runs[0] for group in found)]
    facts = [get_facts(record.environment, record.workload, day, [variant]) for record, day, variant in parts]
    for group, label in zip(found, tell_apart([variant.name for *_, variant in parts], facts), strict=True):
        group.label = label
    return found


def _is_of_last_night(item: Kept, kept: Sequence[Kept]) -> bool:
    return datetime.fromisoformat(item.created) >= datetime.fromisoformat(kept[-1].created) - _NIGHT


def _failures(kept: Sequence[Kept], allowed: Collection[str]) -> Iterator[HistoryFailure]:
    for number, item in enumerate(kept):
        is_new = _is_of_last_night(item, kept)
        for variant in item.record.variants:
            if variant.failure:
                is_repeated = is_new and any(
                    other.name == variant.name and not other.failure
                    for later in kept[number + 1 :]
                    if not split_allowed(record_mismatches(item.record, later.record), allowed)[0]
                    for other in later.record.variants
                )
                yield HistoryFailure(
                    record=item.name, created=item.created, variant=variant.name, reason=variant.failure,
                    commit=_commit(item), is_current=is_new and not is_repeated,
                )  # fmt: skip


def _commit(item: Kept) -> str | None:
    commit = mapping(item.record.environment.get("code")).get("commit")
    return commit if isinstance(commit, str) else None


def _differences(a: tuple[Kept, Variant], b: tuple[Kept, Variant], allowed: Collection[str]) -> tuple[Difference, ...]:
    """Return what keeps two runs of a variant out of one series: conditions, settings, the amount of work."""
    differences = (
        *record_mismatches(a[0].record, b[0].record),
        *settings_differences(a[1], b[1]),
        *mean_work_differences(a[1], b[1]),
    )
    return split_allowed(differences, allowed)[0]


def _points(group: _Group, metric: str) -> tuple[HistoryPoint, ...]:
    """Return the runs that have the metric; a value of 0 was not measured, unless it is usually 0."""
    points = []
    for item, variant in group.runs:
        median, ci95 = _median(variant, metric)
        if median or (median is not None and metric in RESOLUTION):
            points.append(
                HistoryPoint(record=item.name, created=item.created, median=median, ci95=ci95, commit=_commit(item))
            )
    return tuple(points) if any(point.median for point in points) else ()


def _median(variant: Variant, metric: str) -> tuple[float | None, Bounds | None]:
    if metric in GATED_MEMORY:
        return getattr(variant.memory, metric), None
    # Reading a record has checked its summaries; computing hundreds of them again takes minutes.
    summary = variant.summary.get(metric) or summarise(variant, metric)
    return (None, None) if summary is None else (summary.median, summary.ci95)


def _series(group: _Group, metric: str, points: tuple[HistoryPoint, ...], threshold: float) -> HistorySeries:
    least = RESOLUTION.get(metric, 0.0)
    logs = np.log([max(point.median, least) for point in points])
    bounds = [[max(bound, least) for bound in point.ci95] for point in points if point.ci95]
    halves = [math.log(high / low) / 2 for low, high in bounds if low > 0]
    noise = math.sqrt(sum(half**2 for half in halves) / len(halves)) / Z95 if halves else 0.0
    days = np.array([datetime.fromisoformat(point.created).toordinal() for point in points])
    steps = find_steps(logs, noise, math.log1p(MARGIN), threshold, days)
    return HistorySeries(
        variant=group.runs[0][1].name,
        metric=metric,
        points=points,
        changes=_changes(metric, points, logs, steps.shifts),
        detectable=None if steps.detectable is None else math.expm1(min(steps.detectable, 50.0)),
        differences=group.differences,
        is_current=group.is_current,
        label=group.label,
    )


def _changes(
    metric: str, points: Sequence[HistoryPoint], logs: np.ndarray, steps: Sequence[Shift]
) -> tuple[HistoryChange, ...]:
    newest = np.median(logs[-AFTER:])
    changes = []
    for begin, step in zip([0, *(step.at for step in steps)], steps, strict=False):
        before = np.median(logs[begin : step.at])
        good, bad = points[step.earliest - 1].commit, points[step.latest].commit
        is_worse = worsening(metric, math.exp(step.size)) > 0
        half = Z95 * step.standard_error
        changes.append(
            HistoryChange(
                at=step.at, earliest=step.earliest, latest=step.latest, found=step.found,
                ratio=math.exp(step.size), ci95=(math.exp(step.size - half), math.exp(step.size + half)),
                verdict="slower" if is_worse else "faster",
                good=good, bad=bad, same_commit=good is not None and good == bad,
                is_open=is_worse and worsening(metric, math.exp(newest - before)) > MARGIN,
            )
        )  # fmt: skip
    return tuple(changes)


def _list_differences(differences: Sequence[Difference]) -> str:
    shown = ", ".join(f"{item.field} {item.b}" for item in differences[:2])
    return shown + (f" and {len(differences) - 2} more differences" if len(differences) > 2 else "")
