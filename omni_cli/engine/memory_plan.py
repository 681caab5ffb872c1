"""The memory of a chain, known before anything loads: weights, processes, KV caches and what runs beside them.

A stage whose profile states no size of its KV cache gets one here: what is left of its device's memory, shared between
such stages by what `max_num_seqs` requests of `max_model_len` tokens would take. Weights are those of the files;
activations and graphs depend on the requests, and are estimated.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from omni_cli.checkpoints.derive import ITEMSIZES
from omni_cli.checkpoints.hub import hub_cache_folder
from omni_cli.checkpoints.stage_weights import (
    NUM_BRANCHES,
    Decoders,
    Parts,
    Weights,
    find_weights,
    stage_decoders,
    stage_weights,
)
from omni_cli.config.schema import ARStageConfig, DiffusionStageConfig, EngineConfig, StageConfig
from omni_cli.config.stage_keys import DENOISERS, Quantization
from omni_cli.core.errors import OmniError, StageError
from omni_cli.core.machine import Gpu, HostMemory, PlannedMemory, read_memory
from omni_cli.engine.devices import Devices, read_devices

# A process with torch and its libraries, on the host; a CUDA context takes about as much on its device.
_PROCESS_BYTES = 600 << 20
# Share of the memory that is planned: vLLM's own of a device, less of a host, on which other programs run.
_DEVICE_SHARE, _HOST_SHARE = 0.92, 0.75
# vLLM's default.
_MAX_NUM_SEQS = 256
# A block of the cache is reserved, and the last block of a request is usually not full.
_SPARE_TOKENS = 1024
_UNKNOWN_LENGTH, _LENGTH_STEP = 8192, 256
_UNKNOWN_TOKEN_BYTES = 8 << 10
_GRAPHS_BYTES = 1 << 30
_ACTIVATION_BYTES = {"cuda": 1 << 30, "host": 512 << 20}
# Of a diffusion on a device: it works on all of an output at once.
_ACTIVATION_SHARE = 0.1
_SIZES = ("num_hidden_layers", "num_attention_heads", "hidden_size")
_WHISPER_SIZES = ("decoder_layers", "decoder_attention_heads", "d_model")
# Of the quantizations that are no file.
_BITS_PER_WEIGHT = {name: 4 if name.endswith("nf4") else 8 for name in get_args(Quantization) if name != "none"}
_HINT = "use smaller `kv_cache_memory_bytes` or `max_model_len`, a smaller `dtype`, or `devices` with more memory"


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

    @property
    def device(self) -> str:
        """Its name in a plan."""
        return "host" if self.gpu is None else self.name

    @property
    def planned_bytes(self) -> int:
        """The part of the free memory that a plan may use."""
        if self.gpu is None:
            return int(self.free_bytes * _HOST_SHARE)
        return min(self.free_bytes, int(self.total_bytes * _DEVICE_SHARE))


@dataclass(frozen=True)
class MemoryPlan:
    """`config` has the planned sizes; `missing` is what the machine lacks for it, devices first."""

    config: EngineConfig
    stages: tuple[PlannedMemory, ...]
    uses: tuple[MemoryUse, ...]
    missing: tuple[str, ...]


@dataclass
class _Rank:
    """One rank of a stage. `fixed` is what it takes at least, without a planned cache; `beside` is an estimate.

    With a `token_bytes` its cache is planned, for `num_requests` of `length` tokens, and `num_heard` of an encoder.
    """

    stage: StageConfig
    use: MemoryUse
    weights: int
    fixed: int
    beside: int
    share: float | None = None
    adapters: int | None = 0
    cache_bytes: int | None = None
    token_bytes: int = 0
    length: int = 0
    num_heard: int = 0
    num_requests: int = 0
    is_shorter: bool = False

    def cache(self, num_requests: int) -> int:
        return self.token_bytes * ((self.length + self.num_heard) * num_requests + _SPARE_TOKENS)

    def shorten(self, share: float) -> None:
        """Reduce the length to a share of it, unless the profile states it."""
        if isinstance(self.stage, ARStageConfig) and self.stage.max_model_len is None:
            length = max(_LENGTH_STEP, int(self.length * share) // _LENGTH_STEP * _LENGTH_STEP)
            self.length, self.is_shorter = length, length < self.length


def plan_start(config: EngineConfig, folder: Path) -> MemoryPlan | None:
    """Plan the memory of a chain that is about to start with the checkpoint in `folder`.

    None without AR stages, and if nothing needs planning and the driver does not report the devices' memory. Raises
    `StageError` if the chain needs more than is free: each stage checks only its own part.
    """
    if not any(isinstance(stage, ARStageConfig) for stage in config.stages):
        return None
    devices, host = read_devices(), read_memory()
    if isinstance(devices, str):
        if all(_states_size(stage) for stage in config.stages if isinstance(stage, ARStageConfig)):
            return None
        raise OmniError(
            f"cannot determine the memory of the CUDA device: {devices}",
            hint="set `kv_cache_memory_bytes` of each AR stage, or run on the CPU: `CUDA_VISIBLE_DEVICES= omni ...`",
        )
    weights = stage_weights(config, folder, is_complete=True) or {stage.name: {} for stage in config.stages}
    decoders = stage_decoders(config, folder)
    plan = plan_memory(config, weights, decoders, host, devices)
    for use in plan.uses:
        rows = [row for row in plan.stages if row.device == use.device and config.stage(row.name).backend == "vllm"]
        swap = host.free_swap_bytes if use.gpu is None else 0
        fits = use.needed_bytes <= use.free_bytes + swap
        if fits or not any(isinstance(config.stage(row.name), ARStageConfig) for row in rows):
            continue
        raise StageError(f"the stages of `{config.name}` need {use.lack}", stage=rows[0].name, hint=_HINT)
    return plan


def plan_profile(config: EngineConfig) -> MemoryPlan | None:
    """Plan a profile's memory on this machine without loading or downloading anything; None if sizes are unknown.

    Raises `CheckpointError` for a checkpoint that cannot be read.
    """
    devices = read_devices()
    weights, decoders, _ = find_weights(config, hub_cache_folder())
    if isinstance(devices, str) or weights is None:
        return None
    return plan_memory(config, weights, decoders, read_memory(), devices)


def plan_memory(
    config: EngineConfig, weights: Weights, decoders: Decoders, host: HostMemory, devices: Devices
) -> MemoryPlan:
    """Return what a profile takes of the host and of each device that it uses.

    `weights` are the sizes of the parts that each stage loads, by the stage's name; `decoders` are the configurations
    of the stages' language models, as far as they are known.
    """
    where = "this container" if host.limit_bytes else "this machine"
    memory = MemoryUse(where, host.limit_bytes or host.total_bytes, host.available_bytes)
    uses: dict[Gpu, MemoryUse] = {}
    missing: list[str] = []
    ranks: list[_Rank] = []
    for stage in config.stages:
        parts = dict(_get_quantized_sizes(config, stage, weights[stage.name]))
        assigned = list(devices.of_stage(stage))
        missing += [item for item in assigned if isinstance(item, str)]
        gpus = [item for item in assigned if isinstance(item, Gpu)]
        for gpu in gpus:
            # A device whose memory the driver does not report shares the host's.
            name = f"GPU {gpu.index}"
            own = MemoryUse(name, gpu.total_bytes, gpu.free_bytes, gpu.index) if gpu.total_bytes else memory
            ranks.append(_rank(stage, uses.setdefault(gpu, own), parts, is_cuda=True))
            memory.needed_bytes += _PROCESS_BYTES
        if isinstance(stage, DiffusionStageConfig) and stage.offload != "none" and gpus:
            memory.needed_bytes += sum(parts.values())
        ranks += [_rank(stage, memory, parts, is_cuda=False) for _ in range(stage.num_ranks if not assigned else 0)]
    for rank in ranks:
        rank.adapters = _adapter_bytes(rank.stage)
        rank.fixed += (rank.adapters or 0) if rank.share is None else 0
        if isinstance(rank.stage, ARStageConfig) and not _states_size(rank.stage):
            _plan_cache(rank, rank.stage, decoders.get(rank.stage.name, {}), config.dtype)
    used = tuple({id(use): use for use in (memory, *uses.values())}.values())
    for use in used:
        _share(use, [rank for rank in ranks if rank.use is use])
    missing += [use.lack for use in used if use.lack is not None]
    missing += [small for rank in ranks if rank.use.lack is None and (small := _too_small_a_share(rank)) is not None]
    planned = config.with_stages(_plan_stage(stage, ranks) for stage in config.stages)
    return MemoryPlan(planned, tuple(_rows(ranks)), used, tuple(missing))


def _rank(stage: StageConfig, use: MemoryUse, parts: Parts, *, is_cuda: bool) -> _Rank:
    beside = _ACTIVATION_BYTES["cuda" if is_cuda else "host"]
    if isinstance(stage, DiffusionStageConfig):
        beside = max(beside, int(use.total_bytes * _ACTIVATION_SHARE) if is_cuda else 0)
        if stage.backend == "diffusers":
            on_device = _on_device(stage, parts)
            return _Rank(stage, use, on_device, _PROCESS_BYTES + on_device, beside)
    elif is_cuda and stage.cudagraph_mode != "none":
        beside += _GRAPHS_BYTES
    weights = sum(parts.values()) // stage.num_ranks
    if isinstance(stage, ARStageConfig) and stage.kv_cache_memory_bytes is not None:
        fixed = _PROCESS_BYTES + weights + stage.kv_cache_memory_bytes
        return _Rank(stage, use, weights, fixed, beside, cache_bytes=stage.kv_cache_memory_bytes)
    share = stage.gpu_memory_utilization
    if share is None or not (is_cuda or isinstance(stage, ARStageConfig)):
        return _Rank(stage, use, weights, _PROCESS_BYTES + weights, beside)
    # vLLM refuses to start unless all of the share is free.
    return _Rank(stage, use, weights, max(int(use.total_bytes * share), weights), 0, share)


def _states_size(stage: ARStageConfig) -> bool:
    return stage.kv_cache_memory_bytes is not None or stage.gpu_memory_utilization is not None


def _plan_cache(rank: _Rank, stage: ARStageConfig, decoder: Mapping[str, Any], dtype: str) -> None:
    """Note the cache of a rank for as many and as long requests as its stage takes."""
    if "decoder_layers" in decoder:  # Whisper, whose decoder looks at a whole window
        decoder = {**decoder, **dict(zip(_SIZES, map(decoder.get, _WHISPER_SIZES), strict=True))}
        rank.num_heard = decoder.get("max_source_positions") or 0
    token_bytes = cache_bytes_per_token(decoder, dtype)
    known = decoder.get("max_position_embeddings") or decoder.get("max_target_positions")
    rank.length = stage.max_model_len or (known if isinstance(known, int) and known > 0 else _UNKNOWN_LENGTH)
    rank.token_bytes = _UNKNOWN_TOKEN_BYTES if token_bytes is None else -(-token_bytes // stage.num_ranks)
    rank.num_requests = stage.max_num_seqs or _MAX_NUM_SEQS


def cache_bytes_per_token(decoder: Mapping[str, Any], dtype: str) -> int | None:
    """Return the bytes of a token's keys and values in all layers, those of branches included; None if unknown."""
    sizes = [decoder.get(key) for key in _SIZES]
    layers, heads, hidden = (size if isinstance(size, int) else 0 for size in sizes)
    if not (layers and heads and hidden):
        return None
    head_dim = decoder.get("head_dim") or hidden // heads
    kv_heads = decoder.get("num_key_value_heads") or heads
    if not isinstance(kv_heads, int):
        return None
    num_branches: int = decoder.get(NUM_BRANCHES, 0)
    return (1 + num_branches) * 2 * layers * kv_heads * head_dim * ITEMSIZES[dtype]


