"""Looks at an interval: the plan, published bounds, and the error rate with stopping at every look."""

from __future__ import annotations

from itertools import pairwise
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from omni_cli.stats.estimate import MIN_BLOCKS, get_centre
from omni_cli.stats.sequential import ALPHA, level_at, plan_looks, spend_alpha

pytestmark = pytest.mark.slow


def bounds(looks: tuple[int, ...]) -> np.ndarray:
    return np.array([NormalDist().inv_cdf(1 - level_at(looks, look) / 2) for look in looks])


@given(st.integers(1, 100_000))
def test_a_plan_increases_and_ends_at_max_blocks(blocks: int) -> None:
    looks = plan_looks(blocks)
    assert looks[-1] == blocks
    assert list(looks) == sorted(set(looks))
    assert len(looks) == 1 or looks[0] >= MIN_BLOCKS
    assert all(later / earlier < 1.75 for earlier, later in pairwise(looks))


def test_a_plan_of_no_blocks() -> None:
    with pytest.raises(ValueError, match="0 blocks"):
        plan_looks(0)


@pytest.mark.parametrize("blocks", [16, 17, 23, 24, 30, 61, 120, 1001])
def test_looks_at_two_orders_of_loading_have_as_many_blocks_of_either(blocks: int) -> None:
    looks = plan_looks(blocks, orders=2)
    assert looks[-1] == blocks and list(looks) == sorted(set(looks))
    assert all(look % 2 == 0 and look >= 2 * MIN_BLOCKS for look in looks[:-1])
    assert len(looks) > 1 or blocks < 3 * MIN_BLOCKS


def test_published_bounds_of_the_pocock_type_spending_function() -> None:
    """Lan and DeMets, five equally spaced looks, two-sided 5 %."""
    assert bounds((20, 40, 60, 80, 100)) == pytest.approx([2.438, 2.427, 2.410, 2.397, 2.386], abs=0.003)


def test_all_of_alpha_is_spent_and_no_more() -> None:
    assert spend_alpha(0) == 0
    assert spend_alpha(1) == pytest.approx(ALPHA)
    assert spend_alpha(2) == spend_alpha(1)


@pytest.mark.parametrize("looks", [plan_looks(12), plan_looks(40), plan_looks(200)])
def test_crossing_rate_of_a_random_walk(looks: tuple[int, ...]) -> None:
    walks = np.random.default_rng(3).standard_normal((20_000, looks[-1])).cumsum(axis=1)
    scores = walks[:, np.array(looks) - 1] / np.sqrt(looks)
    rate = (np.abs(scores) > bounds(looks)).any(axis=1).mean()
    assert rate == pytest.approx(ALPHA, abs=0.005)


def test_a_single_look_and_an_unplanned_run_have_the_whole_level() -> None:
    assert level_at((), 30) == ALPHA
    assert level_at((10,), 10) == pytest.approx(ALPHA)
    assert level_at((10, 20), 7) == ALPHA  # ended before it was looked at even once


def test_a_run_that_ends_early_spends_the_rest_of_alpha() -> None:
    looks = plan_looks(100)
    stopped = looks[-2] + 3
    assert level_at(looks, stopped) > level_at(looks, looks[-2])
    assert level_at(looks, stopped) < ALPHA


def test_looking_again_and_again_at_real_intervals() -> None:
    """Stop as soon as an interval excludes the true value: at most 5 % with the plan, else far more often."""
    looks = plan_looks(60)
    rng = np.random.default_rng(5)
    repetitions = 600
    planned = naive = 0
    for _ in range(repetitions):
        data = rng.standard_t(4, looks[-1])
        estimates = [(get_centre(data[:look]), level_at(looks, look)) for look in looks]
        planned += any(abs(estimate.centre) > estimate.half_width(level) for estimate, level in estimates)
        naive += any(abs(estimate.centre) > estimate.half_width(ALPHA) for estimate, _ in estimates)
    assert planned / repetitions <= ALPHA + 3 * np.sqrt(ALPHA * (1 - ALPHA) / repetitions)
    assert naive / repetitions > 0.09
