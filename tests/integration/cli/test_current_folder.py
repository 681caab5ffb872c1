"""No process of a command imports from the current folder: one full of files that note that they were run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest
from support import bench_records
from support.omni_process import ROOT, SHORT
from support.samples import sample

from omni_cli.records.record_file import save_record

pytestmark = pytest.mark.slow
TIMEOUT_S = 400

MODULE = "\n".join(
    (
        "import os, sys",
        "with open({ran!r}, 'a') as file:",
        "    print({name!r}, 'in', sys.orig_argv[:4], file=file)",
        "raise ImportError('a file of the current folder was run')",
    )
)
# As `pip` installs it: Python puts its folder first on the module path.
SCRIPT = "from omni_cli.__main__ import main\nif __name__ == '__main__':\n    main()\n"
IMAGE = ("-p", "tiny-image", "--num-inference-steps", "2", "-q")
ONE = ("--num-iters", "1", "--num-iters-warmup", "1")


class Hostile:
    """A folder to run commands in, and what ran."""

    def __init__(self, folder: Path) -> None:
        self.here, self.out, self._ran = folder / "here", folder / "out", folder / "ran.txt"
        self.here.mkdir()
        self.out.mkdir()
        self._script = folder / "bin" / "omni"
        self._script.parent.mkdir()
        self._script.write_text(SCRIPT)
        self._fill()
        unset = ("PYTHONSAFEPATH", "PYTHONPATH")
        self._environment = {name: value for name, value in os.environ.items() if name not in unset}
        # Nothing is built yet.
        self._environment |= {"XDG_CACHE_HOME": str(folder / "cache"), "PYTHONPATH": str(ROOT)}
        (folder / "requests.jsonl").write_text('{"prompt": "a cat"}\n')

    def _fill(self) -> None:
        # `python -m` itself imports from Python's library before any line of ours runs.
        others = {"sitecustomize", "usercustomize", "ray", "av", "numpy", "torch", "vllm", "diffusers"}
        for name in {*metadata.packages_distributions(), *others} - set(sys.stdlib_module_names) - {"omni_cli"}:
            if name.isidentifier():
                (self.here / f"{name}.py").write_text(MODULE.format(ran=str(self._ran), name=name))
        registered = self.here / "registered-1.0.dist-info"
        registered.mkdir()
        (registered / "METADATA").write_text("Name: registered\nVersion: 1.0\n")
        groups = ("omni_cli.models", "vllm.general_plugins", "vllm.platform_plugins")
        (registered / "entry_points.txt").write_text("".join(f"[{group}]\nx = registered:x\n" for group in groups))
        (self.here / "registered.py").write_text(MODULE.format(ran=str(self._ran), name="registered"))

    def start(self, *arguments: str | Path, as_module: bool = False) -> subprocess.Popen[str]:
        program = ("-m", "omni_cli") if as_module else (str(self._script),)
        return subprocess.Popen(
            [sys.executable, *program, *map(str, arguments)],
            cwd=self.here, env=self._environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def run(self, *arguments: str | Path, as_module: bool = False, codes: tuple[int, ...] = (0,)) -> str:
        """Run a command to its end and return its output; nothing here has run."""
        process = self.start(*arguments, as_module=as_module)
        try:
            out, err = process.communicate(timeout=TIMEOUT_S)
        finally:
            process.kill()
        self.check()
        assert process.returncode in codes, err
        return out

    def check(self) -> None:
        assert not self._ran.exists(), self._ran.read_text()


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hostile]:
    yield Hostile(tmp_path_factory.mktemp("hostile"))


def test_the_files_would_be_run(hostile: Hostile) -> None:
    ran = subprocess.run([sys.executable, "-c", "import torch"], cwd=hostile.here, capture_output=True, text=True)
    assert "a file of the current folder was run" in ran.stderr
    with pytest.raises(AssertionError, match="torch"):
        hostile.check()
    hostile._ran.unlink()


def test_generate(hostile: Hostile) -> None:
    hostile.run("generate", "hello", *SHORT, "--output-dir", hostile.out)
    hostile.run("generate", "a cat", *IMAGE, "--output-dir", hostile.out, as_module=True)


def test_a_server_and_its_load_test(hostile: Hostile) -> None:
    server = hostile.start("serve", "--port", "0", "--json", "-p", "tiny-image")
    try:
        url = json.loads(server.stdout.readline())["url"]
        load = ("--endpoint", "images", "--concurrency", "1", "--num-requests", "2", *ONE)
        hostile.run("loadtest", url, *load, codes=(0, 3))
    finally:
        server.send_signal(signal.SIGTERM)
        _, err = server.communicate(timeout=TIMEOUT_S)
    hostile.check()
    assert server.returncode == 0, err


def test_benchmarks_and_their_records(hostile: Hostile) -> None:
    # On a busy machine a measurement may be refused.
    hostile.run("bench", "-p", "tiny-image", "-q", "--vary", "env.A=1,2", *ONE, codes=(0, 3, 6))
    record, nightly = hostile.out / "record.json", hostile.out / "history"
    save_record(bench_records.record(*bench_records.pair()), record)
    hostile.run("compare", record, record, as_module=True, codes=(0, 3, 4))
    hostile.run("report", record, "-o", hostile.out / "report.html")
    hostile.run("history", "add", record, "--history", nightly)


ALWAYS = ("doctor", "profiles list", "models build tiny-image --output-dir OUT/model")
AT_NIGHT = (
    "profile -p tiny-image --num-iters 1",
    "tune -p tiny-image --search image.num_inference_steps=1,2 --time-budget 60 --output-dir OUT/tune",
    "bench -p tiny-image -q --against HEAD --num-iters 1 --num-iters-warmup 1",
)


@pytest.mark.parametrize("command", sample((*ALWAYS, *AT_NIGHT), ALWAYS))
def test_others(hostile: Hostile, command: str) -> None:
    for as_module in (False, True):
        out = str(hostile.out / str(as_module))
        hostile.run(*command.replace("OUT", out).split(), as_module=as_module, codes=(0, 1, 3))


def test_replicas_on_ray(hostile: Hostile) -> None:
    pytest.importorskip("ray")
    requests = hostile.here.parent / "requests.jsonl"
    hostile.run("generate", "--requests", requests, "--replicas", "1", *IMAGE, "--output-dir", hostile.out / "replicas")


RANKS = ("image.context_parallel.ulysses_degree=2", "image.context_parallel.ulysses_anything=true")


@pytest.mark.nightly
@pytest.mark.parametrize("settings", [RANKS, ("image.execution=compile",)])
def test_processes_that_a_stage_starts(hostile: Hostile, settings: tuple[str, ...]) -> None:
    words = [word for setting in settings for word in ("--set", setting)]
    hostile.run("generate", "a cat", *IMAGE, *words, "--output-dir", hostile.out)
