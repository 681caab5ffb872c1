"""The frames of one video: converted to uint8 RGB and copied to the host piece by piece, never as a whole."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from omni_cli.diffusers_integration.pixels import BadOutputError, PendingPixels, pil_to_uint8, to_bytes

if TYPE_CHECKING:
    from omni_cli.execution.copies import OutputCopy

_PIECE_BYTES = 16 * 2**20


class Frames:
    """A video as its pipeline made it.

    `frames` is a tensor (num_frames, 3 or 1, height, width) or an array (num_frames, height, width, 3 or 1) with values
    in [0, 1] (uint8 arrays: [0, 255]), or a list of PIL images.
    """

    def __init__(self, frames: Any, output_copy: OutputCopy) -> None:
        self._frames = frames
        self._output_copy = output_copy

    def __len__(self) -> int:
        return len(self._frames)

    @property
    def size(self) -> tuple[int, int]:
        """Width and height in pixels."""
        frame: Any = self._frames[0]
        if hasattr(frame, "size") and isinstance(frame.size, tuple):
            width, height = frame.size
        else:
            height, width = frame.shape[:2] if isinstance(frame, np.ndarray) else frame.shape[1:]
        return int(width), int(height)

    def pieces(self) -> Iterator[Sequence[np.ndarray]]:
        """Yield some frames at a time, uint8 RGB (height, width, 3) each, the next ones being copied meanwhile.

        Raises `BadOutputError` for NaN or infinite values.
        """
        import torch

        frames = self._frames
        if isinstance(frames, np.ndarray) and frames.dtype != np.uint8:
            frames = torch.from_numpy(frames).permute(0, 3, 1, 2)
        if isinstance(frames, torch.Tensor):
            yield from self._copied(frames)
            return
        step = _frames_per_piece(np.asarray(frames[0]).size)
        for start in range(0, len(frames), step):
            piece = frames[start : start + step]
            yield list(piece) if isinstance(piece, np.ndarray) else pil_to_uint8(piece)

    def numpy(self) -> np.ndarray:
        """All frames, uint8 RGB (num_frames, height, width, 3)."""
        return np.stack(list(itertools.chain.from_iterable(self.pieces())))

    def _copied(self, frames: Any) -> Iterator[Sequence[np.ndarray]]:
        if frames.ndim != 4 or frames.shape[1] not in (1, 3):
            raise BadOutputError(f"the pipeline made a tensor of shape {tuple(frames.shape)} instead of RGB frames")
        under_way: PendingPixels | None = None
        for piece in frames.split(_frames_per_piece(3 * frames[0, 0].numel())):
            following = PendingPixels(self._output_copy.start(to_bytes(piece)), tuple(piece.shape))
            if under_way is not None:
                yield under_way.get()
            under_way = following
        if under_way is not None:
            yield under_way.get()


def _frames_per_piece(frame_bytes: int) -> int:
    return max(1, _PIECE_BYTES // frame_bytes)
