"""Detectable effects: the self-check of a variant against itself, and the refusal of limits below the noise."""

from __future__ import annotations

import numpy as np
import pytest
from support.bench_records import correlated, variant

from omni_cli.core.errors import ExitCode
from omni_cli.records.record import Variant
from omni_cli.stats.compare import NoiseError, refuse_limits_below, self_check
from omni_cli.stats.estimate import MIN_BLOCKS, get_centre
from omni_cli.stats.sequential import blocks_needed, minimum_detectable

pytestmark = pytest.mark.slow


def alone(blocks: int, *, seed: int = 0, cv: float = 0.05) -> Variant:
    """A variant that ran alone, four times per block."""
    times = 0.1 * correlated(np.random.default_rng(seed), (blocks * 4,), lag1=0.75, cv=cv)
    return variant("only", times.reshape(blocks, 4), slots=(0, 1, 2, 3))


def test_a_variant_does_not_differ_from_itself() -> None:
    inside = 0
    for seed in range(200):
        low, high = self_check(alone(20, seed=seed)).ci95
        inside += low <= 1 <= high
    assert inside >= 0.95 * 200 - 3 * np.sqrt(200 * 0.95 * 0.05)


def test_detectable_regressions_are_detected_in_four_of_five_runs() -> None:
    blocks, repetitions = 30, 400
    rng = np.random.default_rng(1)
    noise = 0.02 * rng.standard_normal((repetitions, blocks))
    # What is announced beforehand from another number of blocks of the same noise.
    detectable = minimum_detectable(get_centre(0.02 * rng.standard_normal(3000)), 3000, blocks)
    found = sum(get_centre(row + np.log1p(detectable)).interval(0.05)[0] > 0 for row in noise)
    assert found / repetitions == pytest.approx(0.8, abs=0.07)


def test_more_blocks_and_less_noise_detect_smaller_regressions() -> None:
    assert self_check(alone(80)).detectable < self_check(alone(20)).detectable
    assert self_check(alone(20, cv=0.005)).detectable < 0.2 * self_check(alone(20)).detectable
    assert self_check(variant("x", np.full((20, 4), 0.1), slots=(0, 1, 2, 3))).detectable == 0


def test_limits_below_the_noise_are_refused() -> None:
    check = self_check(alone(20))
    refuse_limits_below(check, {"e2e_s": check.detectable * 1.01})
    with pytest.raises(NoiseError, match=r"limit of 0\.10% for `e2e_s` cannot be judged") as caught:
        refuse_limits_below(check, {"e2e_s": 0.001})
    assert caught.value.exit_code is ExitCode.INCONCLUSIVE
    assert "--time-budget" in caught.value.hint


def test_too_few_blocks_for_a_self_check() -> None:
    with pytest.raises(NoiseError, match=f"needs {MIN_BLOCKS} blocks of `only`, there are 7"):
        self_check(alone(MIN_BLOCKS - 1))


def test_two_runs_a_block_make_half_as_many_blocks() -> None:
    times = correlated(np.random.default_rng(0), (64,), lag1=0.5, cv=0.01).reshape(32, 2)
    assert self_check(variant("x", times, slots=(0, 3))).blocks == 16


def test_blocks_needed() -> None:
    estimate = get_centre(0.02 * np.random.default_rng(0).standard_normal(25))
    half = estimate.half_width(0.05)
    # Half the width takes four times as many; that it also happens in four of five cases, about twice as many again.
    assert blocks_needed(estimate, 25, half / 2, 0.05) == pytest.approx(100 * ((1.96 + 0.84) / 1.96) ** 2 - 25, rel=0.3)
    assert blocks_needed(estimate, 25, half * 10, 0.05) == 1
    assert blocks_needed(estimate, 25, 0.0, 0.05) is None
    assert blocks_needed(estimate, 25, half / 1000, 0.05) is None
