"""The page of a bench record: its numbers are the record's, and its figures are drawn from them."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import numpy as np
import pytest
from support.bench_records import pair, record, variant
from support.html_pages import Element, figure, parse, table

from omni_cli.cli.report_documents import load_view
from omni_cli.config.gate_limits import GateLimits, QualityLimit
from omni_cli.records.record import GpuUtilisation, Memory, Record, Utilisation
from omni_cli.records.record_file import save_record
from omni_cli.records.results import Comparison, MeasureMean, Outputs
from omni_cli.report.html.drawing import draw_chart
from omni_cli.report.html.page import render_page
from omni_cli.report.units import quantity, quantity_interval, ratio
from omni_cli.report.view import ChartRow, Rows
from omni_cli.stats.verdicts import ComparisonSpec

pytestmark = pytest.mark.slow


def page_of(found: Record, folder: Path) -> Element:
    path = folder / "record.json"
    save_record(found, path)
    return parse(render_page([load_view(path)]))


def complete(found: Record, limit: float | None = None, baseline: Record | None = None) -> Record:
    """A record as `omni bench` saves it at its end."""
    limits = None if limit is None else GateLimits({"e2e_s": limit})
    return ComparisonSpec(limits, baseline=baseline).report(found).complete_record()


@pytest.fixture(scope="module")
def compared() -> Record:
    return complete(record(*pair(slowdown=1.2)), limit=0.05)


@pytest.fixture(scope="module")
def page(compared: Record, tmp_path_factory: pytest.TempPathFactory) -> Element:
    return page_of(compared, tmp_path_factory.mktemp("page"))


def test_the_verdict_comes_first(page: Element) -> None:
    verdict = page.one("div", class_="verdict bad")
    assert verdict.one("p", class_="word").text == "gate: regression"
    assert "`" not in verdict.text and "e2e_s is worse by +2" in verdict.text
    assert "b ran 1.2" in verdict.text
    before = page.one("main").text.partition("Gate: ".lower())[0]
    assert len(before) < 200


def test_summaries_are_those_of_the_record(compared: Record, page: Element) -> None:
    for found in compared.variants:
        rows = {row["Metric"]: row for row in table(page, f"All metrics of {found.name}")}
        assert set(rows) == {"e2e", "ttft"}
        for name, metric in (("e2e", "e2e_s"), ("ttft", "ttft_s")):
            stored = found.summary[metric]
            assert rows[name]["n"] == str(stored.n)
            assert rows[name]["Median"] == quantity(metric, stored.median)
            assert rows[name]["95% CI"] == quantity_interval(metric, stored.ci95, stored.median)
            assert rows[name]["p90"] == quantity(metric, stored.p90, stored.median)
            assert rows[name]["p99"] == "n < 459"
            assert rows[name]["Max"] == quantity(metric, stored.maximum, stored.median)


def test_comparisons_and_the_gate_are_those_of_the_record(compared: Record, page: Element) -> None:
    rows = {
        row["Metric"]: row
        for row in table(
            page, f"b (B) against a (A), centres of {compared.comparisons[0].blocks} blocks each, measured interleaved"
        )
    }
    for entry in compared.comparisons:
        row = rows[entry.metric.removesuffix("_s")]
        assert row["B / A [95% CI]"] == ratio(entry.ratio, entry.ci95)
        assert row["Verdict"] == entry.verdict == "slower"
        assert row["a"] == quantity(entry.metric, entry.a_centre or None)
    (gated,) = table(page, "The gate, limit by limit")
    assert gated["Verdict"] == "regression" and gated["Limit"] == "+5%"
    low, high = compared.gate.metrics[0].ci95
    assert gated["Worse by [95% CI]"].endswith(f"[{100 * low:+.1f}%, {100 * high:+.1f}%]")


def xs(drawing: Element, colour: str) -> list[float]:
    """Return the positions of markers of a colour, from left to right."""
    marks = [use for use in drawing.all("use") if colour in (use.attributes["style"] or "")]
    return sorted(float(use.attributes["x"] or "nan") for use in marks)


def test_every_run_is_a_dot_at_its_value(compared: Record, page: Element) -> None:
    spread = figure(page, "How the latency spreads")
    values = sorted(sample.e2e_s for item in compared.variants for sample in item.samples)
    for size in ("wide", "narrow"):
        drawing = spread.one("div", class_=size)
        places = xs(drawing, "fill: var(--muted)")
        assert len(places) == len(values) == 160
        line = np.polyfit(values, places, 1)
        assert np.allclose(np.polyval(line, values), places, atol=0.05)
        medians = sorted(item.summary["e2e_s"].median for item in compared.variants)
        assert np.allclose(np.polyval(line, medians), xs(drawing, "fill: var(--accent)"), atol=0.05)


def test_ratios_are_drawn_on_a_logarithmic_axis(compared: Record, page: Element) -> None:
    drawing = figure(page, "How far apart the variants are").one("div", class_="wide")
    # Both metrics are a fixed factor of each other, so that their diamonds lie above one another.
    diamonds = xs(drawing, "fill: var(--accent)")
    assert len(diamonds) == 2 and diamonds[0] == pytest.approx(diamonds[1], abs=0.05)
    ticks = {float(label.text): x for label, x in tick_labels(drawing)}
    line = np.polyfit(np.log(list(ticks)), list(ticks.values()), 1)
    assert np.polyval(line, np.log(compared.comparisons[0].ratio)) == pytest.approx(diamonds[0], abs=0.5)


def tick_labels(drawing: Element) -> list[tuple[Element, float]]:
    labels = [item for item in drawing.all("text") if re.fullmatch(r"[\d.]+", item.text)]
    return [(item, float(item.attributes["x"] or "nan")) for item in labels]


def test_every_figure_has_a_name_a_description_and_its_numbers(page: Element) -> None:
    figures = page.all("figure")
    assert len(figures) >= 4
    ids = {item.attributes.get("id"): item for tag in ("h3", "p") for item in page.all(tag)}
    for item in figures:
        for size in ("wide", "narrow"):
            image = item.one("div", class_=size)
            assert image.attributes["role"] == "img"
            assert ids[image.attributes["aria-labelledby"]].text and ids[image.attributes["aria-describedby"]].text
        assert item.one("details").one("tbody").all("tr")


def test_ids_are_unique(page: Element) -> None:
    from support.html_pages import every

    ids = [item.attributes["id"] for item in every(page) if item.attributes.get("id")]
    assert len(ids) == len(set(ids)) > 20


def test_commands_to_repeat_it(compared: Record, tmp_path: Path) -> None:
    changed = msgspec.structs.replace(compared, command=("omni", "bench", "--vary", "x=1, 2"))
    code = page_of(changed, tmp_path).one("pre").text
    assert code == "git checkout a1 pip install torch==2.13.0 omni bench --vary 'x=1, 2'"


def test_a_single_variant_is_its_median(tmp_path: Path) -> None:
    found = page_of(complete(record(variant("only", np.full((6, 2), 0.25)))), tmp_path)
    assert found.one("p", class_="word").text == "250.0 ms"
    assert not [item for item in found.all("h2") if item.text == "Comparison"]


def test_a_failed_variant_comes_first(tmp_path: Path) -> None:
    first, second = pair()
    broken = msgspec.structs.replace(second, samples=(), error="the process was killed")
    found = page_of(record(first, broken), tmp_path)
    verdict = found.one("div", class_="verdict bad")
    assert verdict.text.startswith("failed") and "b: the process was killed." in verdict.text


def test_an_interrupted_record_without_verdicts_is_compared(tmp_path: Path) -> None:
    found = page_of(record(*pair(slowdown=1.2)), tmp_path)
    assert found.one("p", class_="word").text == "slower"


def test_a_baseline_in_another_file_keeps_its_verdict(tmp_path: Path) -> None:
    before, after = pair(blocks=60, slowdown=1.3, lag1=0.0)
    baseline = record(msgspec.structs.replace(before, name="tiny"))
    measured = record(msgspec.structs.replace(after, name="tiny"))
    found = page_of(complete(measured, limit=0.05, baseline=baseline), tmp_path)
    assert found.one("p", class_="word").text == "gate: regression"
    name = "this run (B) against baseline (A)"
    (row,) = [
        row
        for row in table(found, f"{name}, centres of 60 blocks each, measured one after the other")
        if row["Metric"] == "e2e"
    ]
    assert row["Verdict"] == "slower"


def test_the_stages_of_the_median_run_add_up(tmp_path: Path) -> None:
    times = np.array([[0.3, 0.5], [0.4, 0.9], [0.2, 1.0]])
    stages = {"thinker.latency_s": 0.25, "talker.latency_s": 0.5}
    found = page_of(record(variant("v", times, metrics=stages)), tmp_path)
    rows = table(found, "Parts of the median run")
    assert [(row["Part"], row["Takes"], row["Share"]) for row in rows] == [
        ("thinker", "100.0 ms", "25%"), ("talker", "200.0 ms", "50%"), ("everything else", "100.0 ms", "25%"),
    ]  # fmt: skip


def test_overlapping_stages_are_not_drawn_one_after_another(tmp_path: Path) -> None:
    stages = {"thinker.latency_s": 0.8, "talker.latency_s": 0.9}
    found = page_of(record(variant("v", np.full((6, 2), 0.5), metrics=stages)), tmp_path)
    assert "overlapped" in figure(found, "A request from stage to stage").text


def test_memory_by_stage(tmp_path: Path) -> None:
    memory = Memory(
        peak_host_rss_bytes=3 << 30,
        stages={"thinker": {"run": {"peak_host_rss_bytes": 1 << 30}}, "odd": "not a mapping"},
    )
    found = page_of(record(variant("v", np.full((6, 2), 0.5), memory=memory)), tmp_path)
    rows = table(found, "Peak memory by stage")
    assert [(row["Stage"], row["peak host rss"]) for row in rows] == [("all", "3.0 GiB"), ("thinker", "1.0 GiB")]


def test_utilisation_is_drawn_and_named_in_a_warning(tmp_path: Path) -> None:
    gpu = GpuUtilisation(
        index=1, name="H200", utilisation_percent=(90.0,) * 8, sm_clock_mhz=(1980.0,) * 4 + (1200.0,) * 4,
        temperature_c=(80.0,) * 8, power_w=(700.0,) * 8, throttled=("",) * 4 + ("thermal",) * 4,
    )  # fmt: skip
    busy = Utilisation(
        interval_s=0.5, cost_s=0.01, usable_cores=2, end_s=tuple(0.5 * n for n in range(1, 9)), busy_cores=(1.9,) * 8,
        own_cores=(0.9,) * 8, stolen_cores=(0.0,) * 8, gpus=(gpu,), block_end_s=(4.0,),
    )  # fmt: skip
    found = page_of(msgspec.structs.replace(record(*pair()), utilisation=busy), tmp_path)
    advice = found.one("ul", class_="advice").text
    assert "A noisy neighbour: other programs used 1.0 of 2 cores in 100% of the time." in advice
    assert (
        "GPU 1 (H200) was throttled in 50% of the time, by its temperature: 61% of the highest clock in this record."
        in advice
    )
    rows = {row["What"]: row for row in table(found, "8 samples in 4 s, which took 10 ms")}
    assert rows["other programs, cores"]["Mean"] == "1" and rows["GPU 1 clock, MHz"]["Lowest"] == "1200"
    assert "GPU 1 H200, clock" in figure(found, "How busy the machine was").text


def test_many_variants_and_many_runs_stay_a_page(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    several = [variant(f"v{n}", rng.uniform(0.1, 0.2, (500, 2)), slots=(2 * n, 2 * n + 1)) for n in range(3)]
    path = tmp_path / "record.json"
    save_record(record(*several), path)
    page = render_page([load_view(path)])
    assert len(page) < 3_000_000
    assert "One run in 2 is drawn." in page and "300 more are in the record" in page


def test_ticks_of_values_that_are_close_have_their_digits() -> None:
    drawing = draw_chart(Rows((ChartRow("a", dots=(1.2341, 1.2344)),), "s"), "x")
    ticks = re.findall(r">([\d.]+)</text>", drawing.wide)
    assert ticks == ["1.2341", "1.23415", "1.2342", "1.23425", "1.2343", "1.23435", "1.2344"]


def test_speed_is_drawn_against_each_measure_of_quality(tmp_path: Path) -> None:
    first, second = pair(slowdown=0.8)
    outputs = Outputs(
        False, 9.0, psnr_db=38.5, ssim=0.97, compared=8,
        means={"psnr_db": MeasureMean(8, 41.0, (40.0, 42.0)), "ssim": MeasureMean(8, 0.98, (0.975, 0.985))},
    )  # fmt: skip
    found = record(first, msgspec.structs.replace(second, output_sha256="beef"))
    known = Comparison(metric="e2e_s", a=first.name, b=second.name, outputs=outputs)
    limits = GateLimits({}, quality=(QualityLimit("psnr_db", ">=", 38.0),))
    saved = ComparisonSpec(limits).report(msgspec.structs.replace(found, comparisons=(known,))).complete_record()
    page = page_of(saved, tmp_path)
    (row,) = table(page, "Speed against psnr db")
    assert row["Mean [95% CI] of requests"] == "41 [40, 42] of 8" and row["Worst"] == "38.5"
    assert row["Time [95% CI]"].startswith("0.8") and figure(page, "Speed against ssim")
    (limit,) = table(page, "The gate, limit by limit")
    assert limit["Limit on"] == "psnr_db>=38" and limit["Verdict"] == "pass"
    assert limit["Worse by [95% CI]"] == "worst 38.5, mean 41 [40, 42] of 8; sure for 69% of prompts"
