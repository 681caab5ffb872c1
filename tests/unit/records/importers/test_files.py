"""Files that the tools themselves wrote (tests/data/other_tools) become records: compared, kept over time, drawn."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from omni_cli.cli.app import run
from omni_cli.core.errors import InputError
from omni_cli.records.importers.files import load_any, load_newest

DATA = Path(__file__).parents[3] / "data" / "other_tools"

# File, tool, variants, samples of the first variant, a part of the sentences on what it lacks.
FILES = [
    ("hyperfine-1.json", "hyperfine", 2, 24, "neither the machine nor versions nor a commit"),
    ("pytest-benchmark-1.json", "pytest-benchmark", 2, 24, ""),
    ("pytest-benchmark-summary.json", "pytest-benchmark", 2, 1, "`--benchmark-save-data`"),
    ("vllm-1.json", "vllm bench serve", 1, 20, "neither the machine"),
    ("vllm-summary.json", "vllm bench serve", 1, 16, "`--save-detailed`"),
    ("sglang-1.jsonl", "sglang bench_serving", 1, 20, "neither the machine"),
    ("sglang-3.jsonl", "sglang bench_serving", 1, 20, "neither the machine"),
    ("guidellm-1.json", "guidellm", 3, 20, "neither the machine"),
    ("aiperf-1.jsonl", "aiperf", 1, 18, "neither the machine"),
    ("aiperf-summary.json", "aiperf", 1, 1, "profile_export.jsonl"),
    ("github-action-benchmark.json", "github-action-benchmark", 2, 1, "no interval"),
]


@pytest.mark.parametrize(("name", "tool", "variants", "samples", "missing"), FILES)
def test_what_a_file_has_and_what_it_lacks(name: str, tool: str, variants: int, samples: int, missing: str) -> None:
    item = load_newest(DATA / name)
    assert item.record.workload["tool"] == tool
    assert len(item.record.variants) == variants
    assert len(item.record.variants[0].samples) >= samples
    assert missing in " ".join(item.missing)
    assert bool(item.missing) == bool(missing)


def test_values_are_those_of_the_tool() -> None:
    hyperfine = json.loads((DATA / "hyperfine-1.json").read_text())["results"][0]
    assert [s.e2e_s for s in load_newest(DATA / "hyperfine-1.json").record.variants[0].samples] == hyperfine["times"]
    vllm = json.loads((DATA / "vllm-1.json").read_text())
    (variant,) = load_newest(DATA / "vllm-1.json").record.variants
    sent = [value for sample in variant.samples for value in sample.requests["e2e_s"]]
    assert sent == vllm["latencies"]
    assert sum(sample.work["output_tokens"] for sample in variant.samples) == vllm["total_output_tokens"]
    ttfts = [value for sample in variant.samples for value in sample.requests["ttft_s"]]
    assert ttfts == vllm["ttfts"]
    sglang = json.loads((DATA / "sglang-1.jsonl").read_text())
    (variant,) = load_newest(DATA / "sglang-1.jsonl").record.variants
    sent = sorted(value for sample in variant.samples for value in sample.requests["e2e_s"] if value)
    middle = (sent[len(sent) // 2 - 1] + sent[len(sent) // 2]) / 2
    assert middle * 1000 == pytest.approx(sglang["median_e2e_latency_ms"], rel=0.05)
    summary = json.loads((DATA / "aiperf-summary.json").read_text())["request_latency"]
    (variant,) = load_newest(DATA / "aiperf-summary.json").record.variants
    assert variant.samples[0].e2e_s * 1000 == pytest.approx(summary["p50"])


def test_a_report_of_guidellm(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = json.loads((DATA / "guidellm-1.json").read_text())
    record = load_newest(DATA / "guidellm-1.json").record
    names = ["synchronous", "throughput", "constant@132.488"]
    assert [variant.name for variant in record.variants] == names and record.created == "2026-11-29T12:27:54Z"
    of_file = sorted(report["benchmarks"][1]["requests"]["successful"], key=lambda item: item["request_start_time"])
    samples = record.variants[1].samples
    for column, key, scale in (("e2e_s", "request_latency", 1), ("ttft_s", "time_to_first_token_ms", 1e-3)):
        values = [value for sample in samples for value in sample.requests[column]]
        assert values == [pytest.approx(item[key] * scale) for item in of_file]
    assert sum(sample.work["output_tokens"] for sample in samples) == sum(item["output_tokens"] for item in of_file)

    first, second, _ = report["benchmarks"]
    failed = {
        **of_file[0],
        "info": {"error": "HTTPStatusError('500')"},
        "request_start_time": None,
        "request_latency": None,
    }
    first["requests"]["errored"], first["metrics"]["request_totals"]["errored"] = [failed], 1
    second["requests"]["successful"], second["metrics"]["request_totals"]["total"] = of_file[:12], 22
    path = tmp_path / "report.json"
    path.write_text(json.dumps(report))
    item = load_newest(path)
    assert "1 of 21 requests failed: 1 x HTTPStatusError; the first one:" in (item.record.variants[0].failure or "")
    assert "throughput: 10 of 22 requests had not ended, or are not kept: left out" in item.missing

    report["metadata"]["version"] = 3
    path.write_text(json.dumps(report))
    assert run(["compare", str(path), str(path)]) == 2
    assert "the version of GuideLLM's report is 3, known is 2" in " ".join(capsys.readouterr().err.split())


def test_commands_of_equal_names_are_kept_apart(tmp_path: Path) -> None:
    runs = [[0.1, 0.11], [0.2, 0.21], [0.3, 0.31], [0.4, 0.41]]
    results: list[dict[str, Any]] = [{"command": "sort file", "times": times, "exit_codes": [0, 0]} for times in runs]
    path = tmp_path / "hyperfine.json"
    path.write_text(json.dumps({"results": results}))
    variants = load_newest(path).record.variants
    assert [variant.name for variant in variants] == ["sort file", *(f"sort file ({n})" for n in (2, 3, 4))]
    assert [[sample.e2e_s for sample in variant.samples] for variant in variants] == runs
    for result, threads in zip(results, ("1", "2", "2", ""), strict=True):
        result["parameters"] = {"threads": threads} if threads else {}
    path.write_text(json.dumps({"results": [*results, {"command": "sort file (2)", "times": [1.0]}]}))
    names = ["sort file (threads=1)", "sort file (threads=2)", "sort file (threads=2) (2)", "sort file"]
    assert [variant.name for variant in load_newest(path).record.variants] == [*names, "sort file (2)"]


def test_dates_without_a_zone_are_local_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`vllm bench serve` and AIPerf's summary write local time, AIPerf's lines and pytest-benchmark do not."""
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        dates = {name: load_newest(DATA / name).record.created for name, *_ in FILES}
        assert dates["vllm-1.json"] == "2026-11-22T06:02:56Z"
        assert dates["aiperf-summary.json"] == "2026-11-22T06:03:41Z"
        path = tmp_path / "summary.json"
        path.write_text((DATA / "aiperf-summary.json").read_text().replace("41.347732", "41+02:00"))
        assert load_newest(path).record.created == "2026-11-22T13:03:41Z"
        assert dates["guidellm-1.json"] == "2026-11-29T12:27:54Z"
        assert dates["aiperf-1.jsonl"].endswith("Z") and dates["pytest-benchmark-1.json"].endswith("+00:00")
        folder = tmp_path / "history"
        assert run(["history", "add", *(str(DATA / name) for name, *_ in FILES), "--history", str(folder)]) == 0
        assert run(["history", "show", "--history", str(folder)]) == 0
        assert (folder / sorted(path.name for path in folder.iterdir())[0]).exists()
    finally:
        monkeypatch.undo()
        time.tzset()


