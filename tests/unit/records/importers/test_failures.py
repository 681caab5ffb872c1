"""Files of other tools with runs and requests that failed: they are counted, are no timings, and pass no gate."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from omni_cli.cli.app import run
from omni_cli.records.importers.files import load_newest

DATA = Path(__file__).parents[3] / "data" / "other_tools"

Edit = Callable[[Any], object]


def written(folder: Path, name: str, edit: Edit) -> Path:
    """A file that a tool wrote, with a change; `edit` gets its document, or the list of its lines."""
    content = (DATA / name).read_text()
    is_lines = name.startswith("aiperf-1")
    document = [json.loads(line) for line in content.splitlines()] if is_lines else json.loads(content)
    edit(document)
    path = folder / f"bad-{name}"
    path.write_text("".join(json.dumps(line) + "\n" for line in document) if is_lines else json.dumps(document))
    return path


def hyperfine(**fields: Any) -> Edit:
    return lambda document: document["results"][0].update(fields)


def hyperfine_times(change: dict[int, Any], key: str = "times") -> Edit:
    def edit(document: Any) -> None:
        for number, value in change.items():
            document["results"][0][key][number] = value

    return edit


def request(number: int, **values: Any) -> Edit:
    """Set values of one request of a file that has a list per value."""

    def edit(document: Any) -> None:
        for key, value in values.items():
            document[key][number] = value

    return edit


def without(*keys: str, **fields: Any) -> Edit:
    """Remove the lists of requests, as a file without details, and set other fields."""

    def edit(document: Any) -> None:
        for key in ("latencies", "ttfts", "itls", "errors", "input_lens", "output_lens", *keys):
            document.pop(key, None)
        document.update(fields)

    return edit


def all_failed(document: Any) -> None:
    count = len(document["ttfts"])
    document.update(completed=0, ttfts=[0.0] * count, itls=[[]] * count, errors=["Bad Gateway"] * count)
    document.pop("latencies", None)


def line(number: int, **fields: Any) -> Edit:
    """Set fields of a profiled request of AIPerf."""

    def edit(lines: Any) -> None:
        profiled = [item for item in lines if item["metadata"]["benchmark_phase"] == "profiling"]
        profiled[number].update(fields)

    return edit


def summary(*keys: str, **fields: Any) -> Edit:
    def edit(document: Any) -> None:
        for key in keys:
            del document[key]
        document.update(fields)

    return edit


def round_of(**fields: Any) -> Edit:
    return lambda document: document["benchmarks"][0]["stats"].update(fields)


def value_of(value: float | None) -> Edit:
    return lambda document: document["entries"]["Benchmark"][-1]["benches"][0].update(value=value)


def of(value: float) -> dict[str, Any]:
    return {"unit": "requests", "avg": value}


DIED = {"code": 500, "type": "Internal Server Error", "message": "engine died"}
TRACE = "Traceback (most recent call last):\n  File x\naiohttp.ClientError: gone\n"
ALL = ("request_latency", "request_count")

FILES: list[tuple[str, Edit, str]] = [
    ("hyperfine-1.json", hyperfine_times({3: 139, 5: 139}, "exit_codes"), "2 of 24 runs failed: 2 x exit code 139; the "
     "first one: run 4"),
    ("hyperfine-1.json", hyperfine_times({0: None}, "exit_codes"), "1 of 24 runs failed: 1 x ended by a signal"),
    ("hyperfine-1.json", hyperfine(exit_codes=[1] * 24), "24 of 24 runs failed: 24 x exit code 1"),
    ("hyperfine-1.json", hyperfine(exit_codes=[0] * 23 + [1], times=[]), "1 of 24 runs failed: 1 x exit code 1"),
    ("hyperfine-1.json", hyperfine_times({3: None}), "1 of 24 runs failed: 1 x no duration; the first one: run 4"),
    ("hyperfine-1.json", hyperfine_times({3: -0.1, 4: math.nan, 5: math.inf, 6: 0}), "4 of 24 runs failed"),
    ("hyperfine-1.json", hyperfine(times=[], median=None, mean=None), "it has no time"),
    ("hyperfine-1.json", hyperfine(times=[], median=math.nan), "nan s is not a duration"),
    ("vllm-1.json", request(5, errors="Service Unavailable", latencies=0.0), "1 of 48 requests failed: 1 x Service"),
    ("vllm-1.json", request(5, errors=TRACE), "1 x aiohttp.ClientError; the first one: aiohttp.ClientError: gone"),
    ("vllm-1.json", request(5, latencies=0.0, ttfts=0.0, itls=[]), "1 of 48 requests failed: 1 x no answer"),
    ("vllm-1.json", request(5, latencies=math.nan), "1 of 48 requests failed: 1 x no duration; the first one: its"),
    ("vllm-1.json", request(5, latencies=None), "1 of 48 requests failed: 1 x no answer"),
    ("vllm-1.json", request(5, ttfts=-0.5), "1 of 48 requests failed: 1 x no duration; the first one: its `ttft_s`"),
    ("vllm-1.json", request(5, itls=[0.1, math.nan]), "1 x no duration; the first one: an inter-token latency of nan"),
    ("vllm-1.json", summary(completed=40, failed=8), "8 of 48 requests failed"),
    ("vllm-1.json", summary("failed", completed=40), "8 of 48 requests failed"),
    ("vllm-1.json", all_failed, "48 of 48 requests failed: 48 x Bad Gateway"),
    ("vllm-1.json", without(failed=8, completed=40, median_e2el_ms=9.0), "8 of 48 requests failed"),
    ("vllm-1.json", without("failed", completed=40, median_e2el_ms=9.0), "8 of 48 requests failed"),
    ("vllm-1.json", without(failed=48, completed=0, median_e2el_ms=0.0), "48 of 48 requests failed"),
    ("vllm-1.json", without(median_e2el_ms=-9.0), "-0.009 s is not a duration"),
    ("sglang-1.jsonl", request(5, errors="Internal Server Error", ttfts=0.0, itls=[]), "1 x Internal Server Error"),
    ("sglang-1.jsonl", request(5, ttfts=None), "1 of 48 requests failed: 1 x no answer"),
    ("sglang-1.jsonl", request(5, itls=[0.1, math.inf]), "1 of 48 requests failed: 1 x no duration"),
    ("sglang-1.jsonl", summary(completed=47), "1 of 48 requests failed"),
    ("sglang-1.jsonl", all_failed, "48 of 48 requests failed: 48 x Bad Gateway"),
    ("aiperf-1.jsonl", line(2, error=DIED), "1 of 18 requests failed: 1 x HTTP 500; the first one: engine died"),
    ("aiperf-1.jsonl", line(2, metrics={}), "1 of 18 requests failed: 1 x no answer"),
    ("aiperf-1.jsonl", line(2, metrics={"request_latency": {"value": None, "unit": "ms"}}), "1 x no answer"),
    ("aiperf-1.jsonl", line(2, metrics={"request_latency": {"value": -1, "unit": "ms"}}), "1 x no duration"),
    ("aiperf-1.jsonl", line(2, metadata={"request_start_ns": 10**18, "was_cancelled": True}), "1 x cancelled"),
    ("aiperf-summary.json", summary(error_request_count=of(2.0)), "2 of 50 requests failed: 2 x error"),
    ("aiperf-summary.json", summary(error_summary=[{"error_details": DIED, "count": 2}]), "2 of 50 requests failed: 2 x"
     " HTTP 500; the first one: engine died"),
    ("aiperf-summary.json", summary(request_error_rate=of(4.0)), "4% of its requests failed"),
    ("aiperf-summary.json", summary(was_cancelled=True), "it was cancelled"),
    ("aiperf-summary.json", summary(is_complete=False), "it is not complete"),
    ("aiperf-summary.json", summary(*ALL, error_request_count=of(48.0)), "48 of 48 requests failed"),
    ("pytest-benchmark-1.json", round_of(data=[1e-4] * 29 + [None]), "1 of 30 runs failed"),
    ("pytest-benchmark-summary.json", round_of(median=math.nan), "nan s is not a duration"),
    ("github-action-benchmark.json", value_of(0.0), "0 s is not a duration"),
    ("github-action-benchmark.json", value_of(None), "it has no time"),
    ("github-action-benchmark.json", value_of(math.inf), "0 s is not a duration"),
    ("github-action-benchmark.json", value_of(-3.0), "-0.333333 s is not a duration"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "edit", "sentence"), FILES)
def test_failures_are_shown_and_fail_the_gate(
    name: str, edit: Edit, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = written(tmp_path, name, edit)
    first = load_newest(bad).record.variants[0]
    assert first.failure is not None and sentence in first.failure
    for a, b in ((DATA / name, bad), (bad, DATA / name), (bad, bad)):
        for limit in ([], ["--max-regression", "40%"]):
            assert run(["compare", str(a), str(b), *limit]) == 6
            assert first.failure in capsys.readouterr().err
    assert run(["history", "add", str(bad), "--history", str(tmp_path / "history")]) == 0
    assert first.failure in capsys.readouterr().err


def test_failed_runs_are_no_timings(tmp_path: Path) -> None:
    bad = written(tmp_path, "hyperfine-1.json", hyperfine_times({0: 1, 23: None}, "exit_codes"))
    times = json.loads((DATA / "hyperfine-1.json").read_text())["results"][0]["times"]
    (first, second) = load_newest(bad).record.variants
    assert [sample.e2e_s for sample in first.samples] == times[1:-1]
    assert second.failure is None
    bad = written(tmp_path, "vllm-1.json", request(5, errors="gone"))
    (variant,) = load_newest(bad).record.variants
    assert sum(sample.requests["e2e_s"].count(None) for sample in variant.samples) == 1
    assert sum(sample.work["requests"] for sample in variant.samples) == 47
    assert {kind: found.count for sample in variant.samples for kind, found in sample.failures.items()} == {"gone": 1}


def test_answers_without_a_token_are_no_failures_if_the_tool_counts_them_as_answered(tmp_path: Path) -> None:
    item = load_newest(written(tmp_path, "sglang-1.jsonl", request(5, ttfts=0.0, itls=[], output_lens=0)))
    (variant,) = item.record.variants
    assert variant.failure is None
    assert sum(sample.work["requests"] for sample in variant.samples) == 47
    assert "1 of 48 answers are empty, so that they have no times: left out" in item.missing


def test_a_benchmark_that_pytest_left_out_is_not_passed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, junit = DATA / "pytest-benchmark-1.json", tmp_path / "gate.xml"
    bad = written(tmp_path, good.name, lambda document: document["benchmarks"].pop())
    limit = ["--max-regression", "40%", "--junit", str(junit)]
    assert run(["compare", str(good), str(bad), *limit]) == 3
    sentence = "`hf/test_bench.py::test_dumps` is only in A, and pytest-benchmark leaves out what failed"
    assert sentence in capsys.readouterr().err and sentence in junit.read_text()
    assert run(["compare", str(bad), str(good), *limit]) == 0, "a new benchmark"


def test_what_a_file_cannot_tell_is_said(tmp_path: Path) -> None:
    """SGLang does not count failures without details; its time per token is below 0 where tokens come at once."""
    item = load_newest(written(tmp_path, "sglang-1.jsonl", without(median_tpot_ms=-0.001)))
    assert item.record.variants[0].failure is None
    assert "it does not say whether requests failed: run it with `--output-details`" in item.missing
    at_once = written(tmp_path, "aiperf-summary.json", summary(inter_token_latency={"unit": "ms", "p50": 0.0}))
    assert load_newest(at_once).record.variants[0].failure is None


PAGES = [item for item in FILES if item[2].startswith(("24 of 24", "1 x aiohttp", "48 of 48 requests failed: 48"))]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "edit", "sentence"), PAGES)
def test_the_page_says_failed(name: str, edit: Edit, sentence: str, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert run(["report", str(written(tmp_path, name, edit)), "-o", str(page)]) == 0
    content = page.read_text()
    assert "failed" in content and sentence in content
