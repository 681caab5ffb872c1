"""Records of earlier schemas, and with names that the code no longer uses, stay readable: one of each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from omni_cli.cli.app import run
from omni_cli.cli.report_documents import load_view
from omni_cli.measure.bench.bisect import SearchFolder
from omni_cli.measure.bench.commits import CommitInfo
from omni_cli.records.history_folder import keep
from omni_cli.records.record import Record, load_record, read_record
from omni_cli.records.record_file import get_digest, save_record
from omni_cli.records.tune_record import load_tune_record
from omni_cli.report.disturbance_words import disturbance_warnings
from omni_cli.stats.comparable import disturbances

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
CREATED = "2026-11-20T12:00:00Z"
SAMPLE = {"block": 0, "position": 0, "e2e_s": 0.1, "engagement": {"talker": {"graph_replays": 8.0}}}
PAYBACK = {"mode": "b", "other": "a", "gained_s": 0.1, "preparation_s": 2.0, "requests": 20}
BENCH = {
    "schema": "omni.bench/1",
    "created": CREATED,
    "environment": {},
    "workload": {},
    "variants": [{"name": "a", "samples": [SAMPLE], "effective": {"engagement": {"talker": {"capture_s": 2.0}}}}],
    "comparisons": [{"metric": "e2e_s", "a": "a", "b": "b", "payback": PAYBACK}],
}
TUNE = {
    "schema": "omni.tune/1",
    "created": CREATED,
    "environment": {},
    "workload": {"profile": "tiny-image", "stage": "all"},
    "objective": "e2e_s",
    "margin": 0.05,
    "candidates": [{"name": "a"}],
    "rounds": [{"control": "a", "heats": [[{"name": "a", "samples": [{"block": 0, "position": 0, "e2e_s": 0.1}]}]]}],
}
SHA = "0123456789abcdef0123456789abcdef01234567"
COMMIT = {"sha": SHA, "author": "x", "date": "2026-11-20", "subject": "y"}
SPEC = {"workload": {"profile": "tiny-image"}, "metric": "e2e_s", "limit": 0.05}
BISECT = {"schema": "omni.bisect/1", "created": CREATED, "question": SPEC, "commits": [COMMIT], "trials": []}


def written(document: dict[str, Any], path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**document, "digest": get_digest(document)}))
    return path


def test_counters_and_the_break_even_point_of_a_bench_record(tmp_path: Path) -> None:
    record = load_record(written(BENCH, tmp_path / "bench.json"))
    (variant,), (comparison,) = record.variants, record.comparisons
    assert variant.samples[0].execution_counters == {"talker": {"graph_replays": 8.0}}
    assert comparison.break_even and comparison.break_even.requests == 20
    save_record(record, tmp_path / "again.json")
    again = json.loads((tmp_path / "again.json").read_text())
    assert again["schema"] == BENCH["schema"] and again["comparisons"][0]["payback"]["requests"] == 20
    assert again["variants"][0]["samples"][0]["engagement"] == SAMPLE["engagement"]


def test_a_search_of_omni_tune_1_is_shown_and_continued_as_omni_tune_2(tmp_path: Path) -> None:
    path = written(TUNE, tmp_path / "tune.json")
    record = load_tune_record(path)
    assert [[variant.name for variant in batch] for batch in record.rounds[0].batches] == [["a"]]
    assert load_view(path).sections
    save_record(record, path)
    document = json.loads(path.read_text())
    assert document["schema"] == "omni.tune/2" and "batches" in document["rounds"][0]


def test_a_search_of_omni_bisect_1_is_continued(tmp_path: Path) -> None:
    commit = CommitInfo(**COMMIT)
    folder = SearchFolder(tmp_path, SPEC, [commit])
    written(BISECT, folder.file)
    assert folder.load().spec == SPEC


def test_records_of_all_versions_that_were_kept_are_read_without_the_clocks_that_they_lack() -> None:
    """Results of an H200 from before clocks were recorded: these are absent, and no note is made of it."""
    texts = ((path, path.read_text()) for path in sorted(RESULTS.rglob("*.json")))
    paths = [path for path, text in texts if '"omni.bench/1"' in text[:200]]
    assert len(paths) > 50
    for path in paths:
        record, _ = read_record(path)
        assert all(variant.device_load == () for variant in record.variants)
        assert disturbance_warnings(disturbances(record), record) == []


GPU = {
    "index": 0, "name": "H200", "utilisation_percent": [99.0] * 8, "sm_clock_mhz": [1485.0] * 6 + [1650.0] * 2,
    "temperature_c": [60.0] * 8, "power_w": [690.0] * 8, "throttled": ["power_cap"] * 8,
}  # fmt: skip
UTILISATION = {
    "interval_s": 0.5, "cost_s": 0.0, "usable_cores": 2, "end_s": [0.5 * number for number in range(1, 9)],
    "busy_cores": [1.0] * 8, "own_cores": [1.0] * 8, "stolen_cores": [0.0] * 8, "gpus": [GPU],
}  # fmt: skip


def earlier(tmp_path: Path) -> tuple[Path, Record]:
    path = written({**BENCH, "utilisation": UTILISATION}, tmp_path / "utilisation.json")
    return path, load_record(path)


def test_a_record_without_the_devices_highest_clock_says_whose_share_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, record = earlier(tmp_path)
    assert record.utilisation is not None and record.utilisation.gpus[0].max_sm_clock_mhz is None
    assert run(["compare", str(path), str(path)]) == 3  # one block
    assert "at 92% of the highest clock in this record" in " ".join(capsys.readouterr().err.split())


def test_a_record_of_before_is_not_kept_twice(tmp_path: Path) -> None:
    """The name is that of earlier versions, so that the folder knows the measurement."""
    _, record = earlier(tmp_path)
    path, is_new = keep(record, tmp_path / "history")
    assert is_new and path.name == "20261120T120000Z-e86dc2350fd9.json"
    assert keep(record, tmp_path / "history") == (path, False)
