"""Records and verdicts as text, Markdown, JUnit XML and JSON: content and alignment."""

from __future__ import annotations

import json
from typing import Any
from xml.etree import ElementTree

import msgspec
import numpy as np
import pytest
from support.bench_records import ABBA, pair, record, variant
from support.report_records import server_record

from omni_cli.config.gate_limits import GateLimits
from omni_cli.records.record import Energy, Memory
from omni_cli.records.results import RecordOrigin
from omni_cli.report import units
from omni_cli.report.bench_view import bench_view, smaller_is_better_json, variant_section
from omni_cli.report.comparison_view import compare_document, comparison_view
from omni_cli.report.comparison_words import Labels, comparison_notes, gate_failure, get_failure
from omni_cli.report.renderers import to_junit, to_markdown, to_text
from omni_cli.report.view import Note, Verdict, View
from omni_cli.stats.blocks import get_summaries, summarise
from omni_cli.stats.verdicts import ComparisonResult, ComparisonSpec, compare_records, compare_within, own_report

LABELS = Labels("a.json", "b.json")


def text_of(result: ComparisonResult) -> str:
    return to_text(comparison_view(result, LABELS))


def variant_lines(*arguments: Any) -> list[str]:
    view = View(kind="", title="", verdict=Verdict("", "plain"), sections=[variant_section(*arguments)])
    return to_text(view).splitlines()


def steady(name: str, seconds: float, slots: tuple[int, int], *, blocks: int = 30, **fields):
    """A variant with a little noise of known medians: half its runs 1 % below, half 1 % above."""
    times = seconds * np.tile([0.99, 1.01], (blocks, 1))
    return variant(name, times, slots=slots, **fields)


def test_the_table_of_a_comparison() -> None:
    eager = steady(
        "eager", 1.842, ABBA[0], settings={"execution": "eager"}, memory=Memory(peak_allocated_bytes=27 << 30)
    )
    graph = steady(
        "cudagraph", 1.616, ABBA[1], settings={"execution": "cudagraph"}, memory=Memory(peak_allocated_bytes=28 << 30)
    )
    found = compare_within(
        record(eager, graph), ComparisonSpec(limits=GateLimits({"e2e_s": 0.03, "peak_allocated_bytes": 0.02}))
    )
    assert text_of(found).splitlines() == [
        "cudagraph (B) against eager (A), centres of 30 blocks each, measured interleaved",
        "  Metric             eager  cudagraph  B / A [95% CI]        Verdict",
        "  e2e              1.842 s    1.616 s  0.877 [0.877, 0.877]  faster",
        "  peak allocated  27.0 GiB   28.0 GiB  1.037 (+1.0 GiB)      more memory",
        "  outputs                                                    identical",
        "Differs only in: settings.execution (eager -> cudagraph)",
        "cudagraph ran 1.140 [1.140, 1.140] times faster than eager, for +1.0 GiB",
        "Worth it: cudagraph gains 226.0 ms [226.0, 226.0] per request for +1.0 GiB",
        "",
        "Gate",
        "  e2e              1.842 s -> 1.616 s     -12.3%   limit +3%   pass",
        "  peak allocated   27.0 GiB -> 28.0 GiB   +3.7%    limit +2%   regression",
    ]
    assert gate_failure(found.gate).message == (
        "gate failed: `peak_allocated_bytes` is worse by +3.7%, the limit is 2%"
    )


def test_the_mode_used_is_reported_per_stage_if_there_are_several() -> None:
    talker = {"graph_replays": 32.0, "eager_calls": 1.0, "copy_s": 0.2, "copy_hidden_s": 0.2}

    def title(counters: dict[str, dict[str, float]]) -> str:
        ran = steady("full", 0.1, ABBA[0], blocks=2, work={"output_tokens": 64}, effective={"engagement": counters})
        samples = tuple(msgspec.structs.replace(sample, execution_counters=counters) for sample in ran.samples)
        return variant_lines(1, msgspec.structs.replace(ran, samples=samples), {})[0]

    assert title({"talker": talker}) == (
        "Benchmark 1: full   64 output tokens; replayed 128 of 132 calls, hid 100% of the copying"
    )
    assert title({"thinker": {"copies": 0.0}, "talker": talker, "token2wav": {"graph_replays": 10.0}}) == (
        "Benchmark 1: full   64 output tokens; talker replayed 128 of 132 calls, hid 100% of the copying; "
        "token2wav replayed 40 of 40 calls"
    )


