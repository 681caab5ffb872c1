"""The race of settings: its bounds, its elimination, and how often its answer is wrong."""

from __future__ import annotations

import importlib
import math
import random
from pathlib import Path
from types import ModuleType

import pytest

from omni_cli.stats.race import MAX_ROUNDS, MIN_ROUNDS, Batch, Race, student_quantile

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"


@pytest.fixture
def calibration(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("tune_calibration")


def batch(**costs: float) -> Batch:
    """One batch of two blocks with these log costs."""
    return {name: {0: cost, 1: cost + 0.001} for name, cost in costs.items()}


def raced(race: Race, rounds: int, rng: random.Random, noise: float, **costs: float) -> None:
    for _ in range(rounds):
        assert race.leader is not None
        running = {race.leader, *race.rivals}
        race.add(race.leader, [batch(**{n: c + rng.gauss(0, noise) for n, c in costs.items() if n in running})])


@pytest.mark.parametrize(
    ("tail", "freedom", "expected"),
    # The first four from tables of Student's distribution, the others from R's `qt`.
    [
        (0.025, 1, 12.7062),
        (0.025, 4, 2.7764),
        (0.005, 9, 3.2498),
        (0.05, 30, 1.6973),
        (1e-4, 3, 22.2037),
        (1e-5, 2, 223.6034),
    ],
)
def test_student_quantiles(tail: float, freedom: int, expected: float) -> None:
    assert student_quantile(tail, freedom) == pytest.approx(expected, rel=1e-4)


def test_two_rounds_decide_nothing() -> None:
    race = Race(["a", "b"], margin=0.05)
    raced(race, MIN_ROUNDS - 1, random.Random(0), 0.0, a=0.0, b=1.0)
    assert race.rivals == ("b",) and not race.is_decided
    assert math.isinf(race.excess)


def test_a_clearly_worse_setting_drops_out_at_the_first_look() -> None:
    race = Race(["a", "b", "c"], margin=0.05)
    raced(race, MIN_ROUNDS, random.Random(0), 0.002, a=0.5, b=0.0, c=0.0)
    assert race.leader in ("b", "c")
    assert "a" not in race.rivals


def test_equal_settings_end_within_the_margin() -> None:
    race = Race(["a", "b", "c"], margin=0.05)
    raced(race, 15, random.Random(0), 0.01, a=0.0, b=0.0, c=0.0)
    assert race.is_decided
    assert race.excess <= 0.05


def test_noise_between_starts_keeps_a_pair_open() -> None:
    """A thousand runs of one start say nothing about the next start."""
    race = Race(["a", "b"], margin=0.02)
    raced(race, 5, random.Random(3), 0.1, a=0.0, b=0.05)
    assert not race.is_decided


def test_settings_of_different_batches_are_compared_through_the_control() -> None:
    race = Race(["a", "b", "c"], margin=0.05)
    for drift in (0.0, 0.2, -0.1, 0.3):
        # The machine is slower in the second batch by another amount each time.
        race.add("a", [batch(a=0.0, b=0.1), batch(a=drift, c=drift + 0.3)])
    gap = race.gap("c", "b")
    assert gap.rounds == 4
    assert gap.centre == pytest.approx(0.2)


def test_settings_return_if_the_one_that_beat_them_fails() -> None:
    race = Race(["a", "b", "c"], margin=0.05)
    raced(race, 4, random.Random(0), 0.001, a=0.0, b=0.3, c=0.6)
    assert race.is_decided and race.leader == "a"
    race.exclude("a")
    assert race.leader == "b"
    # Their common rounds before they dropped out count.
    assert race.gap("c", "b").rounds >= MIN_ROUNDS


def test_no_setting_left() -> None:
    race = Race(["a", "b"], margin=0.05)
    race.exclude("b")
    race.exclude("a")
    assert race.leader is None and race.is_exhausted and not race.is_decided


def test_a_single_setting_needs_one_round() -> None:
    race = Race(["a"], margin=0.05)
    assert not race.is_decided
    race.add("a", [batch(a=0.0)])
    assert race.is_decided and race.excess == 0.0


def test_a_race_ends_undecided_after_the_last_look() -> None:
    race = Race(["a", "b"], margin=0.02)
    raced(race, MAX_ROUNDS, random.Random(1), 0.3, a=0.0, b=0.0)
    assert race.is_exhausted and not race.is_decided
    assert race.excess > 0.02


@pytest.mark.parametrize("surface", ["unimodal", "flat", "ties", "near", "cliffs"])
def test_answers_are_within_the_margin(calibration: ModuleType, surface: str) -> None:
    """A small version of benchmarks/tune_calibration.py: seeds are fixed, so that the result is as well."""
    for seed in range(6):
        costs = calibration.SURFACES[surface](random.Random(seed))
        random.Random(seed + 1).shuffle(costs)
        outcome = calibration.search(costs, calibration.Noise(seed, uneven=seed % 2 == 1), 0.05, seed)
        assert outcome.excess <= 0.05
        # At most all 24 settings until the last look, with one more start for each of the other batches of a round.
        assert outcome.blocks < MAX_ROUNDS * 28


@pytest.mark.parametrize("surface", ["unimodal", "flat"])
def test_a_search_saves_two_thirds(calibration: ModuleType, surface: str) -> None:
    blocks = full = 0
    for seed in range(4):
        costs = calibration.SURFACES[surface](random.Random(seed))
        outcome = calibration.search(costs, calibration.Noise(seed, uneven=False), 0.05, seed)
        assert outcome.decided
        blocks += outcome.blocks
        full += calibration.full_comparison(costs, calibration.Noise(seed + 10, uneven=False), 0.05)
    assert blocks <= full / 3


@pytest.mark.parametrize(("ahead", "leader"), [(0.01, "a"), (0.03, "b")])
def test_a_leader_stays_while_another_is_hardly_ahead(ahead: float, leader: str) -> None:
    """`a` ran side by side with `c` and `d`; `b`, which is noisier, is compared with them through it."""
    race = Race(["a", "b", "c", "d"], margin=0.05)
    for noise in (0.05, 0.01, 0.03, -0.05, -0.01, -0.03):
        batches = [batch(a=0.0, b=noise - ahead), batch(a=0.0, c=0.001), batch(a=0.0, d=0.001)]
        race.add("a", batches)
    assert race.gap("a", "b").centre == pytest.approx(ahead)
    assert race.leader == leader
