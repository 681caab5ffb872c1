"""Engines that are shared by the tests: starting one costs seconds, so each profile is started once a session."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Coroutine, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from support.answers import forked
from support.chromium import Chromium, find_chromium
from support.omni_process import ROOT, Ended, run_omni
from support.omni_requests import BRIEF_SPEECH

from omni_cli.config.loader import load_profile
from omni_cli.config.schema import EngineConfig
from omni_cli.core.compat.torchvision import ensure_torchvision_importable
from omni_cli.engine.omni_llm import OmniLLM
from omni_cli.requests.events import Event
from omni_cli.requests.outputs import GenerateRequest, RequestResult

# Before anything in this process imports torchvision, which transformers and diffusers do.
ensure_torchvision_importable()

TIMEOUT_S = 180
# Long tests, and the files that share a server, begin first: a worker would be alone with them at the end.
LONGEST = (
    "/serve/",
    "/replicas/",
    "/docs/",
    "/profiling/",
    "/report/",
    "test_qwen3_reference",
    "test_streaming",
    "test_parallel_ranks",
    "test_hidden_states",
    "test_bench_command",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: not any(part in str(item.path) for part in LONGEST))


class RunningEngine:
    """An `OmniLLM` on an event loop in a separate thread, for tests that are not asynchronous."""

    def __init__(self, config: EngineConfig) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.config = config
        self.llm = OmniLLM(config)
        self._call(self.llm.start())

    def run(self, request: GenerateRequest) -> RequestResult:
        return self.run_all([request])[0]

    def run_all(self, requests: list[GenerateRequest]) -> list[Any]:
        """Run all requests concurrently; results in the given order."""
        return [events[-1] for events in self.events(requests)]

    def events(self, requests: list[GenerateRequest]) -> list[list[Event]]:
        async def collect(request: GenerateRequest) -> list[Event]:
            return [event async for event in self.llm.generate(request)]

        async def collect_all() -> list[list[Event]]:
            return list(await asyncio.gather(*(collect(request) for request in requests)))

        return self._call(collect_all())

    def execution_counters(self, stage: str) -> Mapping[str, float]:
        """Return a stage's counters as of its last finished request."""
        return next(info.execution_counters for info in self.llm.stages if info.name == stage)

    def close(self) -> None:
        self._call(self.llm.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _call(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(TIMEOUT_S)


def _engines() -> Iterator[Any]:
    """`start(profile, *overrides, model=None)` -> a `RunningEngine` that is closed at the end."""
    engines: list[RunningEngine] = []
    forked()

    def start(profile: str, *overrides: str, model: str | None = None) -> RunningEngine:
        engines.append(RunningEngine(load_profile(profile, list(overrides), model, False, None)))
        return engines[-1]

    yield start
    for engine in engines:
        engine.close()


# A stage holds half a gigabyte: what starts an engine is as short-lived as what uses it.
start_session_engine = pytest.fixture(_engines, scope="session", name="start_session_engine")
start_engine = pytest.fixture(_engines, scope="module", name="start_engine")
start_brief_engine = pytest.fixture(_engines, name="start_brief_engine")


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """For models so small that a second thread would wait for the first and for neighbouring engines."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def num_threads(request: pytest.FixtureRequest) -> Iterator[int]:
    """The number of torch's threads during a test, given by its parameters."""
    import torch
    from torch._C import set_num_threads  # `torch.set_num_threads` has no effect once vLLM has loaded a model

    before = torch.get_num_threads()
    set_num_threads(request.param)
    yield request.param
    set_num_threads(before)


@pytest.fixture(scope="session")
def planted_profile(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Ended]:
    """The folder and the result of `omni profile` on tiny-image, with a busy wait, held memory and a copy planted."""
    folder = tmp_path_factory.mktemp("planted")
    environment = {"PLANTED_COSTS": "wait=denoising step 3;hold=vae decode;copy=text encode"}
    # For steps that are slow every time, enough that noise does not hit another one in all of them.
    arguments = ("profile", "-p", "tiny-image", "--num-iters", "5")
    ended = run_omni(folder, *arguments, planted="planted_costs", environment=environment)
    ended.check_clean()
    assert ended.code == 0, ended.err
    return folder, ended


@pytest.fixture(scope="session")
def tiny_omni_path() -> Path:
    """The built-in checkpoint, built if it is not in the cache yet."""
    from omni_cli.checkpoints.resolve import resolve_model

    return Path(resolve_model("builtin:tiny-omni"))


@pytest.fixture(scope="session")
def tiny_omni(start_session_engine: Any) -> RunningEngine:
    return start_session_engine("tiny-omni", *BRIEF_SPEECH)


@pytest.fixture(scope="session")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real model, from packages of PyPI."""
    return converted("smollm2.py", tmp_path_factory.mktemp("smollm2") / "SmolLM2-135M-Instruct")


@pytest.fixture(scope="session")
def whisper_tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real model that hears English, from a package of PyPI."""
    return converted("whisper_tiny.py", tmp_path_factory.mktemp("whisper") / "whisper-tiny.en")


def converted(script: str, folder: Path) -> Path:
    """Return the folder that a script has written a model to; skip the test if its packages cannot be installed."""
    command = [sys.executable, str(ROOT / "scripts" / script), str(folder)]
    made = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    if made.returncode == 2:
        pytest.skip(f"the packages with the weights cannot be installed: {made.stderr.strip().splitlines()[0]}")
    assert made.returncode == 0, made.stderr[-2000:]
    return folder


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    program = find_chromium()
    if program is None:
        pytest.skip("there is no Chromium; `make browser` installs it on Debian and Ubuntu")
    chromium = Chromium(program, tmp_path_factory.mktemp("chromium"))
    yield chromium
    chromium.close()
