"""The fork server's life cycle: it ends with its last user, and the next user gets a new one."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from multiprocessing import forkserver
from pathlib import Path
from types import SimpleNamespace

import pytest

from omni_cli.config.loader import load_profile
from omni_cli.engine.process.fork_server import ForkServer
from omni_cli.engine.process.slow_imports import slow_imports


def answer(connection) -> None:
    connection.send(os.getppid())


def parent_of_a_new_process(context) -> int:
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=answer, args=(theirs,))
    process.start()
    theirs.close()
    parent = ours.recv()
    process.join()
    return parent


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_stopped_server_is_replaced_at_once():
    others = set(ForkServer._users)
    first = ForkServer(load_profile("tiny-image"))
    pid = parent_of_a_new_process(first.start())
    assert pid == forkserver._forkserver._forkserver_pid
    second = ForkServer(load_profile("tiny-image"))
    second.start()
    first.stop()
    assert is_running(pid), "it has another user"
    second.stop()
    second.stop()
    assert bool(others) == is_running(pid)

    third = ForkServer(load_profile("tiny-image"))
    replaced = parent_of_a_new_process(third.start())
    assert (replaced == pid) == bool(others)
    third.stop()


def test_a_module_that_is_not_there_is_not_ignored():
    with pytest.raises(ValueError, match=r"no module omni_cli\.engine\.process\.preload_diffuser "):
        ForkServer(SimpleNamespace(backends=["diffuser"]))
    with pytest.raises(RuntimeError, match=r"preload: No module named 'omni_cli\.engine\.misspelt'"), slow_imports():
        importlib.import_module("omni_cli.engine.misspelt")


def test_a_package_that_does_not_load_is_left_to_the_stage(capsys: pytest.CaptureFixture[str]):
    with slow_imports():
        importlib.import_module("vllm_that_is_not_installed")
    with slow_imports():
        raise ValueError("of another package")
    assert capsys.readouterr().err.splitlines()[-1] == "preload: ValueError: of another package"


BROKEN_FAMILY = """
import os
from omni_cli import families
from omni_cli.config.loader import load_profile
from omni_cli.engine.process import fork_server

def answer(connection):
    connection.send(fork_server.FAMILY_MODULES in os.environ)

if __name__ == "__main__":
    family = families.Family("broken", "Broken", (families.StageRole("s", "ar", "vllm", "broken_family:Stage"),))
    fork_server.family_of_stages = lambda model, stages: family
    server = fork_server.ForkServer(load_profile("tiny-image"), verbose=True)
    context = server.start()
    ours, theirs = context.Pipe(duplex=False)
    context.Process(target=answer, args=(theirs,)).start()
    print(ours.recv(), fork_server.FAMILY_MODULES in os.environ)
    server.stop()
"""


def test_a_family_that_cannot_be_imported_does_not_end_the_server(tmp_path: Path) -> None:
    (tmp_path / "broken_family.py").write_text("raise ValueError('of another version')\n")
    script = tmp_path / "script.py"
    script.write_text(BROKEN_FAMILY)
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    ended = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=120, env=environment)
    assert (ended.returncode, ended.stdout) == (0, "False False\n"), ended.stderr
    assert "preload: ValueError: of another version" in ended.stderr


LOOKS_LIKE_CUDA = """
import sys

from omni_cli.compat.libraries import prepare_libraries

prepare_libraries()

import pynvml
import torch


def initialise():
    raise RuntimeError("CUDA was initialised")


torch.cuda.is_available, torch.cuda.device_count, torch.version.cuda = lambda: True, lambda: 1, "13.0"
torch.cuda._lazy_init, torch.cuda._get_pynvml_handler = initialise, lambda index: index
torch._C._cuda_getCurrentRawStream = lambda device: 0
pynvml.nvmlDeviceGetCudaComputeCapability = lambda handle: (9, 0)

from omni_cli.engine.process.slow_imports import slow_imports

with slow_imports():
    import diffusers.pipelines.pipeline_utils
    import transformers.modeling_utils
assert "torchao" in sys.modules, "nothing asked for the device"
"""


def test_imports_do_not_initialise_cuda_where_torchao_asks_for_the_device():
    """On a CPU, with a torch that looks as if there were a device; `tests/gpu` has a real one."""
    made = subprocess.run([sys.executable, "-c", LOOKS_LIKE_CUDA], capture_output=True, text=True)
    assert made.returncode == 0 and "initialised" not in made.stderr, made.stderr
