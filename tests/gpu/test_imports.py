"""Imports before a fork leave CUDA alone: a process forked after its initialisation could not use the device."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SCRIPT = """
import torch

from omni_cli.engine.process.preload import preloading

with preloading():
    import diffusers.pipelines.pipeline_utils
    import transformers.modeling_utils
assert torch.cuda.is_available() and not torch.cuda.is_initialized()
expected = torch.cuda.get_device_capability()
assert torch._dynamo.device_interface.CudaInterface.Worker.get_device_properties(0).major == expected[0]
"""


def test_imports_of_the_fork_server_do_not_initialise_cuda():
    """With torchao and bitsandbytes installed, which ask for the compute capability while they are imported."""
    places = os.pathsep.join([str(Path(__file__).parents[2]), *filter(None, sys.path)])
    environment = {**os.environ, "PYTORCH_NVML_BASED_CUDA_CHECK": "1", "PYTHONPATH": places}
    made = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, env=environment)
    assert made.returncode == 0, made.stderr
