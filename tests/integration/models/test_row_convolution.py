"""Convolutions with several samples in a row, against torch's own."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from omni_cli.models.qwen2_5_omni.token2wav.cuda.vocoder import RowConvolution

NUM_SAMPLES = 48


@pytest.mark.parametrize("channels", [7, 24, 48, 96, 192])
@pytest.mark.parametrize("taps", [1, 3, 7, 11])
def test_rows_are_convolved_as_samples_are(channels, taps):
    check(nn.Conv1d(channels, 5, taps, padding=(taps - 1) // 2), NUM_SAMPLES)


@pytest.mark.parametrize("channels", [7, 24, 48, 96, 192])
@pytest.mark.parametrize(("taps", "rate"), [(11, 5), (7, 3), (4, 2), (1, 1)])
def test_rows_of_a_higher_rate_are_made_as_samples_are(channels, taps, rate):
    check(nn.ConvTranspose1d(channels, 5, taps, stride=rate, padding=(taps - rate) // 2), NUM_SAMPLES * rate)


@torch.inference_mode()
def check(module: nn.Conv1d | nn.ConvTranspose1d, num_made: int) -> None:
    module.double()
    rows = torch.randn(NUM_SAMPLES, module.in_channels, dtype=torch.float64)
    expected = (module(rows.mT[None])[0] - module.bias[:, None]).mT
    convolution = RowConvolution(module)
    assert num_made % convolution.samples_made == 0
    made = convolution(rows)
    assert made.shape == (num_made, 5)
    torch.testing.assert_close(made, expected)
