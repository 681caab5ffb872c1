"""Memory that a profile takes on the host and on devices: weights, KV caches and a process per stage.

Activations come on top: they depend on the requests.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from omni_cli.checkpoints.derive import ITEMSIZES
from omni_cli.checkpoints.stage_weights import Parts
from omni_cli.config.pipeline_keys import DENOISERS
from omni_cli.config.schema import ARStageConfig, DiffusionStageConfig, EngineConfig, StageConfig
from omni_cli.doctor.machine import Gpu, HostMemory

# A process with torch and its libraries, on the host; a CUDA context takes about as much on its device.
_PROCESS_BYTES = 600 << 20
# vLLM's own `gpu_memory_utilization`.
_DEFAULT_SHARE = 0.92
_BITS_PER_WEIGHT = {
    "int8_weight_only": 8, "int8_dynamic": 8, "float8_weight_only": 8, "float8_dynamic": 8, "bitsandbytes_8bit": 8,
    "bitsandbytes_nf4": 4,
}  # fmt: skip


@dataclass
class MemoryUse:
    """Memory of the host, or of a device by its number: bytes in total, free, and needed by a profile at least."""

    name: str
    total_bytes: int
    free_bytes: int
    gpu: int | None = None
    needed_bytes: int = 0

    @property
    def sizes(self) -> dict[str, int | None]:
        """The numbers, for a document; `gpu` is None for the host."""
        sizes = {"total_bytes": self.total_bytes, "free_bytes": self.free_bytes, "needed_bytes": self.needed_bytes}
        return {"gpu": self.gpu, **sizes}

    @property
    def lack(self) -> str | None:
        """The memory that the profile lacks here; None if it fits."""
        if self.needed_bytes <= self.free_bytes:
            return None
        has = f"{self.name} has {gib(self.total_bytes)}"
        free = f", {gib(self.free_bytes)} of it free" if self.needed_bytes <= self.total_bytes else ""
        return f"at least {gib(self.needed_bytes)} of memory ({has}{free})"


@dataclass(frozen=True)
class Devices:
    """CUDA devices: those that torch sees, in its order, and all that the driver has."""

    visible: tuple[Gpu, ...]
    all: tuple[Gpu, ...]

    def of_stage(self, stage: StageConfig) -> Iterator[Gpu | str]:
        """Yield the device of each rank, or what is missing in its place; nothing for a stage on the CPU."""
        if not self.visible or stage.devices == "cpu":
            return
        if stage.devices is None:
            yield from self.visible[: stage.num_ranks]
            if len(self.visible) < stage.num_ranks:
                yield f"{stage.num_ranks} CUDA devices for stage `{stage.name}` ({len(self.visible)} visible)"
            return
        for name in stage.devices.split(","):
            yield self._named(name, stage) or f"the device `{name}` of stage `{stage.name}`"

    def _named(self, name: str, stage: StageConfig) -> Gpu | None:
        number = name.removeprefix("cuda:")
        if stage.backend == "diffusers" and stage.num_ranks == 1:
            # Torch's number, which counts visible devices; other stages get a CUDA_VISIBLE_DEVICES of their own.
            return self.visible[int(number)] if number.isdigit() and int(number) < len(self.visible) else None
        devices = (gpu for gpu in (*self.all, *self.visible) if gpu.is_called(name))
        return next(devices, None)


def plan_memory(
    config: EngineConfig, weights: Mapping[str, Parts], host: HostMemory, devices: Devices
) -> tuple[tuple[MemoryUse, ...], list[str]]:
    """Return what the profile takes of the host and of each device that it uses, and what is missing for that.

    `weights` are the sizes of the parts that each stage loads, by the stage's name.
    """
    where = "this container" if host.limit_bytes else "this machine"
    memory = MemoryUse(where, host.limit_bytes or host.total_bytes, host.available_bytes)
    uses: dict[Gpu, MemoryUse] = {}
    missing, shares = [], []
    for stage in config.stages:
        parts = dict(_quantized(config, stage, weights[stage.name]))
        assigned = list(devices.of_stage(stage))
        missing += [item for item in assigned if isinstance(item, str)]
        gpus = [item for item in assigned if isinstance(item, Gpu)]
        for gpu in gpus:
            # A device whose memory the driver does not report shares the host's.
            name = f"GPU {gpu.index}"
            own = MemoryUse(name, gpu.total_bytes, gpu.free_bytes, gpu.index) if gpu.total_bytes else memory
            use = uses.setdefault(gpu, own)
            shares.append((use, _take(use, stage, parts, is_cuda=True)))
            memory.needed_bytes += _PROCESS_BYTES
        if isinstance(stage, DiffusionStageConfig) and stage.offload != "none" and gpus:
            memory.needed_bytes += sum(parts.values())
        for _ in range(stage.num_ranks if not assigned else 0):
            shares.append((memory, _take(memory, stage, parts, is_cuda=False)))
    used = tuple({id(use): use for use in (memory, *uses.values())}.values())
    missing += [use.lack for use in used if use.lack is not None]
    missing += [small for use, small in shares if small is not None and use.lack is None]
    return used, missing


def _take(use: MemoryUse, stage: StageConfig, parts: Parts, *, is_cuda: bool) -> str | None:
    """Add what one rank of a stage takes; return what is missing if its share is too small for its weights."""
    if isinstance(stage, DiffusionStageConfig) and stage.backend == "diffusers":
        use.needed_bytes += _PROCESS_BYTES + _on_device(stage, parts)
        return None
    weights = sum(parts.values()) // stage.num_ranks
    if isinstance(stage, ARStageConfig) and stage.kv_cache_memory_bytes is not None:
        use.needed_bytes += _PROCESS_BYTES + weights + stage.kv_cache_memory_bytes
        return None
    share = stage.gpu_memory_utilization or (_DEFAULT_SHARE if isinstance(stage, ARStageConfig) else None)
    if share is None or not (is_cuda or isinstance(stage, ARStageConfig)):
        use.needed_bytes += _PROCESS_BYTES + weights
        return None
    # vLLM refuses to start unless all of the share is free.
    reserved = int(use.total_bytes * share)
    use.needed_bytes += max(reserved, weights)
    if weights <= reserved:
        return None
    return (
        f"a larger gpu_memory_utilization of stage `{stage.name}` (its weights take {gib(weights)}, "
        f"its share of {use.name} is {gib(reserved)})"
    )


def _on_device(stage: DiffusionStageConfig, parts: Parts) -> int:
    """Return the weights of a pipeline that are on its device at once."""
    match stage.offload:
        case "none":
            return sum(parts.values())
        case "model":
            return max(parts.values(), default=0)
    # Groups and single layers are small beside whole models, and only those of the former can be excluded.
    return sum(size for name, size in parts.items() if name in (stage.exclude_modules or ()))


def _quantized(config: EngineConfig, stage: StageConfig, parts: Parts) -> Iterable[tuple[str, int]]:
    """Yield the sizes of a stage's parts with its denoisers quantized."""
    for name, size in parts.items():
        if not isinstance(stage, DiffusionStageConfig) or stage.quantization == "none" or name not in DENOISERS:
            yield name, size
        elif stage.quantization in _BITS_PER_WEIGHT:
            itemsize = ITEMSIZES[stage.torch_dtype.get(name, config.dtype)]
            yield name, size * _BITS_PER_WEIGHT[stage.quantization] // (8 * itemsize)
        else:
            file = Path(stage.quantization)
            yield name, file.stat().st_size if file.is_file() else size


def gib(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.1f} GiB"
