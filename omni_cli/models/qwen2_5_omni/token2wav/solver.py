"""transformers' Runge-Kutta steps for the frames of several requests, one evaluation of the velocity at a time."""

from __future__ import annotations

import torch

from omni_cli.models.qwen2_5_omni.token2wav.velocity import EVALUATIONS_PER_STEP, Evaluations


class PackedSolver:
    """Frames (num_frames, mel_dim) float32 of all requests, and their copies among the packed frames of the DiT.

    `packed` (1, num_packed, mel_dim) has the frames to evaluate next at each of `places` (num_rows, num_frames), with
    two rows for guidance, and zeros elsewhere.
    """

    def __init__(
        self,
        frames: torch.Tensor,
        places: torch.Tensor,
        num_packed: int,
        evaluations: Evaluations,
        guidance_scale: float,
    ) -> None:
        self.frames = frames
        self.packed = frames.new_zeros(1, num_packed, frames.shape[1])
        self.packed[0, places] = frames
        self._places, self._times, self._guidance_scale = places, evaluations.times, guidance_scale
        # Velocities of the step so far.
        self._slopes = frames.new_empty(EVALUATIONS_PER_STEP - 1, *frames.shape)

    def advance(self, predicted: torch.Tensor, number: int) -> None:
        """Set what to evaluate next from the velocities `predicted` (1, num_packed, mel_dim) of evaluation `number`."""
        step, part = divmod(number, EVALUATIONS_PER_STEP)
        if predicted.is_cuda:
            from omni_cli.models.qwen2_5_omni.token2wav.cuda.fused_step import advance

            advance(
                predicted, self._places, self.frames, self._slopes, self._times[step:], self.packed, part,
                self._guidance_scale,
            )  # fmt: skip
            return
        rows = predicted[0, self._places].float()
        slope = rows[0] if len(rows) == 1 else rows[0] + (rows[0] - rows[1]) * self._guidance_scale
        change = self._times[step + 1] - self._times[step]
        first, second, third = self._slopes
        match part:
            case 0:
                given = self.frames + change * slope * (1 / 3)
            case 1:
                given = self.frames + change * (slope - first * (1 / 3))
            case 2:
                given = self.frames + change * (first - second + slope)
            case _:
                given = self.frames.add_((first + 3 * (second + third) + slope) * change / 8)
        if part < len(self._slopes):
            self._slopes[part] = slope
        self.packed[0, self._places] = given
