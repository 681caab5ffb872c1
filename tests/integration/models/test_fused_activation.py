"""The vocoder's fused kernel, run on the CPU by Triton's interpreter; `tests/gpu` runs it compiled."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

# Triton reads its mode when it is imported, so the kernel has a process of its own.
SCRIPT = """
import json
import sys

from omni_cli.compat.torchvision import ensure_torchvision_importable

ensure_torchvision_importable()

import torch
from support.plain_activation import PlainActivation
from transformers.models.qwen2_5_omni.modeling_qwen2_5_omni import (
    Qwen2_5OmniAntiAliasedActivation1d,
    Qwen2_5OmniSnakeBeta,
)

from omni_cli.models.qwen2_5_omni.fused_activation import FusedActivation

found = {}
with torch.inference_mode():
    for channels, rate, phases_in, phases_out in json.loads(sys.argv[1]):
        torch.manual_seed(0)
        module = Qwen2_5OmniAntiAliasedActivation1d(activation=Qwen2_5OmniSnakeBeta(channels))
        module.act.alpha.data.normal_(0, 0.5)
        module.act.beta.data.normal_(0, 0.5)
        bounds = torch.zeros(2, 30, dtype=torch.int32)
        for start, end in ((0, 4), (5, 6), (7, 9), (10, 29)):
            bounds[0, start:end], bounds[1, start:end] = start, end
        x, bias = torch.randn(30 * rate, channels), torch.randn(channels)
        order = {"bias": bias, "phases_in": phases_in, "phases_out": phases_out}
        made = FusedActivation(module)(x, bounds, rate, **order)
        expected = PlainActivation(module)(x, bounds, rate, **order)
        found[str((channels, rate, phases_in, phases_out))] = (made - expected).abs().max().item()
print(json.dumps(found))
"""
CASES = [(6, 1, 1, 1), (6, 5, 3, 1), (6, 5, 1, 5), (6, 15, 5, 3), (130, 5, 5, 3), (6, 60, 1, 1)]


def test_the_kernel_is_the_vocoders_activation_for_each_sequence_in_every_order():
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    made = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps(CASES)], capture_output=True, text=True, env=environment, check=True
    )
    found = json.loads(made.stdout.splitlines()[-1])
    assert len(found) == len(CASES)
    assert max(found.values()) < 2e-5, found