def test_a_rate_becomes_the_time_of_one_operation_and_its_entries_a_history() -> None:
    entries = json.loads((DATA / "github-action-benchmark.json").read_text())["entries"]["Benchmark"]
    items = load_any(DATA / "github-action-benchmark.json")
    assert len(items) == len(entries) == 16
    assert items[-1].record.variants[0].samples[0].e2e_s == pytest.approx(1 / entries[-1]["benches"][0]["value"])
    assert [item.record.environment["code"]["commit"] for item in items] == [e["commit"]["id"] for e in entries]


@pytest.mark.parametrize(
    ("a", "b", "code"),
    [
        ("hyperfine-1.json", "hyperfine-2.json", 0),
        ("pytest-benchmark-1.json", "pytest-benchmark-2.json", 3),
        ("vllm-1.json", "vllm-2.json", 3),
        ("sglang-1.jsonl", "sglang-2.jsonl", 3),
        ("aiperf-1.jsonl", "aiperf-2.jsonl", 4),  # other answers, of other lengths
        ("aiperf-summary.json", "aiperf-summary.json", 3),
        ("github-action-benchmark.json", "github-action-benchmark.json", 3),
        ("hyperfine-1.json", "pytest-benchmark-1.json", 2),
    ],
)
def test_compare(a: str, b: str, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["compare", str(DATA / a), str(DATA / b)]) == code
    err = capsys.readouterr().err
    assert "`omni bench" not in err and "--time-budget" not in err, "hints about another tool's runs"
    if code == 4:
        assert "work.output_tokens" in err
        assert run(["compare", str(DATA / a), str(DATA / b), "--allow-difference", "work"]) in (0, 3)


