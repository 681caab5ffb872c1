"""Two ranks of a diffusion give the results of one, with vLLM's own executor.

`test_hidden_states.py` has the thinker on ranks, `test_scheduling.py` the talker.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.answers import answer_of
from support.samples import sample

pytestmark = pytest.mark.skipif(torch.cuda.device_count() == 1, reason="two ranks need two CUDA devices, or none")
# Tensor ranks add their partial sums in another order than one rank. Rows have a scale of 1.
TOLERANCE = 2e-5


CASES = {
    "diffusion": {},
    "diffusion, tensor": {"distributed_executor_backend": "mp", "tensor_parallel_size": 2},
    "diffusion, pipeline": {"distributed_executor_backend": "mp", "pipeline_parallel_size": 2},
}


@pytest.fixture(scope="module")
def made(tiny_omni_path: Path, tmp_path_factory: Any) -> Callable[[str], Any]:
    """`made(case)` -> the tensor of each request."""

    @functools.cache
    def made_by(name: str) -> Any:
        shared = set(Path("/dev/shm").glob("*cpushm*"))
        folder = tmp_path_factory.mktemp("ranks")
        task = {"model": str(tiny_omni_path), "cases": {name: CASES[name]}, "folder": str(folder)}
        answer = answer_of("parallel_ranks", task, folder)
        left = set(Path("/dev/shm").glob("*cpushm*")) - shared
        # A test that runs beside this one may just be starting ranks: its files go once they are up.
        give_up = time.monotonic() + 60
        while any(file.exists() for file in left) and time.monotonic() < give_up:
            time.sleep(0.2)
        assert not [file for file in left if file.exists()], "memory that ranks shared is left"
        return answer[name]

    return made_by


@pytest.mark.parametrize("name", sample(["diffusion, tensor", "diffusion, pipeline"], []))
def test_ranks_of_the_multiprocessing_executor(made, name):
    """Tensors, and payloads of a request, which the first and the last rank use."""
    alone, ranks = made("diffusion"), made(name)
    assert isinstance(alone, dict), alone
    assert isinstance(ranks, dict), ranks
    assert ranks.keys() == alone.keys()
    for request_id, expected in alone.items():
        assert np.shape(ranks[request_id]) == np.shape(expected)
        difference = float(np.abs(np.subtract(ranks[request_id], expected)).max())
        assert difference <= (0.0 if "pipeline" in name else TOLERANCE)
