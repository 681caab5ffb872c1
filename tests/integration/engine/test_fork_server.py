"""The fork server's life cycle: it ends with its last user, and the next user gets a new one."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
from multiprocessing import forkserver
from pathlib import Path

import pytest

from omni_cli.config.loader import load_profile
from omni_cli.core.errors import OmniError
from omni_cli.core.machine import CpuQuota
from omni_cli.engine.process import fork_server
from omni_cli.engine.process.fork_server import ForkServer, start_process
from omni_cli.engine.process.preload import preloading

PRELOADED = ("omni_cli.backends.diffusers.stage", "omni_cli.backends.vllm.stage")


def forkserver_pid() -> int:
    return vars(forkserver._forkserver)["_forkserver_pid"]


def answer(connection) -> None:
    connection.send((os.getppid(), [name for name in sys.modules if name in PRELOADED]))


def seen_by_a_new_process(context) -> tuple[int, list[str]]:
    """Return the id of its parent, and which of `PRELOADED` it has."""
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=answer, args=(theirs,))
    process.start()
    theirs.close()
    seen = ours.recv()
    process.join()
    return seen


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_stopped_server_is_replaced_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    others = set(ForkServer._users)
    first = ForkServer({"diffusers"})
    pid, imported = seen_by_a_new_process(first.start())
    assert "omni_cli.backends.diffusers.stage" in imported
    assert pid == forkserver_pid()
    second = ForkServer({"diffusers"})
    second.start()
    first.stop()
    assert is_running(pid), "it has another user"
    second.stop()
    second.stop()
    assert bool(others) == is_running(pid)

    third = ForkServer({"diffusers"})
    replaced, _ = seen_by_a_new_process(third.start())
    assert (replaced == pid) == bool(others)
    assert not any(tmp_path.iterdir()), "a command that is killed now would leave it"
    third.stop()


def test_an_engine_has_the_imports_that_its_command_began() -> None:
    config = load_profile("tiny-image")
    ForkServer(config.backends).start_spare()
    pid = forkserver_pid()
    server = ForkServer(config.backends)
    parent, _ = seen_by_a_new_process(server.start())
    assert parent == pid
    server.stop()
    ForkServer.end_spare()


STOPPED = """
import asyncio
import os
import signal
import sys
import threading
from multiprocessing import forkserver
from pathlib import Path

from omni_cli.config.loader import load_profile
from omni_cli.engine import omni_llm
from omni_cli.engine.process import fork_server, stage_client

waits, start_process = threading.Event(), fork_server.start_process
omni_llm.check_start = lambda config: Path(sys.argv[1]) if sys.argv[1:] else None


def start(process):
    waits.set()
    start_process(process)


fork_server.start_process = stage_client.start_process = start


async def stop(config):
    starting = asyncio.create_task(omni_llm.OmniLLM(config).start())
    await asyncio.to_thread(waits.wait)
    starting.cancel()
    return not (await asyncio.wait([starting], timeout=30))[1]


config = load_profile("tiny-omni")
fork_server.ForkServer(config.backends).start_spare()
pid = forkserver._forkserver._forkserver_pid
os.kill(pid, signal.SIGSTOP)  # the imports never end
watch = threading.Timer(60, os.kill, (pid, signal.SIGKILL))
watch.daemon = True
watch.start()
print(asyncio.run(stop(config)))
"""


@pytest.mark.parametrize("is_built", [True, False])
def test_an_engine_that_is_stopped_ends_the_imports_that_its_command_began(is_built: bool, tiny_omni_path: Path):
    """It waits for them, to start a stage or to build the checkpoint."""
    arguments = [str(tiny_omni_path)] if is_built else []
    made = subprocess.run([sys.executable, "-c", STOPPED, *arguments], capture_output=True, text=True)
    assert made.stdout == "True\n", made.stderr


SPARE = """
from multiprocessing import forkserver
from omni_cli.engine.process.fork_server import ForkServer

ForkServer({"vllm"}).start_spare()
print(forkserver._forkserver._forkserver_pid)
"""


def test_imports_that_no_engine_has_used_end_before_their_command() -> None:
    made = subprocess.run([sys.executable, "-c", SPARE], stdout=subprocess.PIPE, text=True, check=True)
    assert not is_running(int(made.stdout))


def test_a_server_that_was_killed_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """By `start`, and by multiprocessing itself."""
    if ForkServer._users:
        pytest.skip("other tests use the server")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    server = ForkServer(())
    context = server.start()
    pid, _ = seen_by_a_new_process(context)
    kill(pid)
    second, _ = seen_by_a_new_process(server.start())
    kill(second)
    third, _ = seen_by_a_new_process(context)
    assert len({pid, second, third}) == 3
    server.stop()
    server.stop()
    assert not is_running(third)


def test_a_server_that_is_killed_during_its_imports_is_an_error() -> None:
    if ForkServer._users:
        pytest.skip("other tests use the server")
    server = ForkServer({"diffusers"})
    context = server.start()
    killer = threading.Timer(0.5, os.kill, (forkserver_pid(), signal.SIGKILL))
    killer.start()
    with pytest.raises(OmniError, match="the imports for all stages ended unexpectedly"):
        start_process(context.Process(target=os.getpid))
    killer.join()
    server.stop()


def test_a_package_that_does_not_load_is_left_to_the_stage(capsys: pytest.CaptureFixture[str]):
    with preloading():
        importlib.import_module("vllm_that_is_not_installed")
    with preloading():
        raise ValueError("of another package")
    assert capsys.readouterr().err.splitlines()[-1] == "preload: ValueError: of another package"


FAILING = """
import os, sys

