"""The calibration script runs and its goals are counted; its real results are in benchmarks/gate_calibration.md."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow


ROOT = Path(__file__).parents[3]


def calibrate(*options: str) -> subprocess.CompletedProcess[str]:
    script = ROOT / "benchmarks" / "gate_calibration.py"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, str(script), *options],
        capture_output=True,
        text=True,
        env=environment,
        timeout=120,
        check=True,
    )


def test_simulated_noise() -> None:
    result = json.loads(calibrate("--replays", "20", "--run-s", "0.084", "--json").stdout)
    (source,) = result["results"]
    assert source["rates"]["A/A gate 2%"]["n"] == 20
    goals = {(goal["scenario"], *goal["verdicts"]): goal for goal in source["goals"]}
    assert goals["A/A", "faster", "slower"]["rate"] == 0
    assert goals["A/A", "regression"]["rate"] == 0
    assert goals["+5%", "pass"]["rate"] == 0
    assert goals["+5%", "regression"]["rate"] >= 0.95
    assert goals["+3%", "regression"]["rate"] >= 0.8


@pytest.mark.parametrize("limit", ["0.5", "0.001"])
def test_a_limit_changes_the_verdicts(limit: str) -> None:
    """The goals' counts depend on the data: with another limit the same slowdown is no regression, or one."""
    result = json.loads(calibrate("--replays", "5", "--run-s", "0.084", "--limit", limit, "--json").stdout)
    goals = {(goal["scenario"], *goal["verdicts"]): goal["rate"] for goal in result["results"][0]["goals"]}
    assert goals["+5%", "pass"] == (1.0 if limit == "0.5" else 0.0)
    assert goals["+5%", "regression"] == (0.0 if limit == "0.5" else 1.0)


def test_measured_noise(tmp_path: Path) -> None:
    path = tmp_path / "noise.json"
    calibrate("--measure", "3", "--save", str(path))
    out = calibrate("--record", str(path), "--replays", "5").stdout
    assert "blocks recorded" in out
    assert out.count("goal:") == 5
