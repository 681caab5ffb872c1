"""token2wav on a CUDA device: Triton kernels, sizes of CUDA graphs, and the vocoder over packed sequences."""

from __future__ import annotations

from collections.abc import Iterator

# The smallest buckets of the DiT, in blocks, and of the vocoder. The first chunk of a stream with guidance has four
# blocks. The vocoder's graphs take longer to capture, and the frames of a call cost little beside its launches.
BLOCKS, VOCODER = 4, 8
# In packed spectrograms each sequence begins at a multiple of this many frames.
ALIGNMENT = 6
# Buckets per power of two, from four times the smallest on: a batch is padded by less than a quarter.
BUCKETS_PER_OCTAVE = 4


def bucket(size: int, smallest: int = BLOCKS) -> int:
    """Return the smallest bucket that holds `size`; all are multiples of `smallest`."""
    power = 1 << max(0, (size - 1).bit_length() - 1)
    step = max(smallest, power // BUCKETS_PER_OCTAVE)
    return -(-size // step) * step


def buckets(largest: int, smallest: int = BLOCKS) -> Iterator[int]:
    """Yield all buckets up to `largest`."""
    size = smallest
    while size <= largest:
        yield size
        size = bucket(size + 1, smallest)
