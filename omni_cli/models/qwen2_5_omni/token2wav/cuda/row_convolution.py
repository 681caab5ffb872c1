"""The vocoder's convolutions over rows of channels, with several samples in a row where there are few channels."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

# Samples per input row and per output row, by channels. With few channels cuDNN's products are far from
# their rate. With several samples in a row an H200 takes about half of the time in TF32, although most weights are
# zeros then; benchmarks/gpu/row_convolutions.py measures it.
SAMPLES = {24: (4, 8), 48: (2, 4), 96: (1, 2), 192: (1, 2)}


class RowConvolution:
    """A convolution of samples in rows, (num_samples, channels), without dilation and bias."""

    @torch.no_grad()
    def __init__(self, module: nn.Conv1d | nn.ConvTranspose1d, samples: tuple[int, int] | None = None) -> None:
        """Take over the weights of `module`, which no longer runs by itself.

        `samples` are the samples per input row and per output row; default: those in `SAMPLES`.
        """
        if isinstance(module, nn.ConvTranspose1d):
            (raised,), (padding,), taps = module.stride, module.padding, module.weight.transpose(0, 1)
        else:
            raised, padding, taps = 1, (module.weight.shape[-1] - 1) // 2, module.weight.flip(-1)
        channels_out, channels_in, num_taps = taps.shape
        samples_read, samples_made = samples or SAMPLES.get(channels_in, (1, 1))
        self.samples_made = max(samples_made, samples_read * raised)
        self._samples_read, self._channels = samples_read, channels_out
        self._stride = self.samples_made // (samples_read * raised)
        # Rows on either side that a row depends on.
        self._reach = -(-((num_taps - 1 - padding) // raised) // samples_read)
        num_rows = 2 * self._reach + self._stride
        weight = taps.new_zeros(self.samples_made, channels_out, num_rows, samples_read, channels_in)
        for sample in range(self.samples_made):
            for row in range(num_rows):
                for at in range(samples_read):
                    tap = sample + padding - raised * ((row - self._reach) * samples_read + at)
                    if 0 <= tap < num_taps:
                        weight[sample, :, row, at] = taps[:, :, tap]
        weight = weight.view(self.samples_made * channels_out, 1, num_rows, samples_read * channels_in)
        # As images of one row, whose channels lie together.
        self._weight = weight.permute(0, 3, 1, 2)
        # The same memory, so that weights are kept once, and their precision can be read back.
        module.weight = nn.Parameter(self._weight[:, :, 0], requires_grad=False)

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the output samples (num_samples, channels), whose number is a multiple of `samples_made`."""
        images = rows.view(1, 1, -1, self._samples_read * rows.shape[1]).permute(0, 3, 1, 2)
        convolved = functional.conv2d(images, self._weight, padding=(0, self._reach), stride=(1, self._stride))
        return convolved.permute(0, 2, 3, 1).reshape(-1, self._channels)
