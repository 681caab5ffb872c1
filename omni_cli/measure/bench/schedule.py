"""The order in which interleaved variants run: blocks of rounds, or of turns on a device that works at its limit."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from omni_cli.stats.estimate import MIN_BLOCKS

MIN_BLOCK_S = 0.5
"""Minimum length of a block: noise lasts longer than a short iteration, and each block ends with a written record."""

FEW_BLOCKS = 2 * MIN_BLOCKS


@dataclass(frozen=True)
class BlockSchedule:
    """`blocks` blocks of `rounds` rounds; every variant runs once per round. `total_rounds` cuts the last block."""

    blocks: int
    rounds: int
    total_rounds: int

    def block(self, block: int, num_variants: int) -> Iterator[int]:
        """Yield the variants in the order of this block.

        Two variants: A B B A, then B A A B, and so on. More: an order and its reverse, rotated from block to block.
        """
        rounds = min(self.rounds, self.total_rounds - block * self.rounds)
        order = list(range(num_variants))
        if num_variants > 2:
            first = block % num_variants
            order = order[first:] + order[:first]
        for number in range(rounds):
            yield from order if (block + number) % 2 == 0 else reversed(order)


def schedule_for_time(round_s: float, budget_s: float) -> BlockSchedule:
    """Plan as many blocks as fit into `budget_s`, at least one; a round takes about `round_s`.

    A block is A B B A, repeated if that is short. If only few blocks would fit, it is A B, and the next one B A.
    """
    rounds = 2 * max(1, math.ceil(MIN_BLOCK_S / (2 * round_s)))
    if budget_s / (rounds * round_s) < FEW_BLOCKS:
        rounds = 2 if budget_s / (2 * round_s) >= FEW_BLOCKS else 1
    blocks = max(1, math.floor(budget_s / (rounds * round_s)))
    return BlockSchedule(blocks, rounds, blocks * rounds)


def schedule_for_count(num_iters: int, round_s: float) -> BlockSchedule:
    """Plan exactly `num_iters` iterations of each variant."""
    rounds = 2 * max(1, math.ceil(MIN_BLOCK_S / (2 * round_s)))
    rounds = max(1, min(rounds, num_iters // FEW_BLOCKS // 2 * 2))
    return BlockSchedule(math.ceil(num_iters / rounds), rounds, num_iters)
