"""Processor, memory, disk and NVIDIA devices of this machine, as available to this process."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NVIDIA_SMI_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class Cpu:
    """`usable_cores` is the part of `cores` that the affinity mask and the container's quota, `quota_cores`, allow."""

    model: str
    architecture: str
    cores: int
    usable_cores: int
    instruction_sets: tuple[str, ...]
    quota_cores: float | None = None


@dataclass(frozen=True)
class CpuQuota:
    """Processor time per time, in cores, that the control group at `folder` allows all its processes together."""

    cores: float
    folder: Path


@dataclass(frozen=True)
class HostMemory:
    """`limit_bytes` is the container's limit, None without one; `available_bytes` respects it."""

    total_bytes: int
    available_bytes: int
    limit_bytes: int | None
    free_swap_bytes: int = 0


@dataclass(frozen=True)
class Gpu:
    """`index` is the driver's number; `uuid` is empty if the driver does not report it."""

    index: int
    name: str
    total_bytes: int
    free_bytes: int
    uuid: str = ""

    def is_called(self, name: str) -> bool:
        """True if `name`, as in CUDA_VISIBLE_DEVICES, means this device: its number or the beginning of its UUID."""
        return name == str(self.index) or (name.startswith("GPU-") and self.uuid.startswith(name))


@dataclass(frozen=True)
class Gpus:
    """`driver` is None if no driver was found; `error` is the message of its tool if that failed."""

    devices: tuple[Gpu, ...] = ()
    driver: str | None = None
    error: str | None = None


@dataclass(frozen=True)
class PlannedMemory:
    """Memory of one rank of a stage on its device, in bytes, as planned before it loads.

    `adapters_bytes` is that of LoRA adapters, 0 without them, and None if unknown.

    `share_bytes` is set for a stage that states a share of the device instead of sizes. `other_bytes` is an estimate:
    the process, activations and graphs. `is_planned` is True if the profile states no size of the KV cache.
    """

    name: str
    device: str
    weights_bytes: int
    kv_cache_bytes: int | None
    share_bytes: int | None
    other_bytes: int
    is_planned: bool
    adapters_bytes: int | None = 0


@dataclass(frozen=True)
class Folder:
    """`path` may not exist yet; the other fields describe where it would be created."""

    path: Path
    free_bytes: int
    writable: bool


def read_cpu(root: Path = Path("/")) -> Cpu:
    """`root` contains `proc` and `sys`."""
    quota = read_cpu_quota(root)
    model = ""
    flags: set[str] = set()
    for line in _lines(root / "proc/cpuinfo"):
        key, _, value = line.partition(":")
        if key.strip() == "model name" and not model:
            model = value.strip()
        elif key.strip() in ("flags", "Features") and not flags:
            flags = set(value.split())
    known = ("avx2", "avx512f", "avx512_bf16", "avx512_vnni", "amx_bf16", "asimd", "bf16")
    return Cpu(
        model=model or platform.processor() or "unknown",
        architecture=platform.machine(),
        cores=os.cpu_count() or 1,
        usable_cores=count_usable_cores(root),
        quota_cores=None if quota is None else quota.cores,
        instruction_sets=tuple(name for name in known if name in flags),
    )


def read_memory(root: Path = Path("/")) -> HostMemory:
    """Read total and free memory; inside a container, the smaller of the machine's and the container's."""
    fields = {}
    for line in _lines(root / "proc/meminfo"):
        key, _, value = line.partition(":")
        if value.strip().endswith("kB"):
            fields[key] = int(value.split()[0]) * 1024
    if not fields:
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return HostMemory(total_bytes=total, available_bytes=total, limit_bytes=None)
    total, available = fields["MemTotal"], fields["MemAvailable"]
    limit = None
    for folder in _control_groups(root, "memory"):
        allowed = _first_number(folder, "memory.max", "memory.limit_in_bytes")
        # Version 1 writes a number near 2**63 for "no limit".
        if allowed is None or allowed >= total:
            continue
        used = _first_number(folder, "memory.current", "memory.usage_in_bytes") or 0
        reclaimable = _stat(folder, "inactive_file", "total_inactive_file")
        limit = allowed if limit is None else min(limit, allowed)
        available = min(available, max(0, allowed - used + reclaimable))
    # A container's own limit of swap is not looked up.
    swap = fields.get("SwapFree", 0) if limit is None else 0
    return HostMemory(total_bytes=total, available_bytes=available, limit_bytes=limit, free_swap_bytes=swap)


