"""Steps are found in time, and nothing else is a step; rates over 200 series are in benchmarks/results."""

from __future__ import annotations

import importlib
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from omni_cli.stats.changes import AFTER, BEFORE, WINDOW, Z95, look, get_outliers, get_steps

ROOT = Path(__file__).parents[3]
MARGIN = math.log1p(0.02)


def noise(seed: int, count: int, sd: float = 0.007) -> np.ndarray:
    return sd * np.random.default_rng(seed).standard_normal(count)


def test_a_step_is_found_within_five_records_and_stays_where_it_was_found() -> None:
    values = noise(1, 100)
    values[60:] += math.log(1.05)
    (found,) = get_steps(values, 0.0, MARGIN)
    assert found.found <= 64 and found.earliest <= 60 <= found.latest
    assert found.size == pytest.approx(math.log(1.05), abs=0.02)
    (again,) = get_steps(values[: found.found + 1], 0.0, MARGIN)
    assert again == found


def test_a_step_back_is_a_step_of_its_own() -> None:
    values = noise(2, 100)
    values[30:60] += math.log(1.10)
    worse, better = get_steps(values, 0.0, MARGIN)
    assert worse.at == 30 and worse.size > 0
    assert better.at == 60 and better.size < 0


def test_a_step_below_the_margin_does_not_count() -> None:
    values = noise(3, 100, sd=0.0005)
    values[60:] += math.log(1.01)
    assert list(get_steps(values, 0.0, MARGIN)) == []
    assert len(list(get_steps(values, 0.0, 0.005))) == 1


def test_a_step_counts_if_its_interval_lies_beyond_the_margin() -> None:
    values = noise(13, 100, sd=0.006)
    values[60:] += math.log(1.024)
    (found,) = get_steps(values, 0.0, MARGIN / 2)
    assert found.score > 5 and found.size > MARGIN > found.size - Z95 * found.standard_error
    assert list(get_steps(values, 0.0, MARGIN)) == []


def test_less_than_five_outliers_and_a_ramp_are_no_step() -> None:
    values = noise(4, 100)
    values[[20, 40, 41, 70, 71, 72, 73]] += math.log(1.6)
    assert list(get_steps(values, 0.0, MARGIN)) == []
    ramp = noise(5, 100) + math.log(1.05) * np.arange(100) / 100
    assert list(get_steps(ramp, 0.0, MARGIN)) == []
    assert set(np.flatnonzero(get_outliers(values))) == {20, 40, 41, 70, 71, 72, 73}


@pytest.mark.parametrize("number", [27, 67, 125, 188, 190])
def test_outliers_next_to_each_other_are_no_step(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Series of the calibration's hardest row. Outliers that are replaced by their neighbours make steps of 188 and
    190, and without confirmation by single records the others have one, of the size of one missed outlier."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    calibration = importlib.import_module("history_calibration")
    rng = np.random.default_rng(1)
    for _ in range(number + 1):
        values = calibration.WITHOUT_A_STEP["outliers, noise between nights, CV 5%"](rng)
    assert list(get_steps(values, 0.0, MARGIN)) == []


def test_an_outlier_beside_a_step_neither_hides_nor_moves_it() -> None:
    values = noise(10, 80)
    values[60:] += math.log(1.06)
    values[[58, 62]] += math.log(1.5)
    (found,) = get_steps(values, 0.0, MARGIN)
    assert found.found == 64 and found.earliest <= 60 <= found.latest
    assert found.size == pytest.approx(math.log(1.06), abs=0.015)


def test_a_step_to_a_noisier_level_is_found() -> None:
    values = noise(11, 52, sd=0.001)
    values[40:] = math.log(1.2) + noise(12, 12, sd=0.015)
    (found,) = get_steps(values, 0.0, MARGIN)
    assert found.found <= 46 and found.earliest <= 40 <= found.latest


def test_noise_within_the_records_counts_even_if_they_agree_by_chance() -> None:
    values = noise(6, 30, sd=0.001)
    values[20:] += math.log(1.05)
    assert list(get_steps(values, 0.0, MARGIN))
    assert list(get_steps(values, 0.05, MARGIN)) == []


def test_a_series_that_is_longer_than_the_window() -> None:
    values = noise(7, 3 * WINDOW)
    values[250:] += math.log(1.06)
    (found,) = get_steps(values, 0.0, MARGIN)
    assert found.earliest <= 250 <= found.latest <= found.found <= 254


def test_the_smallest_step_that_would_show() -> None:
    assert look(noise(8, BEFORE + AFTER - 1), 0.0, MARGIN) is None
    few, many = look(noise(8, 20), 0.0, MARGIN), look(noise(8, 80), 0.0, MARGIN)
    assert few is not None and many is not None
    assert few.detectable > many.detectable > 0.02
    values = noise(9, 80)
    values[-AFTER:] += many.detectable * 1.3
    assert list(get_steps(values, 0.0, MARGIN))


def test_equal_values_have_no_step() -> None:
    assert list(get_steps(np.full(40, 0.3), 0.0, MARGIN)) == []


@pytest.mark.slow
def test_the_calibration_in_short() -> None:
    """A few series of one row; all rows with 200 series each take ten minutes."""
    script = ROOT / "benchmarks" / "history_calibration.py"
    row = "noise within nights, CV 5%"
    printed = subprocess.run(
        [sys.executable, str(script), "--series", "5", "--only", row, "--json"],
        capture_output=True, text=True, check=True, timeout=120, env={**os.environ, "PYTHONPATH": str(ROOT)},
    ).stdout  # fmt: skip
    document = json.loads(printed)
    assert document["false_alarms"][row] == 0
    found = document["steps"][row]
    assert found["in_time"] >= 4 and found["ever"] == 5 and found["false"] == 0
