"""Untrusted records: nothing in them becomes markup, and none breaks the report."""

from __future__ import annotations

import base64
import copy
import itertools
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.bench_records import pair, record
from support.html_pages import every, parse
from support.profile_records import small_profile

from omni_cli.cli.report_documents import load_view
from omni_cli.config.gate_limits import GateLimits
from omni_cli.core.errors import OmniError
from omni_cli.records.record_file import with_digest
from omni_cli.records.results import RecordOrigin
from omni_cli.report.comparison_view import compare_document
from omni_cli.report.html.page import render_page
from omni_cli.stats.verdicts import ComparisonSpec, compare_within

pytestmark = pytest.mark.slow


TAGS = {
    "", "html", "head", "meta", "title", "style", "body", "a", "header", "h1", "h2", "h3", "h4", "nav", "ol", "li",
    "ul", "span", "main", "article", "p", "div", "strong", "section", "figure", "figcaption", "details", "summary",
    "table", "caption", "thead", "tbody", "tr", "th", "td", "dl", "dt", "dd", "pre", "code", "footer",
    "svg", "g", "path", "use", "defs", "text", "tspan", "clippath", "rect", "img", "audio",
}  # fmt: skip
ATTRIBUTES = {
    "lang", "charset", "http-equiv", "content", "name", "class", "id", "href", "role", "tabindex", "scope", "style",
    "data-column", "viewbox", "width", "height", "d", "x", "y", "transform", "clip-path", "src", "alt", "controls",
}  # fmt: skip

ATTACKS = (
    "</script><script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "</text></svg><script>alert(2)</script>",
    "'; background: url(http://evil.example/x); '",
    "</style><style>*{display:none}</style>",
    "{{ 7*7 }} {% raw %} ${x}",
    "<!-- ]]> &lt;b&gt; &#60;b&#62; javascript:alert(1)",
    "\u202eright to left \x00\x01\x1b[31m \ud7ff\uffff",
    "$\\frac{1}{2}$ `code` \\",
)


PNG = b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\x00\x00\x00\x10\x00\x00\x00\x10"


def bench_json() -> dict[str, Any]:
    found = record(*pair(blocks=8, slowdown=1.5))
    return with_digest(ComparisonSpec(GateLimits({"e2e_s": 0.05})).report(found).complete_record())


def compare_json() -> dict[str, Any]:
    result = compare_within(record(*pair(blocks=8)), ComparisonSpec(limits=GateLimits({"e2e_s": 0.05})))
    source = RecordOrigin("a.json", "2026-11-20T10:00:00Z")
    return msgspec.to_builtins(compare_document(result, source, source))


DOCUMENTS = {"bench": bench_json, "compare": compare_json, "profile": lambda: with_digest(small_profile())}


def page_of(document: dict[str, Any], folder: Path) -> str:
    path = folder / "record.json"
    path.write_text(json.dumps({key: value for key, value in document.items() if key != "digest"}))
    return render_page([load_view(path)])


def assert_harmless(page: str) -> None:
    for element in every(parse(page)):
        assert element.tag in TAGS, element.tag
        for name, value in element.attributes.items():
            assert name in ATTRIBUTES or name.startswith("aria-"), name
            if name == "href":
                assert value is not None and value.startswith("#")
            if name == "src":
                assert re.fullmatch(r"data:(image/png|audio/wav);base64,[A-Za-z0-9+/=]+", value or "")
            if name == "style":
                assert value is not None and "url(" not in value and "&" not in value
            if name == "content":
                assert "evil" not in str(value)


def poisoned(value: Any, attacks: Iterator[str]) -> Any:
    """Every text replaced by the next attack."""
    if isinstance(value, str):
        return next(attacks)
    if isinstance(value, list):
        return [poisoned(item, attacks) for item in value]
    if isinstance(value, dict):
        return {key: poisoned(item, attacks) for key, item in value.items()}
    return value


def poisoned_bench(attacks: Iterator[str]) -> dict[str, Any]:
    document = bench_json()
    # Control characters in a variant's name are refused before anything is drawn.
    printable = "".join(letter for letter in next(attacks) if letter.isprintable())
    names = {"a": f"{printable}A", "b": f"{printable}B"}
    environment = poisoned(document["environment"], attacks)
    environment["machine"] = {"gpus": [{"name": next(attacks)}], next(attacks): next(attacks)}
    environment["variables"] = {next(attacks): next(attacks)}
    environment["code"] = {"commit": next(attacks), "omni": next(attacks), "dirty": True}
    workload = {key: next(attacks) for key in ("profile", "stage", next(attacks))}
    document |= {
        "created": next(attacks),
        "command": [next(attacks), "--" + next(attacks)],
        "environment": environment,
        "workload": {**workload, "stages": [next(attacks)], "settings": {next(attacks): next(attacks)}},
    }
    for variant in document["variants"]:
        data = base64.b64encode(next(attacks).encode("utf-8", "surrogatepass")).decode()
        png = base64.b64encode(PNG + next(attacks).encode("utf-8", "surrogatepass")).decode()
        variant["outputs"] = [
            {"name": next(attacks), "kind": "image", "data": data, "text": next(attacks), "difference": png},
            {"name": next(attacks), "kind": "audio", "data": data, "text": next(attacks)},
        ]
        poison_variant(variant, names, attacks)
    document["comparisons"] = [
        {**entry, "a": names[entry["a"]], "b": next(attacks), "reason": next(attacks)}
        for entry in document["comparisons"]
    ]
    gate = document["gate"]
    gate |= {"reasons": [next(attacks)], "mismatches": [{"field": next(attacks), "a": next(attacks), "b": 1}]}
    for metric in gate["metrics"]:
        metric |= {key: next(attacks) for key in ("a", "b", "metric", "place")}
    gpu: dict[str, Any] = {
        key: [9.0] * 4 for key in ("utilisation_percent", "sm_clock_mhz", "temperature_c", "power_w")
    }
    gpu |= {"index": 0, "name": next(attacks), "throttled": [next(attacks) for _ in range(4)]}
    document["utilisation"] = {
        "interval_s": 1.0, "cost_s": 0.0, "usable_cores": 2, "end_s": [1, 2, 3, 4], "busy_cores": [2.0] * 4,
        "own_cores": [1.0] * 4, "stolen_cores": [0.0] * 4, "gpus": [gpu], "error": next(attacks),
    }  # fmt: skip
    return document