def read_gpus() -> Gpus:
    """Query NVIDIA's devices through the driver's own tool; needs no torch."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return Gpus()
    query = "--query-gpu=index,name,memory.total,memory.free,driver_version,uuid"
    try:
        completed = subprocess.run(
            [tool, query, "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            timeout=NVIDIA_SMI_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        return Gpus(error=f"nvidia-smi did not answer within {NVIDIA_SMI_TIMEOUT_S:.0f} s")
    except OSError as error:
        return Gpus(error=f"nvidia-smi does not run: {error.strerror}")
    if completed.returncode:
        lines = (completed.stdout + completed.stderr).strip().splitlines()
        return Gpus(error=lines[0] if lines else f"nvidia-smi ended with status {completed.returncode}")
    return parse_nvidia_smi(completed.stdout)


def parse_nvidia_smi(text: str) -> Gpus:
    """Parse `index, name, memory.total [MiB], memory.free [MiB], driver_version, uuid`, one device per line.

    Devices whose memory the driver does not report (`[N/A]`: shared with the host) count as having none.
    """
    devices, driver = [], None
    for line in text.strip().splitlines():
        index, name, total, free, driver, uuid = (field.strip() for field in line.split(","))
        sizes = [int(size) << 20 if size.isdigit() else 0 for size in (total, free)]
        devices.append(Gpu(int(index), name, sizes[0], sizes[1], uuid))
    return Gpus(devices=tuple(devices), driver=driver)


def visible_devices(uuids: Sequence[str], variable: str | None) -> list[int]:
    """Return the indexes of the devices that `CUDA_VISIBLE_DEVICES` leaves; all if it is not set.

    It lists indexes or beginnings of UUIDs; CUDA ignores everything after the first unknown entry.
    """
    if variable is None:
        return list(range(len(uuids)))
    indices: list[int] = []
    for entry in map(str.strip, variable.split(",")):
        if entry.isdigit() and int(entry) < len(uuids):
            indices.append(int(entry))
            continue
        matching = [index for index, uuid in enumerate(uuids) if entry and uuid.startswith(entry)]
        if len(matching) != 1:
            break
        indices += matching
    return indices


def open_nvml(variables: Mapping[str, str] = os.environ) -> tuple[Any, list[tuple[int, Any]]]:
    """Return the library and the (index, handle) of each device that this process may use; none without a driver or its
    Python binding."""
    try:
        import pynvml
    except ImportError:
        return None, []
    try:
        pynvml.nvmlInit()
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        uuids = [str(pynvml.nvmlDeviceGetUUID(handle)) for handle in handles]
    except pynvml.NVMLError:
        return None, []
    shown = visible_devices(uuids, variables.get("CUDA_VISIBLE_DEVICES"))
    return pynvml, [(index, handles[index]) for index in shown]


def read_folder(path: Path) -> Folder:
    """Read free space and permission at `path`, or at its nearest existing parent."""
    existing = path
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    writable = existing.is_dir() and os.access(existing, os.W_OK | os.X_OK)
    return Folder(path=path, free_bytes=shutil.disk_usage(existing).free, writable=writable)


def count_usable_cores(root: Path = Path("/")) -> int:
    """Return how many threads can compute at once: by the affinity mask, and by the container's quota, rounded down."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = read_cpu_quota(root)
    return allowed if quota is None else max(1, min(allowed, int(quota.cores)))


def read_cpu_quota(root: Path = Path("/")) -> CpuQuota | None:
    """Return the least quota of this process's control group and its parents; None without one."""
    quotas = []
    for folder in _control_groups(root, "cpu"):
        limit, _, period = " ".join(_lines(folder / "cpu.max")).partition(" ")
        if not limit:
            limit, period = (str(_first_number(folder, f"cpu.cfs_{name}_us")) for name in ("quota", "period"))
        if limit.isdigit() and period.isdigit():  # else "max" in version 2, -1 in version 1
            quotas.append(CpuQuota(int(limit) / int(period), folder))
    return min(quotas, key=lambda quota: quota.cores, default=None)


def _control_groups(root: Path, controller: str) -> list[Path]:
    """Return the folders that may limit this process: its own control group and all parents, versions 1 and 2."""
    folders = []
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, group = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        top = root / "sys/fs/cgroup" / (controllers and controller)
        group_folder = top / group.lstrip("/")
        folders += [folder for folder in (group_folder, *group_folder.parents) if folder.is_relative_to(top)]
    return folders


def _lines(path: Path) -> list[str]:
    """Read the lines of a kernel file; empty if there is none."""
    try:
        return path.read_text(errors="replace").splitlines()
    except OSError:
        return []


def _first_number(folder: Path, *names: str) -> int | None:
    for name in names:
        lines = _lines(folder / name)
        if lines and lines[0].strip().lstrip("-").isdigit():
            return int(lines[0])
    return None


def _stat(folder: Path, *names: str) -> int:
    """Read a counter of `memory.stat`, because reclaimable page cache does not count as used."""
    counters = dict(line.split()[:2] for line in _lines(folder / "memory.stat") if len(line.split()) == 2)
    return next((int(counters[name]) for name in names if name in counters), 0)
