"""Linear layers and activations of a CPU, against torch's own."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from omni_cli.execution.cpu_linear import OneDnnLinear, TanhGelu, fast_linear


@torch.inference_mode()
def test_gelu_in_place_is_torchs_approximation_by_tanh():
    inputs = torch.cat((torch.linspace(-12, 12, 100_001), torch.tensor([-1e4, -0.0, 1e-30, 1e4])))
    expected = nn.functional.gelu(inputs.double(), approximate="tanh")
    made = TanhGelu()(inputs)
    assert made.data_ptr() == inputs.data_ptr()
    torch.testing.assert_close(made.double(), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("capability", "is_onednn"), [("AVX2", False), ("AVX512", True)])
@torch.inference_mode()
def test_products_are_torchs_and_onednns_where_it_is_faster(monkeypatch, capability: str, is_onednn: bool):
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    linear, inputs = nn.Linear(24, 40), torch.randn(3, 7, 24)
    assert isinstance(fast_linear(linear), OneDnnLinear) == is_onednn
    torch.testing.assert_close(fast_linear(linear)(inputs), linear(inputs))
    for gelu in (nn.GELU(approximate="tanh"), nn.GELU()):
        torch.testing.assert_close(fast_linear(linear, gelu)(inputs), gelu(linear(inputs)), rtol=1e-4, atol=1e-5)
