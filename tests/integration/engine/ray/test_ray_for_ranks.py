"""The Ray of a stage's ranks, without the ranks: vLLM has none on Ray where there is no CUDA device."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

# As in a stage's process, where vLLM has imported Ray already.
_SCRIPT = """
import json, signal, sys
from omni_cli.core.compat.libraries import prepare_libraries
prepare_libraries()
import omni_cli.backends.vllm.stage
assert "ray" in sys.modules
import ray
from omni_cli.config.schema import ARStageConfig
from omni_cli.engine.ray_cluster import ray_for_ranks

before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
with ray_for_ranks(ARStageConfig.create("thinker")):
    assert not ray.is_initialized()
with ray_for_ranks(ARStageConfig.create("thinker", distributed_executor_backend="ray")):
    assert {number: signal.getsignal(number) for number in before} == before
    import multiprocessing.shared_memory

    @ray.remote
    class Rank:
        def __init__(self):
            self.memory = multiprocessing.shared_memory.SharedMemory(create=True, size=4096)

        def name(self):
            return self.memory.name

    rank = Rank.remote()
    name = ray.get(rank.name.remote())
    folder = ray._private.worker._global_node.get_session_dir_path()
    address = ray.get_runtime_context().gcs_address
    print(json.dumps({"shared": name, "folder": folder, "address": address}), flush=True)
    sys.stdin.readline()
    ray.kill(rank)
assert not ray.is_initialized()
"""
_STRANGER = "import ray, sys; ray.init(address=sys.argv[1], log_to_driver=False); print(ray.get(ray.put(1)))"


@pytest.mark.nightly
def test_it_is_closed_to_others_leaves_signals_alone_and_leaves_nothing() -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", _SCRIPT], env=environment, **pipes) as ranks:
        # vLLM's own messages are there, too.
        line = next((line for line in ranks.stdout if line.startswith("{")), "")
        assert line, ranks.stderr.read()
        there = json.loads(line)
        shared, folder = Path("/dev/shm", there["shared"]), Path(there["folder"])
        assert shared.exists() and folder.is_dir()
        stranger = subprocess.run(
            [sys.executable, "-c", _STRANGER, there["address"]], env=environment, capture_output=True, text=True
        )
        assert stranger.returncode != 0 and "token" in stranger.stderr.lower()
        _, errors = ranks.communicate("\n")
        assert ranks.returncode == 0, errors
    assert not shared.exists() and not folder.exists()
