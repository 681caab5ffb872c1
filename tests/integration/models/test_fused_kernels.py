"""token2wav's and code2wav's fused kernels, run on the CPU by Triton's interpreter; `tests/gpu` runs them compiled."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import torch
from support.answers import answer_of
from support.code2wav import KINDS, code2wav, decoders

pytestmark = pytest.mark.slow

CASES = [(6, 1, 1, 1), (6, 5, 3, 1), (6, 5, 1, 5), (6, 15, 5, 3), (130, 5, 5, 3), (6, 60, 1, 1)]


def test_the_kernels_compute_what_torchs_operations_do():
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-m", "support.fused_kernels", json.dumps(CASES)]
    made = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert made.returncode == 0, made.stderr
    found = json.loads(made.stdout.splitlines()[-1])
    # A sum and its norm, a product, attention in four ways, its keys, a step's parts with guidance and without, and two
    # pieces of two decoders.
    assert len(found) == len(CASES) + 2 + 1 + 5 + 2 * 5 + 2 * 2
    assert max(found.values()) < 2e-5, found


def test_calls_of_any_length_run_kernels_that_were_compiled_ahead(tmp_path):
    """48 channels with short runs only, and 24 with short and long ones; 999 frames are no multiple of 4."""
    assert answer_of("compiled_ahead", {}, tmp_path) == {"ahead": 3, "in calls": [3, 3, 3, 3]}


@pytest.mark.parametrize("kind", list(KINDS))
def test_weights_are_laid_out_in_the_memory_that_a_stage_has_loaded_them_into(kind):
    """Only that memory is free while the stage sleeps."""
    sizes = {"codebook_dim": 32, "hidden_size": 32, "latent_dim": 32, "intermediate_size": 64, "num_hidden_layers": 1}
    module = code2wav(kind, codebook_size=64, num_quantizers=4, decoder_dim=192, upsample_rates=(3, 2), **sizes)
    weights = [part.conv.weight for part in module.decoder.modules() if hasattr(part, "conv")]
    loaded = [(weight.data_ptr(), weight.detach().clone()) for weight in weights]
    decoders(module)
    assert [weight.data_ptr() for weight in weights] == [place for place, _ in loaded]
    assert all(torch.equal(weight, before) for weight, (_, before) in zip(weights, loaded, strict=True))
    assert weights[0].stride() == (1, weights[0].shape[0], weights[0][..., 0].numel())
