"""The installer that `make` runs: its decisions before it calls pip."""

import importlib.util
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "install.py"


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setenv("no_proxy", "*")  # the servers below are on this machine
    spec = importlib.util.spec_from_file_location("omni_install", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def not_found_server() -> Iterator[str]:
    """An HTTP server that answers 404 to everything, as an index does for a package that it lacks."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(404)

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_an_index_that_responds_is_used(install: ModuleType, not_found_server: str) -> None:
    assert install.answers(not_found_server)


def test_an_index_that_refuses_is_not_used(install: ModuleType) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        assert not install.answers(f"http://127.0.0.1:{unused.getsockname()[1]}")


def test_an_index_that_never_answers_costs_no_more_than_the_limit(
    install: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(install, "INDEX_TIMEOUT_S", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        started = time.monotonic()
        assert not install.answers(f"http://127.0.0.1:{silent.getsockname()[1]}")
        assert time.monotonic() - started < 5


def test_a_machine_without_nvidia_driver_gets_the_cpu_build(
    install: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert install.default_extra() == "cpu"


@pytest.mark.parametrize(
    ("script", "extra"),
    [
        ("echo 'GPU 0: NVIDIA H200 (UUID: GPU-1)'", "cuda"),
        ("echo 'No devices were found'", "cpu"),
        ("echo 'GPU 0'; exit 9", "cpu"),
    ],
)
def test_the_driver_decides(
    script: str, extra: str, install: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\n{script}\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert install.default_extra() == extra


def test_an_installed_environment_is_left_alone(install: ModuleType, tmp_path: Path) -> None:
    for group in ("cpu", "dev"):
        (tmp_path / f".installed-{group}-{install.fingerprint('cpu')}").touch()
    before = sorted(tmp_path.iterdir())
    install.install(tmp_path, "cpu", dev=True, torch_index="")
    assert sorted(tmp_path.iterdir()) == before


def test_the_installation_depends_on_pyproject_and_the_lock(
    install: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    here = install.fingerprint("cpu")
    assert install.fingerprint("cpu") == here
    monkeypatch.setattr(install, "ROOT", tmp_path)
    monkeypatch.setattr(install, "LOCKS", tmp_path)
    (tmp_path / "cpu.txt").write_text("torch==1\n")
    (tmp_path / "pyproject.toml").write_text("[project]\n")
    first = install.fingerprint("cpu")
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    second = install.fingerprint("cpu")
    (tmp_path / "cpu.txt").write_text("torch==2\n")
    assert len({here, first, second, install.fingerprint("cpu")}) == 4


def test_everything_is_installed_in_its_locked_version(
    install: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    calls: list[tuple[str, ...]] = []
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to(sys.executable)
    monkeypatch.setattr(install.Pip, "run", lambda _, verb, *words, hint: calls.append((verb, *words)))
    install.install(tmp_path, "cuda", dev=True, torch_index="")
    assert len(calls) == 2
    for words in calls:
        assert words[words.index("--constraint") + 1] == str(SCRIPT.parents[1] / "requirements" / "cuda.txt")


@pytest.mark.parametrize("package", ["torch", "torchvision"])
def test_one_sentence_where_no_source_has_a_cpu_build(
    install: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, package: str
) -> None:
    wanted = f"{package}=={install.pinned(package)}+cpu"

    def run(*_words: str, hint: str) -> None:
        raise install.InstallError(f"failed\n  | ERROR: No matching distribution found for {wanted}\n  | ...", hint)

    monkeypatch.setattr(install.Pip, "run", run)
    with pytest.raises(install.InstallError) as failure:
        install.install_cpu_torch(install.Pip(tmp_path), "")
    assert str(failure.value) == f"no source of pip has {wanted}; nothing is installed"
    assert "TORCH_INDEX=URL" in failure.value.hint


@pytest.mark.slow
def test_a_failing_pip_shows_the_end_of_its_output(install: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to(sys.executable)
    pip = install.Pip(tmp_path)
    with pytest.raises(install.InstallError) as failure:
        pip.install("--no-index", "no-such-package-anywhere", hint="do this")
    assert "no-such-package-anywhere" in str(failure.value)
    assert failure.value.hint == "do this"
    assert "no-such-package-anywhere" in pip.log.read_text()


def test_the_lines_of_pip_tell_how_far_it_is(install: ModuleType) -> None:
    progress = install.Progress()
    for line in (
        "Collecting torch==2.13.0+cpu",
        "Downloading torch-2.13.0%2Bcpu-cp311-cp311-manylinux_2_28_x86_64.whl.metadata (29 kB)",
        "Downloading https://host/whl/torch-2.13.0%2Bcpu-cp311-cp311-manylinux_2_28_x86_64.whl (190.2 MB)",
        "Using cached numpy-2.3.1-cp311-cp311-manylinux_2_28_x86_64.whl (16.9 MB)",
    ):
        progress.read(line)
    assert progress.text() == "  2 packages, 207 MB so far: numpy (16.9 MB)"
    progress.read("Installing collected packages: mpmath, sympy, torch")
    assert progress.text() == "  2 packages, 207 MB so far: unpacking 3 packages"
    progress.end()


def test_every_development_tool_is_named(
    install: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to(sys.executable)
    monkeypatch.setattr(install.Pip, "run", lambda *_, **__: None)
    install.install(tmp_path, "cuda", dev=True, torch_index="")
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("Installing the development")]
    named = line.partition(": ")[2].removesuffix(" ...").split(", ")
    assert {"pytest", "ruff", "mypy", "import-linter", "ray"} <= set(named)
    assert all(name.replace("-", "").replace("_", "").replace(".", "").isalnum() for name in named)


class _Installed:
    """A Pip with these versions, and this interpreter."""

    def __init__(self, python: str, **versions: str) -> None:
        self.python, self.version = python, versions.get


@pytest.mark.parametrize(
    ("torch", "torchvision", "is_fixed"),
    [("2.13.0+cpu", "0.28.0", True), ("2.13.0+cpu", "0.28.0+cpu", False), ("2.13.0", "0.28.0", False)],
)
def test_a_cuda_build_of_torchvision_beside_a_cpu_torch_is_fixed(
    install: ModuleType, tmp_path: Path, torch: str, torchvision: str, is_fixed: bool
) -> None:
    folder = tmp_path / "site"
    folder.mkdir()
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\necho {folder}\n")
    python.chmod(0o755)
    install.fix_torchvision(_Installed(str(python), torch=torch, torchvision=torchvision))
    assert [file.name for file in folder.iterdir()] == ([install.FIX_FILE] if is_fixed else [])


def test_the_line_that_fixes_it_runs_before_torchvision_is_found(install: ModuleType) -> None:
    """As Python runs it at its start; harmless where omni-cli is gone."""
    assert len(install.FIX_LINE.splitlines()) == 1
    program = (
        f"{install.FIX_LINE}from omni_cli.core.compat import torchvision as here\n"
        "assert here.has_fixed_imports()\n"
        "here.ensure_torchvision_importable = lambda: print('fixed')\n"
        "import importlib.util\nimportlib.util.find_spec('torchvision'), importlib.util.find_spec('torchvision')\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ended.stdout == "fixed\n"
    gone = f"import sys; sys.modules['omni_cli'] = None\n{install.FIX_LINE}print('started')"
    assert subprocess.run([sys.executable, "-c", gone], capture_output=True, text=True).stdout == "started\n"