def test_add_names_the_commit_and_takes_a_measurement_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "history"
    add = ["history", "add", *(str(DATA / name) for name, *_ in FILES), "--history", str(folder), "--commit", "abc123"]
    assert run(add) == 0
    files = sorted(path.name for path in folder.iterdir())
    assert len(files) == len(FILES) - 1 + 16
    assert run(add) == 0
    assert sorted(path.name for path in folder.iterdir()) == files
    commits = {json.loads(path.read_text())["environment"]["code"]["commit"] for path in folder.iterdir()}
    assert "abc123" in commits and len(commits) == 17
    assert capsys.readouterr().out.count("there already") == len(files)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["vllm-1.json", "aiperf-summary.json", "github-action-benchmark.json"])
def test_report(name: str, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert run(["report", str(DATA / name), "-o", str(page)]) == 0
    content = page.read_text()
    assert "<svg" in content and (
        "no interval" in content or "assumed to be equal" in content or "16 records" in content
    )


def test_units(tmp_path: Path) -> None:
    path = tmp_path / "values.json"
    benches = [
        {"name": "a", "unit": "ns/iter", "value": 250.0},
        {"name": "b", "unit": "ops/sec", "value": 50.0},
        {"name": "c", "unit": "MB", "value": 3.0},
    ]
    path.write_text(json.dumps(benches))
    item = load_newest(path)
    assert {v.name: v.samples[0].e2e_s for v in item.record.variants} == {"a": pytest.approx(2.5e-7), "b": 0.02}
    assert "left out, because their units are neither times nor rates: `c` (MB)" in item.missing


def test_the_script_that_the_action_writes_for_its_page(tmp_path: Path) -> None:
    path = tmp_path / "data.js"
    path.write_text(f"window.BENCHMARK_DATA = {(DATA / 'github-action-benchmark.json').read_text()}")
    assert len(load_any(path)) == 16


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"results": [{"command": "x", "times": [0.1, "fast"]}]}', "got `str` at `results[0].times[1]`"),
        ('{"results": []}', "hyperfine has no results"),
        ('{"results": [{"command": "x", "times": [1, 2], "exit_codes": [0]}]}', "2 `times`, but 1 `exit_codes`"),
        ('{"model_id": "m", "tokenizer_id": "t", "completed": 0}', "no latency from end to end"),
        ('{"model_id": "m", "tokenizer_id": "t", "completed": 2, "latencies": [1, 2], "ttfts": [1]}', "lengths: 1, 2"),
        ('{"lastUpdate": 1, "entries": {"a": [{"commit": {"id": "c"}}]}}', "missing required field"),
        ('{"lastUpdate": 1, "entries": {}}', "has no results"),
        ('{"metadata": 1, "benchmarks": []}', "not a complete file of guidellm"),
        ('{"metadata": {"version": 2}, "benchmarks": [{}]}', "not a complete file of guidellm: 'config'"),
        ('{"metadata": {"version": 2}, "benchmarks": 7}', "not a complete file of guidellm"),
        ('{"aiperf_version": "9", "schema_version": "2.0", "request_latency": {}}', "schema version is 2.0"),
        ('[{"name": "a", "unit": "MB", "value": 1}]', "has no results"),
        ('{"times": [1]}', "has no `schema`"),
        ('{"results": [', "is truncated"),
    ],
)
def test_broken_files(content: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "file.json"
    path.write_text(content)
    with pytest.raises(InputError) as found:
        load_any(path)
    assert message in found.value.message
    good = DATA / "hyperfine-1.json"
    assert run(["history", "add", str(good), str(path), "--history", str(tmp_path / "history")]) == 2
    assert not (tmp_path / "history").exists()
    assert capsys.readouterr().err.count("error: ") == 1


def test_a_truncated_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "profile_export.jsonl"
    path.write_bytes((DATA / "aiperf-1.jsonl").read_bytes()[:3000])
    with pytest.raises(InputError, match=r"line 2 is not JSON"):
        load_any(path)
