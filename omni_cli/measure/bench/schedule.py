"""The order in which interleaved variants run: blocks of rounds, or of turns on a device that works at its limit."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from omni_cli.stats.estimate import MIN_BLOCKS
from omni_cli.stats.sequential import ALPHA

MIN_BLOCK_S = 0.5
"""Minimum length of a block: noise lasts longer than a short iteration, and each block ends with a written record."""

MIN_PER_LOAD, MAX_PER_LOAD = 4, 32

FEW_BLOCKS = 2 * MIN_BLOCKS

TURN_S = 1.5
"""Length of a turn on a device at its power limit, whose clock follows the power of the last tenths of a second: a true
ratio of 1.175 is 0.998 in alternating runs of 20 ms, and 1.165 with turns of 1.5 s."""


@dataclass(frozen=True)
class RunLimits:
    """Limits of a measurement: `num_iters` iterations of each variant, as far as time allows; without that number,
    until the verdict is reached. `alpha` is the error of all its looks together. Long iterations exceed the budget, up
    to `min_rounds` of each variant. Without number and time, each is measured for about as long as it takes to load.

    Interleaved variants run for `turn_s` at a time; None decides by the devices, 0 lets single iterations alternate."""

    num_iters: int | None
    num_iters_warmup: int
    time_budget_s: float | None
    alpha: float = ALPHA
    min_rounds: int = 0
    turn_s: float | None = None

    def budget_s(self, round_s: float) -> float:
        """Return the time for measuring, if a round takes `round_s`; infinite without a limit."""
        return math.inf if self.time_budget_s is None else max(self.time_budget_s, self.min_rounds * round_s)


@dataclass(frozen=True)
class BlockSchedule:
    """`blocks` blocks of `rounds` rounds; every variant runs once per round. `total_rounds` cuts the last block.

    A variant runs at least `turn` times in a row; where a block has fewer rounds, the last ones are counted.
    """

    blocks: int
    rounds: int
    total_rounds: int
    turn: int = 1

    def block(self, block: int, num_variants: int) -> Iterator[int]:
        """Yield the variants in the order of this block, one for each iteration that is counted.

        Two variants: A B B A, then B A A B, and so on. More: an order and its reverse, rotated from block to block.
        """
        rounds = min(self.rounds, self.total_rounds - block * self.rounds)
        order = list(range(num_variants))
        if num_variants > 2:
            first = block % num_variants
            order = order[first:] + order[:first]
        for number, begin in enumerate(range(0, rounds, self.turn)):
            for variant in order if (block + number) % 2 == 0 else reversed(order):
                yield from [variant] * min(self.turn, rounds - begin)


@dataclass(frozen=True)
class Halves:
    """The end of a measurement, and half time, when the variants are loaded again in the other order: after half of the
    blocks or of the time, or when a look at the first half decides. Then the first look is after as many blocks again.

    `reversed_from` is the first block after half time; None if that is still to come, and 0 if there is none.
    """

    blocks: int
    looks: tuple[int, ...] = ()
    reversed_from: int | None = 0

    def is_look(self, done: int) -> bool:
        """True if what was measured may end this half after so many blocks."""
        if self.reversed_from is None:
            return any(look // 2 == done for look in self.looks)
        return done in self.looks and done >= 2 * self.reversed_from

    def is_over(self, done: int, share_of_time: float) -> bool:
        """True if the blocks or the time of this half are over."""
        part = 0.5 if self.reversed_from is None else 1.0
        return done >= part * self.blocks or share_of_time > part


def schedule_for_time(round_s: float, budget_s: float, turn: int = 1) -> BlockSchedule:
    """Plan as many blocks as fit into `budget_s`, at least one; a round takes about `round_s`.

    A block is A B B A, repeated if that is short. If only few blocks would fit, it is A B, and the next one B A. With a
    `turn`, each letter is that many iterations.
    """
    turns_s = turn * round_s
    turns = 2 * max(1, math.ceil(MIN_BLOCK_S / (2 * turns_s)))
    if budget_s / (turns * turns_s) < FEW_BLOCKS:
        turns = 2 if budget_s / (2 * turns_s) >= FEW_BLOCKS else 1
    blocks = max(1, math.floor(budget_s / (turns * turns_s)))
    return BlockSchedule(blocks, turns * turn, blocks * turns * turn, turn)


def schedule_for_count(num_iters: int, round_s: float, turn: int = 1) -> BlockSchedule:
    """Plan exactly `num_iters` iterations of each variant that are counted.

    With a `turn`, a block is A B and the next one B A. Of a small number, few of each turn are counted, because a block
    is the unit of all statistics.
    """
    rounds = 2 * max(1, math.ceil(MIN_BLOCK_S / (2 * round_s)))
    rounds = max(1, min(rounds, num_iters // FEW_BLOCKS // 2 * 2))
    if turn > 1:
        rounds = max(1, min(turn, num_iters // FEW_BLOCKS))
    return BlockSchedule(math.ceil(num_iters / rounds), rounds, num_iters, turn)


def per_load(load_s: float, iteration_s: float) -> int:
    """Return the iterations that take about as long as loading, within bounds."""
    return min(max(round(load_s / iteration_s), MIN_PER_LOAD), MAX_PER_LOAD)


def schedule_rounds(
    limits: RunLimits, load_s: float, iteration_s: float, round_s: float, turn: int = 1
) -> BlockSchedule:
    """Plan interleaved blocks for the time or the number; without both, iterations of a variant for `load_s`."""
    if limits.num_iters is None and limits.time_budget_s is not None:
        return schedule_for_time(round_s, limits.budget_s(round_s), turn)
    return schedule_for_count(limits.num_iters or per_load(load_s, iteration_s), round_s, turn)


def schedule_loads(
    limits: RunLimits, load_s: float, iteration_s: float, num_variants: int, turn: int = 1
) -> BlockSchedule:
    """Plan blocks in which each variant is loaded for several iterations; a single block without number and time."""
    each = per_load(load_s, iteration_s)
    if limits.num_iters is not None:
        return BlockSchedule(-(-limits.num_iters // each), each, limits.num_iters)
    if limits.time_budget_s is None:
        return BlockSchedule(1, each, each)
    block_s = num_variants * max(each, turn) * iteration_s + (num_variants - 1) * 2 * load_s
    blocks = max(1, int(limits.budget_s(block_s / each) / block_s))
    return BlockSchedule(blocks, each, blocks * each)
