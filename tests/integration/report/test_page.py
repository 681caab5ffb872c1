"""The page in a real browser: no log messages, no requests, usable on phones, by keyboard and by screen reader."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from support.chromium import Chromium

from omni_cli.cli.app import run
from omni_cli.records.profile_record import load_profile_record
from omni_cli.records.record import load_record
from omni_cli.report.units import quantity, quantity_interval, ratio

pytestmark = pytest.mark.slow

WIDTHS = (390, 1280)
WIDER_THAN_THE_WINDOW = """
[...document.querySelectorAll('body *')]
  .filter(element => element.getBoundingClientRect().width && !element.closest('.unseen, .skip, thead, caption'))
  .filter(element => element.getBoundingClientRect().right > innerWidth + 1)
  .map(element => element.tagName + '.' + element.getAttribute('class') + ': ' + element.textContent.slice(0, 60))
"""
DRAWN = """
[...document.querySelectorAll('figure')].map(figure => {
  const shown = [...figure.querySelectorAll('svg')].filter(svg => svg.getBoundingClientRect().width > 0);
  const marks = shown.flatMap(svg => [...svg.querySelectorAll('path, use, text')]);
  const visible = marks.filter(mark => {
    const style = getComputedStyle(mark), box = mark.getBoundingClientRect();
    return (box.width || box.height) && (style.fill !== 'none' || style.stroke !== 'none');
  });
  const texts = shown.flatMap(svg => [...svg.querySelectorAll('text')]);
  const smallest = Math.min(...texts.map(text => text.getBoundingClientRect().height));
  return {drawings: shown.length, marks: visible.length, smallest};
})
"""
ROWS = """
caption => [...document.querySelectorAll('table')].filter(table => table.caption.textContent.split(', ')[0] === caption)
  .flatMap(table => [...table.tBodies[0].rows].map(row => [...row.cells].map(cell => cell.textContent)))
"""


@pytest.fixture(scope="module")
def page(disturbed: Any, profiled: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One page of a benchmark with a gate and a profile."""
    path = tmp_path_factory.mktemp("page") / "report.html"
    assert run(["report", str(disturbed.path), str(profiled.path), "-o", str(path)]) == 0
    return path


@pytest.fixture
def opened(browser: Chromium, page: Path) -> Chromium:
    browser.open(page.as_uri(), width=1280)
    return browser


def rows(browser: Chromium, caption: str) -> list[list[str]]:
    return browser.evaluate(f"({ROWS})({json.dumps(caption)})")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_it_is_whole_at_any_width_in_light_and_dark(browser: Chromium, page: Path, width: int, dark: bool) -> None:
    browser.open(page.as_uri(), width=width, dark=dark)
    assert browser.problems == []
    assert [url for url in browser.requests if not url.startswith("data:")] == [page.as_uri()]
    # With everything opened that a reader can open.
    browser.evaluate("document.querySelectorAll('details').forEach(details => details.open = true)")
    assert browser.evaluate("document.documentElement.scrollWidth") == width
    assert browser.evaluate(WIDER_THAN_THE_WINDOW) == []
    figures = browser.evaluate(DRAWN)
    assert len(figures) >= 8
    for figure in figures:
        assert figure["drawings"] == 1 and figure["marks"] > 5 and figure["smallest"] > 10


def test_the_images_of_both_variants_are_drawn_beside_their_difference(opened: Chromium) -> None:
    drawn = opened.evaluate("[...document.images].map(image => [image.naturalWidth, image.naturalHeight, image.alt])")
    assert [size[:2] for size in drawn] == [[64, 64]] * 3
    assert [size[2].partition(":")[0] for size in drawn] == [
        "num_inference_steps=2",
        "num_inference_steps=2 (2)",
        "difference of num_inference_steps=2 (2), times 255",
    ]


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_text_can_be_read(browser: Chromium, page: Path, dark: bool) -> None:
    """All text has a contrast of at least 4.5, in figures too."""
    browser.open(page.as_uri(), width=1280, dark=dark)
    background, colours = browser.evaluate(COLOURS)
    assert len(colours) >= 3
    for colour in colours:
        assert contrast(colour, background) >= 4.5, (colour, background)


