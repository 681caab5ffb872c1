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

from support.plain_activation import fused_and_plain

found = {}
for case in json.loads(sys.argv[1]):
    made, expected = fused_and_plain(*case)
    found[str(case)] = (made - expected).abs().max().item()
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