def poison_variant(variant: dict[str, Any], names: dict[str, str], attacks: Iterator[str]) -> None:
    stage, metric = next(attacks), next(attacks)
    variant |= {
        "name": names[variant["name"]],
        "settings": {next(attacks): next(attacks)},
        "effective": {"engagement": {next(attacks): {next(attacks) + "_s": 1.0}}},
        "summary": {},
    }
    variant["memory"]["stages"] = {next(attacks): {next(attacks): {"peak_host_rss_bytes": 5}}}
    for sample in variant["samples"]:
        sample["metrics"] = {f"{stage}.latency_s": sample["e2e_s"] / 2, metric: 1.0 + sample["e2e_s"]}


def poisoned_compare(attacks: Iterator[str]) -> dict[str, Any]:
    document = compare_json()
    document |= {side: {"path": next(attacks), "created": next(attacks)} for side in ("a", "b")}
    document |= {"unmatched": [next(attacks)], "failures": [next(attacks)]}
    document["differences"] = [{"field": next(attacks), "a": {next(attacks): next(attacks)}, "b": [next(attacks)]}]
    for entry in (*document["comparisons"], *document["gate"]["metrics"], *document["memory"]):
        entry |= {key: next(attacks) for key in ("metric", "a", "b")}
    return document


def poisoned_profile(attacks: Iterator[str]) -> dict[str, Any]:
    intact: dict[str, Any] = with_digest(small_profile())
    document = poisoned(intact, attacks)
    document |= {"schema": intact["schema"], "stage_seconds": {next(attacks): 0.1}}
    for stage, kept in zip(document["stages"], intact["stages"], strict=True):
        stage["kind"] = kept["kind"]
        stage["memory"]["measure"] = kept["memory"]["measure"]
        stage["activity"]["idle_s"] = {next(attacks): 1.0}
        for tensor in stage["memory"]["largest"]:
            tensor["kind"] = "weight"
        for roofline in (stage["roofline"], *stage["roofline"]["parts"]):
            roofline["limit"] = "compute"
    return document


@pytest.mark.parametrize("first", range(0, len(ATTACKS), 3))
@pytest.mark.parametrize("poison", [poisoned_bench, poisoned_compare, poisoned_profile])
def test_nothing_in_a_record_becomes_markup(
    poison: Callable[[Iterator[str]], dict], first: int, tmp_path: Path
) -> None:
    attacks = itertools.cycle(ATTACKS[first:] + ATTACKS[:first])
    page = page_of(poison(attacks), tmp_path)
    assert_harmless(page)
    # It is there, as text that a reader sees.
    shown = parse(page).text
    assert "<script>alert(" in shown and "onerror=alert(1)" in shown


def test_the_check_finds_markup() -> None:
    for bad in ("<p><script>x</script></p>", '<p onclick="x">y</p>', '<a href="http://x">y</a>'):
        with pytest.raises(AssertionError):
            assert_harmless(bad)


NUMBERS = st.one_of(st.integers(-(2**70), 2**70), st.floats(allow_nan=False, allow_infinity=False), st.just(0))
VALUES = st.one_of(
    NUMBERS, st.none(), st.booleans(), st.text(max_size=8), st.builds(list), st.builds(dict), st.builds(lambda: [[{}]])
)


def places(value: Any, path: tuple = ()) -> list[tuple]:
    """Return the paths to everything in a document."""
    found = [path] if path else []
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        found += places(item, (*path, key))
    return found


@pytest.mark.parametrize("kind", DOCUMENTS)
@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(data=st.data())
def test_a_damaged_record_is_shown_or_refused(kind: str, data: st.DataObject, tmp_path_factory: Any) -> None:
    document = copy.deepcopy(INTACT[kind])
    everywhere = PLACES[kind]
    for path in data.draw(st.lists(st.sampled_from(everywhere), min_size=1, max_size=3)):
        *before, last = path
        target = document
        try:
            for key in before:
                target = target[key]
            target[last] = data.draw(VALUES)
        except (KeyError, IndexError, TypeError):
            continue  # an earlier change has removed the place
    folder = tmp_path_factory.mktemp("damaged")
    try:
        page = page_of(document, folder)
    except OmniError as error:
        assert error.message
    else:
        assert_harmless(page)


INTACT = {kind: make() for kind, make in DOCUMENTS.items()}
# Each kind of place once or twice: most of a record is samples, which are all alike.
PLACES = {
    kind: [path for path in places(document) if all(not isinstance(key, int) or key < 2 for key in path)]
    for kind, document in INTACT.items()
}