COLOURS = """
(() => {
  const texts = [...document.querySelectorAll('body *')].filter(element => element.getBoundingClientRect().width
    && [...element.childNodes].some(node => node.nodeType === 3 && node.textContent.trim()));
  const colours = texts.map(element => getComputedStyle(element)[element.ownerSVGElement ? 'fill' : 'color']);
  return [getComputedStyle(document.body).backgroundColor, [...new Set(colours)]];
})()
"""


def contrast(one: str, other: str) -> float:
    """Return the contrast of two CSS colours by WCAG 2."""

    def luminance(colour: str) -> float:
        channels = [float(part) / 255 for part in colour.partition("(")[2].rstrip(")").split(",")[:3]]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    darker, lighter = sorted((luminance(one), luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


def test_numbers_are_those_of_the_record(opened: Chromium, disturbed: Any, profiled: Any) -> None:
    record = load_record(disturbed.path)
    for variant in record.variants:
        shown = {row[0]: row[1:] for row in rows(opened, f"All metrics of {variant.name}")}
        for metric, stored in variant.summary.items():
            cells = shown[metric.removesuffix("_s").replace("_", " ")]
            assert cells[0] == str(stored.n)
            assert cells[1] == quantity(metric, stored.median)
            assert cells[2] == quantity_interval(metric, stored.ci95, stored.median)
    a, b = (variant.name for variant in record.variants)
    compared = {row[0].removesuffix(" (more is better)"): row for row in rows(opened, f"{b} (B) against {a} (A)")}
    for entry in record.comparisons:
        cells = compared[entry.metric.removesuffix("_s").replace("_", " ")]
        assert cells[3:] == [ratio(entry.ratio, entry.ci95), entry.verdict]
    assert opened.evaluate("document.querySelector('.word').textContent") == f"gate: {record.gate.verdict}"
    profile = load_profile_record(profiled.path)
    times = {row[0]: row[1] for row in rows(opened, "Time of the iteration")}
    expected = {name: quantity("e2e_s", seconds, profile.e2e_s) for name, seconds in profile.stage_seconds.items()}
    assert times == {**expected, "all": quantity("e2e_s", profile.e2e_s)}


def test_the_neighbour_is_named_beside_the_verdict(opened: Chromium) -> None:
    assert "A noisy neighbour" in opened.evaluate("document.querySelector('.advice').textContent")


def test_a_screen_reader_gets_a_name_and_the_numbers_of_every_figure(opened: Chromium) -> None:
    nodes = opened.accessible()

    def named(role: str) -> list[str]:
        return [node["name"]["value"] for node in nodes if node["role"]["value"] == role]

    figures = opened.evaluate("document.querySelectorAll('figure').length")
    outputs = opened.evaluate("document.images.length")
    assert outputs == 3 and len(named("image")) == figures + outputs and all(named("image"))
    assert len([name for name in named("DisclosureTriangle") if name.startswith("The numbers of")]) == figures
    assert named("main") and "Records" in named("navigation")
    headings = [int(node["properties"][0]["value"]["value"]) for node in nodes if node["role"]["value"] == "heading"]
    assert headings[0] == 1 and all(later - earlier <= 1 for earlier, later in itertools.pairwise(headings))


def test_a_keyboard_reaches_everything(opened: Chromium) -> None:
    focusable = opened.evaluate("document.querySelectorAll('a, summary, [tabindex]').length")
    seen = []
    for _ in range(focusable):
        opened.press("Tab")
        seen.append(opened.evaluate("document.activeElement.tagName + document.activeElement.textContent.slice(0, 40)"))
    assert seen[0].startswith("ATo the first verdict")
    assert {name[:3] for name in seen} >= {"SUM", "PRE"} and "BODY" not in {name[:4] for name in seen}


def test_the_browser_reports_problems(browser: Chromium, tmp_path: Path) -> None:
    """Premise of the other tests: errors, refused loads and requests are noticed."""
    bad = tmp_path / "bad.html"
    bad.write_text("<script>console.error('broken'); missing()</script><img src='http://127.0.0.1:9/x.png'>")
    browser.open(bad.as_uri(), width=390)
    assert "broken" in browser.problems and any("Uncaught" in problem for problem in browser.problems)
    assert "http://127.0.0.1:9/x.png" in browser.requests
