"""Linear layers of a CPU, against torch's own."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from omni_cli.backends.execution.precision import OneDnnLinear


@pytest.mark.parametrize("bias", [True, False])
@torch.inference_mode()
def test_products_and_activations_are_torchs(bias: bool):
    linear, inputs = nn.Linear(24, 40, bias=bias), torch.randn(3, 7, 24)
    torch.testing.assert_close(OneDnnLinear(linear)(inputs), linear(inputs))
    for gelu in (nn.GELU(approximate="tanh"), nn.GELU()):
        torch.testing.assert_close(OneDnnLinear(linear, gelu)(inputs), gelu(linear(inputs)), rtol=1e-4, atol=1e-5)
