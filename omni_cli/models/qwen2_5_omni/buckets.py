"""Sizes to which batches are padded, so that few CUDA graphs serve all."""

from __future__ import annotations

from collections.abc import Iterator

# The denoiser's blocks for the first chunk of a stream with guidance are four.
SMALLEST_BUCKET = 8
# Per power of two above four of the smallest: such a batch is padded by less than a quarter.
BUCKETS_PER_OCTAVE = 4


def bucket(size: int) -> int:
    """Return the smallest bucket that holds `size`."""
    power = 1 << max(0, (size - 1).bit_length() - 1)
    step = max(SMALLEST_BUCKET, power // BUCKETS_PER_OCTAVE)
    return -(-size // step) * step


def buckets(largest: int) -> Iterator[int]:
    """Yield all buckets up to `largest`."""
    size = SMALLEST_BUCKET
    while size <= largest:
        yield size
        size = bucket(size + 1)