def _share(use: MemoryUse, ranks: list[_Rank]) -> None:
    """Give every rank its planned cache, and add up what all of them take."""
    planned = [rank for rank in ranks if rank.token_bytes]
    room = use.planned_bytes - sum(rank.fixed + rank.beside for rank in ranks)
    least = sum(rank.cache(1) for rank in planned)
    if room < least:
        for rank in planned:
            rank.shorten(max(room, 0) / least)
        least = sum(rank.cache(1) for rank in planned)
    use.needed_bytes += sum(rank.fixed for rank in ranks) + least
    more = sum(rank.cache(rank.num_requests) for rank in planned) - least
    share = min(1.0, max(0, room - least) / more) if more else 0.0
    for rank in planned:
        rank.cache_bytes = rank.cache(1) + int((rank.cache(rank.num_requests) - rank.cache(1)) * share)


def _too_small_a_share(rank: _Rank) -> str | None:
    reserved = rank.use.total_bytes if rank.share is None else int(rank.use.total_bytes * rank.share)
    if rank.weights <= reserved:
        return None
    return (
        f"a larger gpu_memory_utilization of stage `{rank.stage.name}` (its weights take {gib(rank.weights)}, "
        f"its share of {rank.use.name} is {gib(reserved)})"
    )


def _plan_stage(stage: StageConfig, ranks: Iterable[_Rank]) -> StageConfig:
    """Return a stage with the planned size of its cache, which all of its ranks have alike."""
    own = [rank for rank in ranks if rank.stage is stage and rank.token_bytes]
    if not own:
        return stage
    keys: dict[str, int] = {"kv_cache_memory_bytes": min(rank.cache_bytes or 0 for rank in own)}
    if any(rank.is_shorter for rank in own):
        keys["max_model_len"] = min(rank.length for rank in own)
    return stage.model_copy(update=keys)