sys.modules["omni_cli.backends.vllm.text_stage"] = None
ours, theirs = os.pipe()
os.close(ours)
os.dup2(theirs, 2)
import omni_cli.engine.process.preload_vllm
import pydantic

print("opentelemetry" in sys.modules, pydantic.BaseModel.model_config)
"""


def test_imports_that_fail_leave_no_trace_and_need_no_reader_of_their_output() -> None:
    made = subprocess.run([sys.executable, "-c", FAILING], capture_output=True, text=True)
    assert made.stdout.split(maxsplit=1) == ["False", "{}\n"]


LOOKS_LIKE_CUDA = """
import sys

from omni_cli.core.compat.libraries import prepare_libraries

prepare_libraries()

import pynvml
import torch


def initialise():
    raise RuntimeError("CUDA was initialised")


torch.cuda.is_available, torch.cuda.device_count, torch.version.cuda = lambda: True, lambda: 1, "13.0"
torch.cuda._lazy_init, torch.cuda._get_pynvml_handler = initialise, lambda index: index
torch._C._cuda_getCurrentRawStream = lambda device: 0
pynvml.nvmlDeviceGetCudaComputeCapability = lambda handle: (9, 0)

from omni_cli.engine.process.preload import preloading

with preloading():
    import diffusers.pipelines.pipeline_utils
    import transformers.modeling_utils
assert "torchao" in sys.modules, "nothing asked for the device"
"""


def test_imports_do_not_initialise_cuda_where_torchao_asks_for_the_device():
    """On a CPU, with a torch that looks as if there were a device; `tests/gpu` has a real one."""
    made = subprocess.run([sys.executable, "-c", LOOKS_LIKE_CUDA], capture_output=True, text=True)
    assert made.returncode == 0 and "initialised" not in made.stderr, made.stderr


def use_networkx(connection) -> None:
    """Send what is imported of `_RARELY_USED`, and a graph as torch makes it."""
    preload = importlib.import_module("omni_cli.engine.process.preload_vllm")
    imported = [name for name in preload._RARELY_USED if name in sys.modules]
    provider = importlib.import_module("torch._functorch._activation_checkpointing.graph_info_provider")
    connection.send((imported, provider.nx.DiGraph([(1, 2)]).number_of_edges(), "networkx" in sys.modules))


def test_a_stage_on_vllm_has_what_its_imports_leave_out_once_it_uses_it() -> None:
    server = ForkServer({"vllm"})
    ours, theirs = (context := server.start()).Pipe(duplex=False)
    process = context.Process(target=use_networkx, args=(theirs,))
    process.start()
    theirs.close()
    assert ours.recv() == ([], 1, True)
    process.join()
    server.stop()


KEY_OF_CUDA = """
import os

from omni_cli.core.compat.libraries import prepare_libraries

prepare_libraries()

import torch

torch.version.cuda = "13.0"
import omni_cli.engine.process.preload_vllm
from torch._inductor import codecache

usual = codecache.build_code_hash
codecache.build_code_hash = lambda *_: print("computed again")
key = codecache.torch_key()
codecache.build_code_hash = usual
codecache.torch_key.clear()
print(key == codecache.torch_key())
"""


def test_a_device_has_torchs_own_key_of_its_sources_once_the_imports_are_done() -> None:
    made = subprocess.run([sys.executable, "-c", KEY_OF_CUDA], capture_output=True, text=True)
    assert made.stdout.splitlines()[-1] == "True" and "computed again" not in made.stdout, made.stderr


@pytest.mark.parametrize(("asked", "threads"), [(None, "1"), ("2", "2")])
def test_stages_have_as_many_threads_as_a_containers_quota_has_cores(monkeypatch, asked, threads):
    monkeypatch.setenv("OMP_NUM_THREADS", asked or "")
    if asked is None:
        monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.setattr(fork_server, "read_cpu_quota", lambda: CpuQuota(1.5, Path("/")))
    monkeypatch.setattr(fork_server, "count_usable_cores", lambda: 1)
    server = ForkServer({"diffusers"})
    server.start()
    server.stop()
    assert os.environ["OMP_NUM_THREADS"] == threads, "what stages inherit"
