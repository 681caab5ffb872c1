"""Series of records: what belongs together, which steps they have, and the verdict of a check."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from support.bench_records import ENVIRONMENT, record, variant

from omni_cli.core.errors import UsageError
from omni_cli.records.history_folder import Kept, keep, read_folder
from omni_cli.records.results import HistoryRecord
from omni_cli.report.history_view import history_view
from omni_cli.report.renderers import to_text
from omni_cli.stats.history import THRESHOLD, Steps, find_steps, get_history, judge_history

START = datetime(2026, 6, 1, 2, tzinfo=UTC)


def night(number: int, level: float, *, work: dict[str, float] | None = None, **environment: Any) -> Kept:
    """A record of 10 runs in 10 blocks around `level` seconds, of commit `c<number>`; `rtf` is the same number."""
    runs = level * np.exp(0.004 * np.random.default_rng(number).standard_normal((10, 1)))
    created = f"{START + timedelta(days=number):%Y-%m-%dT%H:%M:%SZ}"
    code = {"omni": "0.1.0", "commit": environment.pop("commit", f"c{number}")}
    one = variant("a", runs, slots=(0,), metrics={"rtf": 1.0}, work=work)
    return Kept(f"{created}.json", created, record(one, environment={**ENVIRONMENT, "code": code, **environment}))


def nights(levels: Sequence[float], **options: Any) -> list[Kept]:
    jitter = np.exp(0.005 * np.random.default_rng(0).standard_normal(len(levels)))
    return [
        night(number, level * factor, **options)
        for number, (level, factor) in enumerate(zip(levels, jitter, strict=True))
    ]


def e2e(kept: Sequence[Kept], **options: Any) -> HistoryRecord:
    return get_history(kept, "history", ["e2e_s"], **options)


def test_a_step_has_its_commits_and_fails_the_check_until_the_level_is_back() -> None:
    slow = [0.1] * 25 + [0.106] * 10
    (series,) = e2e(nights(slow)).series
    (change,) = series.changes
    assert change.verdict == "slower" and change.is_open and change.found <= 29
    assert (change.good, change.bad) == (f"c{change.earliest - 1}", f"c{change.latest}")
    assert change.earliest <= 25 <= change.latest
    assert change.ci95[0] < 1.06 < change.ci95[1]
    assert judge_history(e2e(nights(slow))).verdict == "regression"
    assert judge_history(e2e(nights(slow + [0.1] * 6))).verdict == "inconclusive"  # too few for the next step
    assert judge_history(e2e(nights(slow + [0.1] * 15))).verdict == "pass"


def test_a_step_is_still_there_only_if_the_newest_nights_are_worse_than_before_it() -> None:
    """The level falls below the first one before the second step can be seen."""
    first, *_ = e2e(nights([0.1] * 25 + [0.1067] * 10)).series[0].changes
    assert first.is_open
    kept = nights([0.1] * 25 + [0.1067] * 10 + [0.095] * 3)
    (change,) = e2e(kept).series[0].changes
    assert change.verdict == "slower" and not change.is_open
    assert judge_history(e2e(kept)).verdict != "regression"


def test_what_is_usually_0_is_a_series_from_its_first_night() -> None:
    """Words that are wrong: none for 25 nights, then 5 %; compared as if they were at least 1 %."""
    kept = []
    for number, share in enumerate([0.0] * 25 + [0.05] * 10):
        one, metrics = night(number, 0.1).record, {"wer": share, "stutter_s": 0.0}
        samples = [msgspec.structs.replace(s, metrics=metrics) for s in one.variants[0].samples]
        variants = (msgspec.structs.replace(one.variants[0], samples=tuple(samples)),)
        kept.append(replace(night(number, 0.1), record=msgspec.structs.replace(one, variants=variants)))
    (series,) = get_history(kept, "history", ["wer"]).series
    assert [point.median for point in series.points] == [0.0] * 25 + [0.05] * 10
    (change,) = series.changes
    assert change.at == 25 and change.is_open and change.ratio == pytest.approx(5.0)
    assert get_history(kept, "history", ["stutter_s"]).series == (), "what was never there is no series"


def test_limits_and_dates_decide_as_in_a_gate() -> None:
    found = e2e(nights([0.1] * 25 + [0.106] * 15))
    assert judge_history(found, limit=0.02).verdict == "regression"
    assert judge_history(found, limit=0.06).verdict == "inconclusive"
    assert judge_history(found, limit=0.15).verdict == "pass"
    (series,) = found.series
    at = series.changes[0].at
    assert judge_history(found, since=series.points[at].created).verdict == "regression"
    assert judge_history(found, since=series.points[at + 1].created).verdict == "pass"


def test_faster_is_no_regression_and_rates_are_reversed() -> None:
    assert judge_history(e2e(nights([0.1] * 25 + [0.09] * 15))).verdict == "pass"
    kept = nights([10.0] * 25 + [9.0] * 10)
    changed = [
        Kept(item.name, item.created, record(_renamed(item), environment=dict(item.record.environment)))
        for item in kept
    ]
    found = get_history(changed, "history", ["requests_per_second"])
    assert found.series[0].changes[0].verdict == "slower"
    assert judge_history(found).verdict == "regression"


def _renamed(item: Kept) -> Any:
    (one,) = item.record.variants
    runs = np.array([[sample.e2e_s] for sample in one.samples])
    return variant("a", np.full_like(runs, 0.1), slots=(0,), metrics={"requests_per_second": float(runs.mean() * 10)})


def test_another_machine_begins_another_series_and_is_no_alarm() -> None:
    old, new = nights([0.1] * 20), nights([0.13] * 40)[20:]
    other = [
        night(20 + number, item.record.variants[0].samples[0].e2e_s, machine={"cpu": "Test 2"})
        for number, item in enumerate(new)
    ]
    found = e2e([*old, *other])
    assert [len(series.points) for series in found.series] == [20, 20]
    assert not any(series.changes for series in found.series)
    assert [item.field for item in found.series[1].differences] == [
        "environment.machine.cpu",
        "environment.machine.usable_cores",
    ]
    assert judge_history(found).verdict == "pass"
    first = judge_history(e2e([*old, other[0]]))
    assert first.verdict == "not comparable" and "environment.machine.cpu Test 2" in first.reasons[0]
    assert judge_history(e2e([*old, *other[:5]])).verdict == "inconclusive"
    (joined,) = e2e([*old, *other], allowed=["environment.machine"]).series
    assert len(joined.changes) == 1


def test_machines_that_alternate_keep_a_series_each() -> None:
    kept = [night(number, 0.1 if number % 2 else 0.15, machine={"cpu": f"Test {number % 2}"}) for number in range(40)]
    found = e2e(kept)
    assert [len(series.points) for series in found.series] == [20, 20]
    assert judge_history(found).verdict == "pass"


def test_a_step_between_two_records_of_one_commit_is_the_machine() -> None:
    found = e2e(nights([0.1] * 20 + [0.12] * 15, commit="same"))
    assert found.series[0].changes[0].same_commit
    assert judge_history(found).verdict == "pass"


def test_shorter_audio_is_no_alarm_as_in_vllm_omni_7915() -> None:
    """Four nights are public: rtf 0.1703, 0.2115, 0.2139, 0.2071 with 144.6, 90.9, 90.9 and 90.9 s of audio."""
    levels = [0.1703] * 40 + [0.211546, 0.213868, 0.207117] * 4
    audio = [144.603906] * 40 + [90.881719] * 12
    kept = [
        night(n, level, work={"audio_s": amount}) for n, (level, amount) in enumerate(zip(levels, audio, strict=True))
    ]
    found = get_history(kept, "history", ["rtf"])
    assert not any(series.changes for series in found.series)
    assert [item.field for item in found.series[-1].differences] == ["work.audio_s"]
    assert judge_history(found).verdict == "inconclusive"
    blind = [night(n, level, work={"audio_s": 1.0}) for n, level in enumerate(levels)]
    assert (
        judge_history(get_history(blind, "history", ["e2e_s"])).verdict == "regression"
    )  # the work is what makes the difference


def test_nine_broken_nights_are_no_alarm_as_in_vllm_omni_6032() -> None:
    """A bug made the audio longer for nine nights and was fixed; a baseline averaged over some of them cried wolf."""
    audio = [5.05] * 20 + [14.0] * 9 + [5.02] * 31
    kept = [night(n, 0.13 if amount < 6 else 0.09, work={"audio_s": amount}) for n, amount in enumerate(audio)]
    found = get_history(kept, "history", ["rtf"])
    assert [len(series.points) for series in found.series] == [51, 9]
    assert not any(series.changes for series in found.series)
    assert judge_history(found).verdict == "pass"


def test_too_few_records_and_too_much_noise_are_inconclusive() -> None:
    assert judge_history(e2e(nights([0.1] * 12))).verdict == "inconclusive"
    assert judge_history(e2e(nights([0.1] * 30))).verdict == "pass"
    wild = 0.1 * np.exp(0.3 * np.random.default_rng(1).standard_normal(40))
    found = judge_history(e2e(nights(wild.tolist())), limit=0.05)
    assert found.verdict == "inconclusive" and "would not be seen" in found.reasons[0]


def test_memory_is_a_series_and_unknown_metrics_are_named() -> None:
    found = get_history(nights([0.1] * 3), "history")
    assert {series.metric for series in found.series} == {"e2e_s", "rtf", "peak_allocated_bytes", "peak_host_rss_bytes"}
    with pytest.raises(UsageError, match="unknown metric"):
        get_history(nights([0.1] * 3), "history", ["e2e"])


def test_more_series_need_more_evidence(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []

    def watched(values: np.ndarray, within: float, margin: float, threshold: float, days: np.ndarray) -> Steps:
        asked.append(threshold)
        return find_steps(values, within, margin, threshold, days)

    monkeypatch.setattr("omni_cli.stats.history.find_steps", watched)
    kept = nights([0.1] * 14)
    get_history(kept, "history", ["e2e_s"])
    get_history(kept, "history")
    assert len(asked) == 5
    assert asked[0] == THRESHOLD
    assert asked[1:] == [math.sqrt(THRESHOLD**2 + 2 * math.log(4))] * 4


def test_dates_of_several_zones_are_ordered_in_utc(tmp_path: Path) -> None:
    """A date without a zone counts as UTC, and records of one moment in two zones are of one night."""
    dates = ("2026-11-20T23:30:00-05:00", "2026-11-21T01:00:00", "2026-11-21T03:30:00.5+02:00", "2026-11-21T02:00:00Z")
    for number, date in enumerate(dates):
        keep(msgspec.structs.replace(night(number, 0.1).record, created=date), tmp_path)
    kept = read_folder(tmp_path)
    assert [item.created[11:16] for item in kept] == ["01:00", "01:30", "02:00", "04:30"]
    assert [item.record.created for item in kept] == [dates[number] for number in (1, 2, 3, 0)]
    (series,) = e2e(kept).series
    assert [point.created for point in series.points] == [item.created for item in kept]


def failed(item: Kept, hours: int = 0, **environment: Any) -> Kept:
    """The record of a night in which a run of it failed, so that the rest was faster."""
    moment = datetime.fromisoformat(item.created) + timedelta(hours=hours)
    one = msgspec.structs.replace(item.record.variants[0], error="1 of 10 runs failed: 1 x exit code 1")
    broken = msgspec.structs.replace(
        item.record, variants=(one,), environment={**item.record.environment, **environment}
    )
    created = f"{moment:%Y-%m-%dT%H:%M:%SZ}"
    return Kept(f"{created}.json", created, broken)


def test_a_night_that_failed_is_marked_and_is_in_no_series() -> None:
    good = nights([0.1] * 20)
    bad = failed(night(20, 0.05))
    found = e2e([*good, bad])
    (series,) = found.series
    assert len(series.points) == 20
    assert [(item.record, item.commit, item.is_current) for item in found.failures] == [(bad.name, "c20", True)]
    check = judge_history(found)
    assert check.verdict == "failed" and check.reasons == ("a: 1 of 10 runs failed: 1 x exit code 1",)
    assert judge_history(found, since="2026-07-01T00:00:00Z").verdict == "pass", "it is known"
    # A later night, or another try in the same one, is judged by itself; another machine's is not its.
    assert judge_history(e2e([*good, bad, night(22, 0.1)])).verdict == "pass"
    early = failed(night(20, 0.05), hours=-1)
    assert judge_history(e2e([*good, early, night(20, 0.1)])).verdict == "pass"
    other = failed(night(20, 0.05), hours=-1, machine={"cpu": "Test 2"})
    assert judge_history(e2e([*good, other, night(20, 0.1)])).verdict == "failed"
    assert judge_history(e2e([bad])).verdict == "failed"


def test_series_of_one_variant_are_marked_with_what_differs() -> None:
    def resized(item: Kept) -> Kept:
        workload = {**item.record.workload, "batch_size": 8, "fingerprint": "another"}
        return replace(item, name=f"{item.name}-8", record=msgspec.structs.replace(item.record, workload=workload))

    kept = nights([1.0] * 3)
    found = e2e([*kept, *map(resized, kept)])
    assert len(found.series) == 2 and {series.variant for series in found.series} == {"a"}
    rows = to_text(history_view(found))
    assert [series.label for series in found.series] == ["a (batch_size 1)", "a (batch_size 8)"]
    assert all(f"\n  {series.label}  e2e" in rows for series in found.series)
