"""The pages of `omni compare --json` and of a profile."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from support.bench_records import pair, record
from support.html_pages import Element, figure, parse, table
from support.profile_records import PEAK_STEP, small_profile

from omni_cli.cli.report_documents import load_view
from omni_cli.config.gate_limits import GateLimits
from omni_cli.records.record_file import save_record
from omni_cli.records.results import RecordOrigin
from omni_cli.report.comparison_view import compare_document
from omni_cli.report.html.page import render_page
from omni_cli.report.units import ratio
from omni_cli.stats.verdicts import ComparisonSpec, compare_records, compare_within

pytestmark = pytest.mark.slow


SOURCES = RecordOrigin("before.json"), RecordOrigin("after.json")


def compare_page(document: dict, folder: Path) -> Element:
    path = folder / "compare.json"
    path.write_text(json.dumps(document))
    return parse(render_page([load_view(path)]))


def test_a_comparison_shows_the_findings_of_compare(tmp_path: Path) -> None:
    result = compare_within(record(*pair(slowdown=1.3)), ComparisonSpec(limits=GateLimits({"e2e_s": 0.05})))
    document = msgspec.to_builtins(compare_document(result, *SOURCES))
    page = compare_page(document, tmp_path)
    assert page.one("p", class_="word").text == "gate: regression"
    caption = (
        f"b (B) against a (A), centres of {document['comparisons'][0]['blocks']} blocks each, measured interleaved"
    )
    rows = {row["Metric"]: row for row in table(page, caption)}
    for entry in document["comparisons"]:
        row = rows[entry["metric"].removesuffix("_s")]
        assert row["B / A [95% CI]"] == ratio(entry["ratio"], tuple(entry["ci95"]))
        assert row["Verdict"] == entry["verdict"]
    assert rows["peak allocated"]["b"] == "1.0 GiB"
    assert [row["Verdict"] for row in table(page, "The gate, limit by limit")] == ["regression"]


def test_a_passing_gate_lists_its_limits(tmp_path: Path) -> None:
    result = compare_within(record(*pair(slowdown=0.8)), ComparisonSpec(limits=GateLimits({"e2e_s": 0.05})))
    page = compare_page(msgspec.to_builtins(compare_document(result, *SOURCES)), tmp_path)
    verdict = page.one("div", class_="verdict good")
    assert "Within all limits: e2e -2" in verdict.text and "limit +5%" in verdict.text


def test_records_that_must_not_be_compared_show_why(tmp_path: Path) -> None:
    before, after = record(pair()[0], batch_size=1), record(pair()[0], batch_size=8)
    page = compare_page(msgspec.to_builtins(compare_document(compare_records(before, after), *SOURCES)), tmp_path)
    assert page.one("p", class_="word").text == "not comparable"
    assert {"Field": "workload.batch_size", "before.json": "1", "after.json": "8"} in table(
        page, "Differences that rule out a comparison"
    )
    assert not page.all("figure")


@pytest.fixture(scope="module")
def profile_page(tmp_path_factory: pytest.TempPathFactory) -> Element:
    path = tmp_path_factory.mktemp("profile") / "profile.json"
    save_record(small_profile(), path)
    return parse(render_page([load_view(path)]))


def test_a_profile_begins_with_its_time_and_its_hints(profile_page: Element) -> None:
    verdict = profile_page.one("div", class_="verdict plain")
    assert verdict.one("p", class_="word").text == "290.0 ms per iteration"
    assert "image takes 65%, 200.0 ms of the profiled iteration of median length, 310.0 ms." in verdict.text
    assert "Profiled, it takes 310.3 ms, 1.070 [1.050, 1.090] times as long." in verdict.text
    advice = profile_page.one("ul", class_="advice")
    assert "Hint: image: idle is mostly launch gaps." in advice.text
    assert advice.one("code").text == "execution=cudagraph"


def test_stage_times_add_up(profile_page: Element) -> None:
    rows = table(profile_page, "Time of the iteration")
    times = [float(row["Time"].removesuffix(" ms")) for row in rows]
    assert rows[-1]["Stage"] == "all" and sum(times[:-1]) == pytest.approx(times[-1])


def test_the_waterfall_has_a_row_for_each_kind_of_part(profile_page: Element) -> None:
    drawing = figure(profile_page, "A request from stage to stage").one("div", class_="wide")
    assert "denoising step" in drawing.text and "8 times, 116.0 ms" in drawing.text
    assert "vae decode" in drawing.text and "50.00 ms" in drawing.text


def test_outliers_are_ringed_and_named(profile_page: Element) -> None:
    steps = figure(profile_page, "Steps of image")
    assert f"Outliers, marked by a ring: {PEAK_STEP}." in steps.text
    rings = [
        item for item in steps.one("div", class_="wide").all("use") if "var(--bad)" in (item.attributes["style"] or "")
    ]
    dots = [
        item
        for item in steps.one("div", class_="wide").all("use")
        if "var(--muted)" in (item.attributes["style"] or "")
    ]
    assert len(rings) == 1 and len(dots) == 24
    rows = table(profile_page, "Steps of image")
    assert [row["Step"] for row in rows if row["Remark"] == "outlier"] == [f"denoising step {PEAK_STEP}"]


def test_the_peak_of_memory_is_marked_in_its_phase(profile_page: Element) -> None:
    memory = figure(profile_page, "Memory of image")
    assert "The peak, 700 MiB, is in the phase “vae decode”. The phase is shaded" in memory.text
    (marker,) = [
        item
        for item in memory.one("div", class_="wide").all("use")
        if "var(--accent)" in (item.attributes["style"] or "")
    ]
    # 3.0 of 3.9 s, between a gutter of 48 and a margin of 4 pixels.
    assert float(marker.attributes["x"] or 0) == pytest.approx(48 + (880 - 52) * 3.0 / 3.9, abs=0.5)


def test_tables_of_a_profile(profile_page: Element) -> None:
    (limits, _) = table(profile_page, "Distance to the machine's limits")
    assert (limits["At best"], limits["Takes"], limits["Reached"]) == ("40.00 ms", "80.00 ms", "50.0%")
    *_, phase = table(profile_page, "Memory of thinker by phase")
    assert (phase["Peak host RSS"], phase["Added"]) == ("700 MiB", "+200 MiB")
    (tensor,) = table(profile_page, "Largest tensors of thinker at its peak")
    assert (tensor["Tensor"], tensor["Shape"], tensor["Size"]) == ("lm_head.weight", "1000 x 64", "40 MiB")
    (budget,) = table(profile_page, "Budgets of image")
    assert budget["Share"] == "25.0%"


def test_several_records_have_an_overview_and_ids_of_their_own(tmp_path: Path) -> None:
    save_record(small_profile(), tmp_path / "profile.json")
    save_record(record(*pair(slowdown=1.5)), tmp_path / "bench.json")
    documents = [load_view(tmp_path / name) for name in ("profile.json", "bench.json")]
    page = parse(render_page(documents))
    links = page.one("nav").all("a")
    assert [link.text for link in links] == ["290.0 ms per iteration tiny, end to end", "slower tiny-omni, thinker"]
    targets = {article.attributes["id"] for article in page.all("article")}
    assert {str(link.attributes["href"]).removeprefix("#") for link in links} == targets
    assert len(page.all("h1")) == 1 and len(page.all("h2")) == 2