def test_the_paragraph_of_a_variant() -> None:
    few = steady("eager", 0.0648, ABBA[0], blocks=15, metrics={"denoise_step_s": 0.1})
    summaries = {name: summarise(few, name) for name in ("e2e_s", "denoise_step_s")}
    lines = variant_lines(1, few, summaries)
    assert lines == [
        "Benchmark 1: eager   16 output tokens, 0.48 s audio",
        "  Latency (median, 95% CI):        64.80 ms  [64.80, 64.80]",
        "  Range (min … max):               64.15 ms … 65.45 ms        30 runs",
        "  denoise step (median, 95% CI):   6.480 ms  [6.480, 6.480]",
        "  Memory (peak allocated):         1.0 GiB",
    ]
    many = steady("eager", 0.0648, ABBA[0], blocks=22, memory=Memory(peak_host_rss_bytes=2**30))
    lines = variant_lines(2, many, {"e2e_s": summarise(many, "e2e_s")})
    assert lines[0].startswith("Benchmark 2: eager")
    assert lines[1].endswith("p90 65.45 ms")
    assert lines[-1].split() == ["Memory", "(peak", "host", "RSS):", "1.0", "GiB"]


def test_energy_has_its_counter_its_unit_and_its_own_words() -> None:
    counters = Energy(sources={"gpu0": "NVML counter", "gpu1": "integrated power"}, idle_power_w={"gpu0": 71.26})
    metrics = {"energy_j": 50_000.0, "energy_per_output_token_j": 0.25}
    a, b = (
        steady(name, seconds, slots, metrics=metrics, energy=counters)
        for name, seconds, slots in (("a", 0.1, ABBA[0]), ("b", 0.05, ABBA[1]))
    )
    lines = variant_lines(1, a, {name: summarise(a, name) for name in ("e2e_s", *metrics)})
    assert [" ".join(line.split()) for line in lines[3:]] == [
        "energy (median, 95% CI): 5.000 kJ [5.000, 5.000] p90 5.050 kJ",
        "energy per output token (median, 95% CI): 25.00 mJ [25.00, 25.00] p90 25.25 mJ",
        "Memory (peak allocated): 1.0 GiB",
        "Energy counters: gpu0 by NVML counter, idle 71.3 W, gpu1 by integrated power",
    ]
    text = text_of(compare_within(record(a, b)))
    assert "energy                   5.000 kJ  2.500 kJ  0.500 [0.500, 0.500]  less energy" in text
    assert "more energy" in text_of(compare_within(record(b, a)))


def test_energy_that_was_asked_for_and_is_not_there_has_a_reason() -> None:
    a, b = pair(20)
    assert not [note for note in comparison_notes(compare_within(record(a, b))) if "energy" in note.message]
    b = msgspec.structs.replace(b, energy=Energy(absent="no NVIDIA device with a counter, and no RAPL"))
    found = compare_within(record(a, b, msgspec.structs.replace(b, name="c")), ComparisonSpec(metrics=("energy_j",)))
    (note,) = comparison_notes(found)
    assert note.message == "no energy_j: no NVIDIA device with a counter, and no RAPL"
    assert get_failure(found) == Note("no verdict: no NVIDIA device with a counter, and no RAPL")


