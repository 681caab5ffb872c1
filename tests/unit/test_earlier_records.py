"""Records of earlier schemas, and with names that the code no longer uses, stay readable: one of each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from omni_cli.cli.report_documents import load_view
from omni_cli.measure.bench.bisect import SearchFolder
from omni_cli.measure.bench.commits import CommitInfo
from omni_cli.records.record import load_record
from omni_cli.records.record_file import get_digest, save_record
from omni_cli.records.tune_record import load_tune_record

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
