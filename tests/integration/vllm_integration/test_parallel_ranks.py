"""Several ranks give the results of one: thinker, talker and a diffusion, with vLLM's own executors.

`test_hidden_states.py` has the thinker on `mp`, `engine/test_scheduling.py` the talker on pipeline ranks.
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
MP, LAUNCHED = "mp", "external_launcher"
# Tensor ranks add their partial sums in another order than one rank. Rows have a scale of 1.
TOLERANCE = 2e-5


def case(kind: str, backend: str | None = None, tensor: int = 1, pipeline: int = 1) -> dict[str, Any]:
    ranks = {
        "distributed_executor_backend": backend,
        "tensor_parallel_size": tensor,
        "pipeline_parallel_size": pipeline,
    }
    return {"kind": kind, "engine": ranks if backend else {}}


CASES = {
    "thinker": case("thinker"),
    "thinker launched, tensor": case("thinker", LAUNCHED, tensor=2),
    "thinker launched, pipeline": case("thinker", LAUNCHED, pipeline=2),
    "talker": case("talker"),
    "talker launched, tensor": case("talker", LAUNCHED, tensor=2),
    "diffusion": case("diffusion"),
    "diffusion mp, tensor": case("diffusion", MP, tensor=2),
    "diffusion mp, pipeline": case("diffusion", MP, pipeline=2),
    "diffusion launched, pipeline": case("diffusion", LAUNCHED, pipeline=2),
}


@pytest.fixture(scope="module")
def made(tiny_omni_path: Path, tmp_path_factory: Any) -> Callable[[str], list[Any]]:
    """`made(case)` -> the results of each engine by request: `tokens`, and `made`, which is rows or a tensor."""

    @functools.cache
    def made_by(name: str) -> list[Any]:
        shared = set(Path("/dev/shm").glob("*cpushm*"))
        task = {"model": str(tiny_omni_path), "cases": {name: CASES[name]}}
        answer = answer_of("parallel_ranks", task, tmp_path_factory.mktemp("ranks"))
        left = set(Path("/dev/shm").glob("*cpushm*")) - shared
        # A test that runs beside this one may just be starting ranks: its files go once they are up.
        give_up = time.monotonic() + 60
        while any(file.exists() for file in left) and time.monotonic() < give_up:
            time.sleep(0.2)
        assert not [file for file in left if file.exists()], "memory that ranks shared is left"
        engines: list[Any] = answer[name]
        return engines

    return made_by


def difference(made: Callable[[str], list[Any]], name: str, rank: int) -> float:
    """Return the largest difference to a single rank's; tokens must be equal."""
    (alone,) = made(name.split()[0])
    ranks = made(name)
    assert isinstance(alone, dict), alone
    assert isinstance(ranks[rank], dict), ranks[rank]
    assert ranks[rank].keys() == alone.keys()
    largest = 0.0
    for request_id, expected in alone.items():
        result = ranks[rank][request_id]
        assert result["tokens"] == expected["tokens"]
        if expected["made"] is None:
            continue
        assert np.shape(result["made"]) == np.shape(expected["made"])
        largest = max(largest, float(np.abs(np.subtract(result["made"], expected["made"])).max()))
    return largest


@pytest.mark.parametrize("name", sample(["diffusion mp, tensor", "diffusion mp, pipeline"], []))
def test_ranks_of_the_multiprocessing_executor(made, name):
    """Tensors, and payloads of a request, which the first and the last rank use."""
    assert len(made(name)) == 1
    assert difference(made, name, rank=0) <= (0.0 if "pipeline" in name else TOLERANCE)


@pytest.mark.parametrize(
    "name", sample(["thinker launched, tensor", "talker launched, tensor"], ["talker launched, tensor"])
)
def test_each_rank_that_was_launched_has_all_outputs(made, name):
    assert len(made(name)) == 2
    assert max(difference(made, name, rank) for rank in range(2)) <= TOLERANCE


def test_tokens_are_handed_round_the_pipeline_and_rows_come_from_the_last_rank(made):
    first, last = made("thinker launched, pipeline")
    (alone,) = made("thinker")
    assert difference(made, "thinker launched, pipeline", rank=1) == 0.0
    for request_id, result in first.items():
        assert result == {"tokens": alone[request_id]["tokens"], "made": None}
        assert last[request_id]["tokens"] == result["tokens"]


def test_tensors_are_handed_round_the_pipeline(made):
    """Each rank's engine waits for the tensors, which travel opposite to the intermediate tensors before them."""
    assert len(made("diffusion launched, pipeline")) == 2
    assert [difference(made, "diffusion launched, pipeline", rank) for rank in range(2)] == [0.0, 0.0]
