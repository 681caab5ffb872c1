"""The order of variants: balanced, alternating, as many blocks as the time allows."""

from __future__ import annotations

from collections import Counter

import pytest

from omni_cli.measure.bench.schedule import FEW_BLOCKS, MIN_BLOCK_S, schedule_for_count, schedule_for_time


def orders(schedule, num_variants: int) -> list[str]:
    return ["".join("ABC"[v] for v in schedule.block(block, num_variants)) for block in range(schedule.blocks)]


def test_two_variants_alternate_between_abba_and_baab() -> None:
    schedule = schedule_for_time(round_s=1.0, budget_s=60)
    assert orders(schedule, 2)[:3] == ["ABBA", "BAAB", "ABBA"]


def test_three_variants_have_every_position_equally_often() -> None:
    schedule = schedule_for_time(round_s=1.0, budget_s=12 * 2 * 3)
    first = Counter(order[0] for order in orders(schedule, 3)[:6])
    assert set(first.values()) == {2}
    for order in orders(schedule, 3):
        assert order == order[::-1]


def test_if_few_blocks_fit_a_block_is_one_round_in_alternating_order() -> None:
    schedule = schedule_for_time(round_s=4.0, budget_s=60)
    assert orders(schedule, 2)[:4] == ["AB", "BA", "AB", "BA"]
    assert schedule.blocks == 15


def test_short_iterations_share_a_block() -> None:
    schedule = schedule_for_time(round_s=0.01, budget_s=60)
    assert schedule.rounds * 0.01 >= MIN_BLOCK_S
    assert schedule.blocks <= 60 / MIN_BLOCK_S


@pytest.mark.parametrize("round_s", [0.001, 0.1, 1.0, 3.0, 100.0])
@pytest.mark.parametrize("turn", [1, 7])
def test_the_plan_fits_into_the_budget_but_has_at_least_one_block(round_s: float, turn: int) -> None:
    schedule = schedule_for_time(round_s, budget_s=60, turn=turn)
    assert schedule.blocks == 1 or schedule.blocks * schedule.rounds * round_s <= 60


@pytest.mark.parametrize("num_iters", [1, 2, 3, 8, 15, 16, 31, 32, 33, 100, 1001])
@pytest.mark.parametrize("round_s", [0.001, 1.0])
@pytest.mark.parametrize("turn", [1, 7, 75])
def test_a_number_of_iterations_is_met_exactly(num_iters: int, round_s: float, turn: int) -> None:
    schedule = schedule_for_count(num_iters, round_s, turn)
    counts = Counter(variant for block in range(schedule.blocks) for variant in schedule.block(block, 2))
    assert counts == {0: num_iters, 1: num_iters}


@pytest.mark.parametrize("num_iters", [16, 32, 100])
@pytest.mark.parametrize("turn", [1, 75])
def test_enough_iterations_make_enough_blocks(num_iters: int, turn: int) -> None:
    assert schedule_for_count(num_iters, round_s=0.001, turn=turn).blocks >= FEW_BLOCKS


def test_a_turn_is_one_letter_of_the_order() -> None:
    assert orders(schedule_for_time(round_s=0.5, budget_s=20, turn=3), 2)[:2] == ["AAABBB", "BBBAAA"]
    assert orders(schedule_for_time(round_s=0.5, budget_s=60, turn=3), 2)[:2] == ["AAABBBBBBAAA", "BBBAAAAAABBB"]
    assert orders(schedule_for_count(33, round_s=0.5, turn=3), 2)[0::16] == ["AABB", "AB"]
