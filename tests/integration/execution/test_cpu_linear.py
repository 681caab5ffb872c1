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


@torch.inference_mode()
def test_onednns_product_is_torchs():
    linear, inputs = nn.Linear(24, 40), torch.randn(3, 7, 24)
    torch.testing.assert_close(OneDnnLinear(linear)(inputs), linear(inputs))


@pytest.mark.parametrize(("capability", "replaced"), [("AVX2", False), ("AVX512", True)])
def test_onednn_multiplies_where_it_is_faster(monkeypatch, capability, replaced):
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    assert isinstance(fast_linear(nn.Linear(8, 8)), OneDnnLinear) == replaced
