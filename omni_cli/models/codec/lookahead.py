"""Decode codec codes piece by piece with convolutions that look ahead.

A sample depends on some frames around its own. A piece is decoded again with as many frames before it, and its last
ones wait until as many have followed, so that every sample is computed from the same frames as in one call.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import nn

from omni_cli.execution.counters import ExecutionCounters
from omni_cli.models.codec.streaming import Piece

# Key of the latest codes (num_codebooks, num_frames) in a state's contexts.
_CODES = 0


class LookaheadDecoder:
    """A decoder with the interface of `StreamingCodecDecoder`, without CUDA graphs.

    `call` returns samples (batch, num_samples) of codes (batch, num_codebooks, num_frames), `samples_per_frame` each.
    """

    def __init__(
        self, convolutions: nn.Module, call: Callable[[torch.Tensor], torch.Tensor], samples_per_frame: int
    ) -> None:
        self.reach = frames_in_reach(convolutions)
        self.counters = ExecutionCounters()
        self._call, self._samples_per_frame = call, samples_per_frame

    @torch.inference_mode()
    def decode(self, pieces: Sequence[Piece]) -> list[torch.Tensor]:
        """Return the samples (num_samples,) of each piece that are known with it; a piece may have none."""
        windows = [self._window(piece) for piece in pieces]
        waveforms = [codes.new_zeros(0, dtype=torch.float32) for codes, _ in windows]
        lengths = {codes.shape[-1] for codes, wanted in windows if wanted.start < wanted.stop}
        for length in lengths:
            together = [index for index, (codes, _) in enumerate(windows) if codes.shape[-1] == length]
            self.counters.eager_calls += 1
            samples = self._call(torch.stack([windows[index][0] for index in together]))
            for index, row in zip(together, samples, strict=True):
                wanted, size = windows[index][1], self._samples_per_frame
                waveforms[index] = row[wanted.start * size : wanted.stop * size]
        return waveforms

    def _window(self, piece: Piece) -> tuple[torch.Tensor, range]:
        """Return the codes to decode, and which of their frames are wanted; keep what the next piece needs."""
        state = piece.state
        codes = piece.codes if piece.is_first else torch.cat([state.contexts[_CODES], piece.codes], dim=-1)
        num_before = state.num_positions
        state.num_positions += piece.codes.shape[-1]
        first = state.num_positions - codes.shape[-1]
        begin = max(0, num_before - self.reach)
        end = state.num_positions if piece.is_last else max(0, state.num_positions - self.reach)
        state.contexts = {_CODES: codes[:, max(0, end - self.reach - first) :]}
        return codes, range(begin - first, end - first)


def frames_in_reach(convolutions: nn.Module) -> int:
    """Return how many frames away a frame can be that changes a sample, on either side.

    `convolutions` registers its modules in the order in which they run; each keeps the length or multiplies it.
    """
    reach, rate = 0.0, 1
    for module in convolutions.modules():
        if isinstance(module, nn.ConvTranspose1d):
            (kernel,), (stride,) = module.kernel_size, module.stride
            reach += math.ceil(kernel / stride) / rate
            rate *= stride
        elif isinstance(module, nn.Conv1d):
            (kernel,), (dilation,) = module.kernel_size, module.dilation
            reach += (kernel - 1) // 2 * dilation / rate
    return math.ceil(reach)
