"""Every ratio and every percentage beside two values follows from them, in all that is printed."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace
from support.agreeing_numbers import count_triples, find_wrong
from support.bench_records import ABBA, record, variant
from support.html_pages import parse
from support.profile_records import small_profile

from omni_cli.config.gate_limits import GateLimits
from omni_cli.records.record import Record
from omni_cli.records.results import RecordOrigin
from omni_cli.report.bench_view import LABELS, bench_view
from omni_cli.report.comparison_view import compare_document, comparison_view
from omni_cli.report.html.page import render_page
from omni_cli.report.profile_view import profile_view
from omni_cli.report.renderers import to_junit, to_markdown, to_text
from omni_cli.stats.verdicts import ComparisonSpec, compare_records, compare_within, own_report

ROOT = Path(__file__).parents[3]
LIMITS = GateLimits({"e2e_s": 0.05, "output_tokens_per_second": 0.05, "peak_allocated_bytes": 0.3})
METRICS = {"ttft_s": 0.3, "output_tokens_per_second": 900.0, "stutter": 1e-5}


def drifting(seed: int, slowdown: float) -> Record:
    """A machine whose blocks have two levels, and one block in which b was disturbed: its median is of the higher
    level, that of a between both, so that medians of all runs say nothing about pairs."""
    rng = np.random.default_rng(seed)
    levels = np.tile([0.1, 0.16], 8)[:, None]
    times = [levels * np.exp(0.02 * rng.standard_normal((16, 2))) * factor for factor in (1.0, slowdown)]
    times[1][0] *= 2
    sides = zip("ab", times, ABBA, strict=True)
    return record(*(variant(name, each, slots=slots, metrics=METRICS) for name, each, slots in sides))


def outputs(seed: int, slowdown: float) -> dict[str, str]:
    one, other = drifting(seed, slowdown), drifting(seed + 100, slowdown)
    found = {
        "within": compare_within(one, ComparisonSpec(limits=LIMITS)),
        "two records": compare_records(
            msgspec.structs.replace(one, variants=one.variants[:1]),
            msgspec.structs.replace(other, variants=(msgspec.structs.replace(other.variants[1], name="a"),)),
            ComparisonSpec(limits=LIMITS),
        ),
    }
    texts: dict[str, str] = {}
    for name, result in found.items():
        view = comparison_view(result, LABELS)
        page = parse(render_page([view]))
        texts |= {
            f"{name}: terminal": to_text(view),
            f"{name}: Markdown": to_markdown(view),
            f"{name}: page": "\n".join("  ".join(c.text for c in row.all("td")) for row in page.all("tr")),
            f"{name}: JUnit": to_junit(view, "omni").replace('message="', "  "),
        }
    texts["bench: terminal"] = to_text(bench_view(own_report(one), 3))
    return texts


@pytest.mark.parametrize("seed", range(6))
def test_what_is_said_of_two_values_follows_from_them(seed: int) -> None:
    for name, text in outputs(seed, (0.7, 0.97, 1.0, 1.03, 1.066, 3.0)[seed]).items():
        assert find_wrong(text) == [], name
        assert count_triples(text) >= 1 or "JUnit" in name, name


def test_a_document_has_the_values_of_its_ratios() -> None:
    result = compare_within(drifting(1, 1.066))
    line = json.dumps(msgspec.to_builtins(compare_document(result, RecordOrigin("a"), RecordOrigin("b"))))
    for item in json.loads(line)["comparisons"]:
        assert item["b_centre"] / item["a_centre"] == pytest.approx(item["ratio"], rel=1e-9)
    assert any(abs(item.ratio_of_medians / item.ratio - 1) > 0.01 for item in result.comparisons)


def test_a_document_without_centres_shows_medians_as_such() -> None:
    """Medians, 662.3 and 807.6 ms, of which the ratio of 1.066 is none."""
    result = compare_within(drifting(1, 1.066))
    (pair,) = result.pairs
    old = tuple(
        msgspec.structs.replace(
            item, a_centre=msgspec.UNSET, b_centre=msgspec.UNSET, a_median=0.6623, b_median=0.8076,
            ratio_of_medians=0.8076 / 0.6623,
        )
        for item in pair.comparisons[:1]
    )  # fmt: skip
    text = to_text(comparison_view(replace(result, pairs=(replace(pair, comparisons=old),)), LABELS))
    (row,) = [line for line in text.splitlines() if line.startswith("  e2e")]
    assert "662.3 ms (median)" in row and "807.6 ms (median)" in row


def test_a_profile_has_one_time_with_and_one_without_the_profiler() -> None:
    view = profile_view(small_profile())
    assert find_wrong(to_text(view)) == [] and view.verdict is not None
    whole = next(item for item in small_profile().overhead if item.metric == "e2e_s")
    assert view.verdict.word.startswith(f"{1e3 * whole.unprofiled_s:.1f} ms")


def test_the_checker_finds_a_percentage_that_does_not_follow() -> None:
    assert find_wrong("  e2e   662.3 ms -> 807.6 ms   +6.6%   limit +5%   regression")
    assert find_wrong("| e2e | 662.3 ms | 807.6 ms | 1.066 [1.01, 1.12] | slower |")
    assert not find_wrong("  e2e   662.3 ms -> 706.0 ms   +6.6% [+1%, +9%]   limit +5%   regression")
    assert not find_wrong("  wer   0 (as 0.01)  0.05  5.0 [4, 6]  worse")


def test_in_the_documentation_all_of_them_follow() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "tests/data/golden").iterdir()]
    texts = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in pages}
    assert {path: wrong for path, text in texts.items() if (wrong := find_wrong(text))} == {}
    assert sum(map(count_triples, texts.values())) > 20