def test_an_undecided_pair_names_the_missing_time() -> None:
    measured = record(*pair(12, 1.02, seed=0))
    found = compare_within(measured)
    text = text_of(found)
    item: Any = found.comparisons[0]
    # A block of this record runs each variant twice, in about 0.1 s.
    assert item.blocks_needed > 1 and item.seconds_needed == pytest.approx(0.4 * item.blocks_needed, rel=0.05)
    change = units.percent(found.comparisons[0].ratio - 1)
    assert f"b against a is undecided: {change}, about {units.duration(item.seconds_needed)} more would decide" in text


def test_an_inconclusive_gate_names_only_its_own_missing_time() -> None:
    found = compare_within(record(*pair(12, 1.02, seed=0)), ComparisonSpec(limits=GateLimits({"e2e_s": 0.03})))
    change = units.percent(found.comparisons[0].ratio - 1)
    # Whether the two are equal is another question, with another number.
    assert "more would decide" not in text_of(found)
    note = gate_failure(found.gate)
    assert note.message.startswith(f"gate inconclusive: e2e {change} [")
    needed: Any = found.gate.seconds_needed
    assert note.hint.startswith(f"measure about {units.duration(needed)} more: ")
    assert "about" not in note.message
    assert "--time-budget" in note.hint


def test_work_that_was_varied_is_beside_the_ratio() -> None:
    a, b = (msgspec.structs.replace(v, settings={"max_tokens": n}) for n, v in enumerate(pair(20)))
    longer = msgspec.structs.replace(
        b, samples=tuple(msgspec.structs.replace(s, work={**s.work, "output_tokens": 32.0}) for s in b.samples)
    )
    found = compare_within(record(a, longer))
    assert comparison_notes(found) == []
    assert "\nDoes other work per run: output tokens 16 -> 32\n" in text_of(found)
    assert "Does other work per run: output tokens 16 -> 32" in to_markdown(comparison_view(found, LABELS))


def test_markdown_starts_with_the_verdict() -> None:
    found = compare_within(record(*pair(40, 1.2, cv=0.01)), ComparisonSpec(limits=GateLimits({"e2e_s": 0.05})))
    lines = to_markdown(comparison_view(found, LABELS)).splitlines()
    assert lines[0] == "### omni gate: regression"
    tables = [line for line in lines if line.startswith("|")]
    assert tables[0] == "| Gated | A | B | Change [95% CI] | Limit | Verdict |"
    assert any("**regression**" in line for line in tables)
    assert "No setting differs" in lines


@pytest.mark.parametrize(
    ("slowdown", "tag", "count"), [(1.0, None, 0), (1.2, "failure", 1), (1.05, "error", 1)], ids=str
)
def test_junit(slowdown: float, tag: str | None, count: int) -> None:
    found = compare_within(
        record(*pair(40, slowdown, cv=0.01)), ComparisonSpec(limits=GateLimits({"e2e_s": 0.05}, 0.0))
    )
    (suite,) = ElementTree.fromstring(to_junit(comparison_view(found, LABELS), "x"))
    assert suite.get("tests") == "2"
    for name, plural in (("failure", "failures"), ("error", "errors"), ("skipped", "skipped")):
        assert suite.get(plural) == str(count if name == tag else 0)
    assert [case.get("name") for case in suite] == ["b: e2e", "outputs"]


def test_documents_are_plain_json() -> None:
    found = compare_within(record(*pair(5)), ComparisonSpec(limits=GateLimits({"e2e_s": 0.05, "rtf": 0.1})))
    document = json.loads(msgspec.json.encode(compare_document(found, RecordOrigin("a"), RecordOrigin("b"))))
    assert json.loads(json.dumps(document, allow_nan=False)) == document
    assert document["comparisons"][0]["ci95"] is None
    assert document["gate"]["metrics"][1]["reason"] == "not measured on both sides"


def test_summaries_as_json() -> None:
    a, _ = pair(30, cv=0.01)
    summary = summarise(a, "e2e_s")
    entry = msgspec.to_builtins(summary)
    assert entry.keys() == {"n", "median", "ci95", "min", "max", "p90", "p99"}
    assert (entry["n"], entry["p99"]) == (60, None)
    assert entry["min"] < entry["ci95"][0] < entry["median"] < entry["ci95"][1] < entry["p90"] < entry["max"]
    (smaller,) = smaller_is_better_json(msgspec.structs.replace(a, name="tiny-omni"), {"e2e_s": summary})
    assert smaller.keys() == {"name", "unit", "value", "range", "extra"}
    assert (smaller["name"], smaller["unit"], smaller["value"]) == ("tiny-omni: e2e", "s", summary.median)


