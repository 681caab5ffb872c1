"""Steps are found in time, and nothing else is a step; rates over 200 series are in benchmarks/results."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from omni_cli.stats.history import AFTER, BEFORE, THRESHOLD, WINDOW, Z95, Shift, find_steps

ROOT = Path(__file__).parents[3]
MARGIN = math.log1p(0.02)


def noise(seed: int, count: int, sd: float = 0.007) -> np.ndarray:
    return sd * np.random.default_rng(seed).standard_normal(count)


def steps(values: np.ndarray, noise: float = 0.0, margin: float = MARGIN) -> tuple[Shift, ...]:
    return find_steps(values, noise, margin).shifts


def test_a_step_is_found_within_five_records_and_stays_where_it_was_found() -> None:
    values = noise(1, 100)
    values[60:] += math.log(1.05)
    (found,) = steps(values)
    assert found.found <= 64 and found.earliest <= 60 <= found.latest
    assert found.size == pytest.approx(math.log(1.05), abs=0.02)
    (again,) = steps(values[: found.found + 1])
    # More records tell its size better.
    assert replace(again, size=found.size, standard_error=found.standard_error) == found
    assert found.standard_error < again.standard_error and found.size == pytest.approx(math.log(1.05), abs=0.01)


def test_a_step_back_is_a_step_of_its_own() -> None:
    values = noise(2, 100)
    values[30:60] += math.log(1.10)
    worse, better = steps(values)
    assert worse.at == 30 and worse.size > 0
    assert better.at == 60 and better.size < 0


def test_a_step_below_the_margin_does_not_count() -> None:
    values = noise(3, 100, sd=0.0005)
    values[60:] += math.log(1.01)
    assert steps(values) == ()
    assert len(steps(values, margin=0.005)) == 1


def test_three_outliers_and_a_ramp_are_no_step() -> None:
    values = noise(4, 100)
    values[[20, 40, 41, 70, 71, 72]] += math.log(1.6)
    assert steps(values) == ()
    ramp = noise(5, 100) + math.log(1.05) * np.arange(100) / 100
    assert steps(ramp) == ()


def test_two_steps_among_weekly_waves_and_outliers() -> None:
    """The series that a person sees the steps of: 60 nights, +6 % at night 35, -10 % at night 50."""
    found = 0
    for seed in range(6):
        values = noise(seed, 60, sd=0.01) + 0.01 * np.sin(2 * np.pi * np.arange(60) / 7 + seed)
        values[[7 + seed, 21 + seed, 43 + seed]] += math.log(1.3)
        assert steps(values) == ()
        values[35:] += math.log(1.06)
        values[50:] += math.log(0.9)
        found += sum(any(abs(step.at - at) <= 3 and step.found < at + 5 for step in steps(values)) for at in (35, 50))
    assert found == 12


def test_a_weekly_wave_of_which_three_weeks_are_known_is_no_noise() -> None:
    """It follows the days, of which some have no record, and steps beside it are as sure as without one."""
    days = np.delete(np.arange(70), [9, 24, 25, 40])
    wave = 0.03 * np.sin(2 * np.pi * days / 7)
    step = math.log(1.06) * (days >= 50)
    for seed in range(6):
        quiet = noise(seed, len(days), sd=0.01)
        (found,) = find_steps(quiet + wave + step, 0.0, MARGIN, days=days).shifts
        (without,) = find_steps(quiet + step, 0.0, MARGIN, days=days).shifts
        assert found.found <= without.found + 1 and days[found.earliest] <= 50 <= days[found.latest]
        assert found.standard_error < 1.25 * without.standard_error
        assert find_steps(quiet + wave, 0.0, MARGIN, days=days).shifts == ()


def test_the_interval_of_a_step_among_waves_and_outliers_holds() -> None:
    """Of steps of 6 to 10 % in 60 nights, each seen to the end; the limit is five binomial deviations from 95 %."""
    rng, covered = np.random.default_rng(17), []
    for _ in range(100):
        values = 0.01 * rng.standard_normal(60) + 0.01 * np.sin(2 * np.pi * (np.arange(60) / 7 + rng.random()))
        values[rng.choice(60, 3, replace=False)] += np.log1p(rng.uniform(0.08, 0.4, 3))
        at, size = int(rng.integers(13, 54)), math.log1p(rng.uniform(0.06, 0.1))
        values[at:] += size
        near = [step for step in steps(values) if abs(step.at - at) <= 3]
        covered += [abs(step.size - size) <= Z95 * step.standard_error for step in near]
    assert len(covered) >= 92 and np.mean(covered) > 0.84


def test_steps_that_follow_each_other_within_a_few_nights() -> None:
    values = noise(4, 60)
    values[30:37] += math.log(1.2)
    assert [(step.at, step.size > 0) for step in steps(values)] == [(30, True), (37, False)]


def test_an_outlier_beside_a_step_neither_hides_nor_moves_it() -> None:
    values = noise(10, 80)
    values[60:] += math.log(1.06)
    values[[58, 62]] += math.log(1.5)
    (found,) = steps(values)
    assert found.found <= 64 and found.earliest <= 60 <= found.latest
    assert found.size == pytest.approx(math.log(1.06), abs=0.015)


def test_a_step_to_a_noisier_level_is_found() -> None:
    values = noise(11, 52, sd=0.001)
    values[40:] = math.log(1.2) + noise(12, 12, sd=0.015)
    (found,) = steps(values)
    assert found.found <= 46 and found.earliest <= 40 <= found.latest


def test_noise_within_the_records_counts_even_if_they_agree_by_chance() -> None:
    values = noise(6, 30, sd=0.001)
    values[20:] += math.log(1.05)
    assert steps(values)
    assert steps(values, noise=0.05) == ()


def test_a_series_that_is_longer_than_the_window() -> None:
    values = noise(7, 5 * WINDOW)
    values[250:] += math.log(1.06)
    (found,) = steps(values)
    assert found.earliest <= 250 <= found.latest <= found.found <= 254


def test_the_smallest_step_that_would_show() -> None:
    assert find_steps(noise(8, BEFORE + AFTER - 1), 0.0, MARGIN).detectable is None
    few, many = (find_steps(noise(8, count), 0.0, MARGIN).detectable for count in (15, 80))
    assert few is not None and many is not None and few > many > 0.02
    values = noise(9, 80)
    values[-AFTER:] += many * 1.3
    found = find_steps(values, 0.0, MARGIN)
    assert found.shifts and found.detectable is None, "the records since the step are too few to see another"


def test_equal_values_have_no_step() -> None:
    assert steps(np.full(40, 0.3)) == ()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("row", "method", "least"), [("and both", "omni", 18), ("wave of 1%,", "omni", 15), ("wave of 1%", "beyond 5%", 15)]
)
def test_the_calibration_in_short(row: str, method: str, least: int) -> None:
    """A few series of one row; all rows and methods take an hour."""
    script = ROOT / "benchmarks" / "history_calibration.py"
    printed = subprocess.run(
        [sys.executable, str(script), "--series", "20", "--only", row, "--method", method, "--json"],
        capture_output=True, text=True, check=True, timeout=120, env={**os.environ, "PYTHONPATH": str(ROOT)},
    ).stdout  # fmt: skip
    rates, *_ = [result for result in json.loads(printed)["results"] if result["setting"] == THRESHOLD]
    assert rates["false"] <= 1 and rates["in_time"] >= least
