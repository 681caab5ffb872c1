"""The locations of sequences among the packed frames of one call of token2wav's DiT."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

# Larger than any attention span, in blocks.
NEVER = 1 << 10


@dataclass(frozen=True)
class Layout:
    """Sequences of `lengths` frames, each of which begins with a block. Blocks after the last sequence are fillers."""

    lengths: tuple[int, ...]
    block_size: int
    num_blocks: int

    @classmethod
    def pack(cls, lengths: Sequence[int], block_size: int, *, num_blocks_for: Callable[[int], int]) -> Layout:
        """Lay out sequences one after another; `num_blocks_for` returns all blocks for the number that they fill."""
        num_used = sum(-(-length // block_size) for length in lengths)
        return cls(tuple(lengths), block_size, num_blocks_for(num_used))

    @property
    def num_frames(self) -> int:
        return self.num_blocks * self.block_size

    @property
    def spans(self) -> list[tuple[int, int]]:
        """The first frame and the length of each sequence."""
        spans, block = [], 0
        for length in self.lengths:
            spans.append((block * self.block_size, length))
            block += -(-length // self.block_size)
        return spans

    def positions(self, firsts: Sequence[int]) -> torch.Tensor:
        """Return the position of each frame (num_frames,) int64, from `firsts` on in each sequence; 0 for fillers."""
        positions = torch.zeros(self.num_frames, dtype=torch.long)
        for (start, length), first in zip(self.spans, firsts, strict=True):
            positions[start : start + length] = torch.arange(first, first + length)
        return positions

    def block_diff(self, continued: Sequence[int] | None) -> torch.Tensor:
        """Return (num_blocks, 1, 1, 3 * block_size) int16: the distance in blocks of the keys before, in and after one.

        Keys of other sequences have the distance `NEVER`. Filler blocks attend to themselves, so that their results are
        finite. With the numbers of `continued` blocks there are 4 * block_size keys per block. The last `block_size` of
        them are carried keys, which continued blocks attend to as the block before them.
        """
        size = self.block_size
        sequence = torch.full((self.num_blocks,), -1)
        valid = torch.zeros(self.num_frames, dtype=torch.bool)
        for index, (start, length) in enumerate(self.spans):
            sequence[start // size : -(-(start + length) // size)] = index
            valid[start : start + length] = True
        valid = valid.view(self.num_blocks, size) | (sequence < 0)[:, None]
        diff = torch.full((self.num_blocks, 3, size), NEVER, dtype=torch.int16)
        same = ((sequence[1:] == sequence[:-1]) & (sequence[1:] >= 0))[:, None]
        diff[:, 1][valid] = 0
        diff[1:, 0][same & valid[:-1]] = -1
        diff[:-1, 2][same & valid[1:]] = 1
        if continued is not None:
            carried = torch.full((self.num_blocks, 1, size), NEVER, dtype=torch.int16)
            carried[list(continued)] = -1
            diff = torch.cat((diff, carried), dim=1)
        return diff.view(self.num_blocks, 1, 1, -1)
