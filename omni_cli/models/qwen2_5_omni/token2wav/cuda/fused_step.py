"""Guidance and an evaluation's part of a Runge-Kutta step in one kernel."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit(do_not_specialize=["num_frames"])
def _advance(  # type: ignore[no-untyped-def] # Triton's own types
    predicted, places, frames, slopes, times, packed, num_frames, scale, PART: tl.constexpr, GUIDED: tl.constexpr,
    WIDTH: tl.constexpr, COLUMNS: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, COLUMNS)
    real = column < WIDTH
    place = tl.load(places + row) * WIDTH + column
    slope = tl.load(predicted + place, mask=real, other=0.0).to(tl.float32)
    unguided = place
    if GUIDED:
        unguided = tl.load(places + num_frames + row) * WIDTH + column
        slope += (slope - tl.load(predicted + unguided, mask=real, other=0.0).to(tl.float32)) * scale
    change = tl.load(times + 1) - tl.load(times)
    at = row * WIDTH + column
    value = tl.load(frames + at, mask=real, other=0.0)
    first, second, third = slopes + at, slopes + num_frames * WIDTH + at, slopes + 2 * num_frames * WIDTH + at
    if PART == 0:
        value += change * slope * (1 / 3)
        tl.store(first, slope, mask=real)
    if PART == 1:
        value += change * (slope - tl.load(first, mask=real, other=0.0) * (1 / 3))
        tl.store(second, slope, mask=real)
    if PART == 2:
        value += change * (tl.load(first, mask=real, other=0.0) - tl.load(second, mask=real, other=0.0) + slope)
        tl.store(third, slope, mask=real)
    if PART == 3:
        middle = tl.load(second, mask=real, other=0.0) + tl.load(third, mask=real, other=0.0)
        value += (tl.load(first, mask=real, other=0.0) + 3 * middle + slope) * change / 8
        tl.store(frames + at, value, mask=real)
    tl.store(packed + place, value, mask=real)
    if GUIDED:
        tl.store(packed + unguided, value, mask=real)


def advance(
    predicted: torch.Tensor, places: torch.Tensor, frames: torch.Tensor, slopes: torch.Tensor, times: torch.Tensor,
    packed: torch.Tensor, part: int, guidance_scale: float
) -> None:  # fmt: skip
    """Do what `PackedSolver.advance` does for the evaluation `part` of a step that begins with the first of `times`.

    All are contiguous: `predicted` and `packed` (1, num_packed, width), `frames` (num_frames, width) and `slopes` (3,
    num_frames, width), all but `predicted` float32; `places` (1 or 2, num_frames) int64.
    """
    num_frames, width = frames.shape
    _advance[(num_frames,)](
        predicted, places, frames, slopes, times, packed, num_frames, guidance_scale, PART=part,
        GUIDED=len(places) == 2, WIDTH=width, COLUMNS=triton.next_power_of_2(width), num_warps=1,
    )  # fmt: skip