@pytest.mark.parametrize(
    ("metric", "value", "like", "text"),
    [
        ("e2e_s", 1.8424, None, "1.842 s"),
        ("e2e_s", 0.0381, None, "38.10 ms"),
        ("e2e_s", 0.9851, 1.552, "0.985 s"),
        ("e2e_s", 2.5e-5, None, "25.00 us"),
        ("e2e_s", 125.0, None, "125.0 s"),
        ("images_per_second", 3.214, None, "3.214/s"),
        ("peak_allocated_bytes", 16 << 30, None, "16.0 GiB"),
        ("rtf", 0.82, None, "0.8200"),
        ("e2e_s", None, None, "-"),
        ("e2e_s", float("nan"), None, "-"),
        ("rtf", 0.0, None, "0"),
    ],
)
def test_quantities(metric: str, value: float | None, like: float | None, text: str) -> None:
    assert units.quantity(metric, value, like) == text


def test_changes_and_ratios() -> None:
    assert units.percent(0.0704) == "+7.0%"
    assert units.percent(-0.0001) == "+0.0%"
    assert units.percent_interval(0.07, (0.061, 0.079)) == "+7.0% [+6.1%, +7.9%]"
    assert units.percent_interval(0.0012, (0.0, 0.0024)) == "+0.12% [+0.00%, +0.24%]"
    assert units.ratio(1.14, (1.13, 1.15)) == "1.140 [1.130, 1.150]"
    assert units.ratio(1.14, (1.0, 1.3)) == "1.14 [1.00, 1.30]"
    assert units.ratio(1.00012, (1.0, 1.0003)) == "1.00012 [1.00000, 1.00030]"
    assert units.ratio(1.14, None) == "1.140 [n/a]"
    assert units.size_change(2**30, 2**29) == "-512 MiB"
    assert [units.title(name) for name in ("e2e_s", "thinker.ttft_s", "images_per_second")] == [
        "e2e", "thinker.ttft", "images per second",
    ]  # fmt: skip


def test_pairs_of_two_records_have_names_of_their_own() -> None:
    a, b = pair(20, 1.2)
    found = compare_records(record(a, b), record(a, b))
    lines = [line for line in text_of(found).splitlines() if " (B) against " in line]
    assert [line.partition(", centres")[0] for line in lines] == [
        "b.json, a (B) against a.json, a (A)",
        "b.json, b (B) against a.json, b (A)",
    ]


def test_a_single_variant_ends_with_the_answer() -> None:
    few = record(steady("eager", 0.0648, ABBA[0], blocks=15))
    assert to_text(bench_view(own_report(few), 3)).splitlines()[-1] == (
        "The median latency of eager is 64.80 ms, with a 95% interval of [64.80, 64.80]."
    )
    assert bench_view(own_report(record(*pair(12, 1.2))), 3).closing == "", "a comparison ends with its verdict"


def test_a_percentile_that_no_metric_has_values_for_has_no_column() -> None:
    found = own_report(server_record()).record.variants[0]
    summaries = get_summaries(found)
    none = {name: None for name in ("p90", "p99", "p90_of_all", "p99_of_all")}
    few = {name: msgspec.structs.replace(item, **none) for name, item in summaries.items()}
    lines = variant_lines(1, found, few)
    (heads,) = [line for line in lines if "median [95% CI]" in line]
    assert heads.split() == ["median", "[95%", "CI]", "n"]
    (rate,) = [line for line in lines if line.startswith("  requests per second")]
    assert rate.endswith("  all")
    assert not any("with failed" in line for line in lines), "it would have nothing but a number of requests"