def _rows(ranks: Iterable[_Rank]) -> Iterator[PlannedMemory]:
    for rank in ranks:
        yield PlannedMemory(
            name=rank.stage.name,
            device=rank.use.device,
            weights_bytes=rank.weights,
            kv_cache_bytes=rank.cache_bytes,
            share_bytes=rank.fixed if rank.share is not None else None,
            other_bytes=_PROCESS_BYTES + rank.beside,
            is_planned=rank.token_bytes > 0,
            adapters_bytes=rank.adapters,
        )


def _adapter_bytes(stage: StageConfig) -> int | None:
    """Return the size of a stage's LoRA adapters, 0 without any; None for one without safetensors.

    That of their files: vLLM's slots are larger where `max_lora_rank` is, or where an adapter leaves modules out.
    """
    files = [[one.path] if one.path.is_file() else [*one.path.rglob("*.safetensors")] for one in stage.adapters]
    return sum(file.stat().st_size for found in files for file in found) if all(files) else None


def _on_device(stage: DiffusionStageConfig, parts: Parts) -> int:
    """Return the weights of a pipeline that are on its device at once."""
    match stage.offload:
        case "none":
            return sum(parts.values())
        case "model":
            return max(parts.values(), default=0)
    # Groups and single layers are small beside whole models, and only those of the former can be excluded.
    return sum(size for name, size in parts.items() if name in (stage.exclude_modules or ()))


def _get_quantized_sizes(config: EngineConfig, stage: StageConfig, parts: Parts) -> Iterable[tuple[str, int]]:
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
