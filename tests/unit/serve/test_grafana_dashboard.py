"""Grafana's dashboard is what the script makes, names only metrics of the server, and shows all of them."""

from __future__ import annotations

import json
import re
import runpy
from pathlib import Path

ROOT = Path(__file__).parents[3]
SCRIPT = runpy.run_path(str(ROOT / "scripts" / "grafana_dashboard.py"))
COMMITTED = (ROOT / "deploy" / "grafana" / "omni.json").read_text()
SUFFIX = re.compile("_(total|bucket)$")


def test_the_file_is_up_to_date() -> None:
    assert SCRIPT["dashboard"]() == COMMITTED


def test_it_names_every_metric_of_the_server_and_no_other() -> None:
    expressions = [target["expr"] for panel in json.loads(COMMITTED)["panels"] for target in panel["targets"]]
    assert expressions
    named = {SUFFIX.sub("", name) for text in expressions for name in re.findall(r"\bomni_\w+", text)}
    assert named == set(SCRIPT["families"]())


def test_the_page_has_every_metric_in_one_line() -> None:
    rows = [line for line in (ROOT / "docs" / "metrics.md").read_text().splitlines() if line.startswith("| `omni_")]
    assert rows == SCRIPT["table"]() and len(rows) > 20
