"""token2wav's fused kernels, run on the CPU by Triton's interpreter; `tests/gpu` runs them compiled."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

# Triton reads its mode when it is imported, so the kernels have a process of their own.
SCRIPT = """
import json
import sys

import torch

from omni_cli.compat.torchvision import ensure_torchvision_importable

ensure_torchvision_importable()

from support.plain_activation import fused_and_plain

found = {}
for case in json.loads(sys.argv[1]):
    made, expected = fused_and_plain(*case)
    found[str(case)] = (made - expected).abs().max().item()

from omni_cli.models.qwen2_5_omni.fused_norm import add_and_norm

hidden, branch = torch.randn(2, 3, 40, 2).unbind(-1)
gate, scale, shift = torch.randn(40, 3).mT.contiguous()
made = add_and_norm(hidden.contiguous(), branch.contiguous(), gate, scale, shift, 1e-6)
summed = hidden + gate * branch
expected = summed, torch.nn.functional.layer_norm(summed, (40,), scale, shift, 1e-6)
found["norm"] = max((a - b).abs().max().item() for a, b in zip(made, expected))
print(json.dumps(found))
"""
CASES = [(6, 1, 1, 1), (6, 5, 3, 1), (6, 5, 1, 5), (6, 15, 5, 3), (130, 5, 5, 3), (6, 60, 1, 1)]


def test_the_kernels_are_the_vocoders_activation_in_every_order_and_a_layers_sum_and_norm():
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    made = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps(CASES)], capture_output=True, text=True, env=environment, check=True
    )
    found = json.loads(made.stdout.splitlines()[-1])
    assert len(found) == len(CASES) + 1
    assert max(found.values()) < 2e-5, found
