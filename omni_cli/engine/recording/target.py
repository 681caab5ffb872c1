"""View of a loaded stage for recording, whichever engine it runs on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn

from omni_cli.backends.diffusers.stage import DiffusersStage
from omni_cli.stage.protocol import Stage
from omni_cli.stage.recording import Attention, MemoryBudget, Resident, module_kind


class RecordingTarget:
    """A loaded stage as recordings see it, by default nothing but its models."""

    device: torch.device
    dtype: torch.dtype
    ranks_elsewhere = 0

    def modules(self) -> Mapping[str, nn.Module]:
        """The stage's models by name; empty if they are in other processes."""
        raise NotImplementedError

    def eagerly(self) -> AbstractContextManager[None]:
        """Run models inside it as plain Python, whatever the stage's setting."""
        return nullcontext()

    def caches(self) -> Iterator[Resident]:
        """Memory that is allocated once, besides the weights."""
        return iter(())

    def facts(self) -> Mapping[str, Any]:
        """Further fields of its `StageDescription`; a diffusion stage's work is counted, that of others follows."""
        return {}

    def kv_cache_usage(self) -> float | None:
        return None


def get_target(stage: Stage) -> RecordingTarget:
    return DiffusersTarget(stage) if isinstance(stage, DiffusersStage) else VllmTarget(stage)


class DiffusersTarget(RecordingTarget):
    def __init__(self, stage: DiffusersStage) -> None:
        self._executor = stage.executor
        self.device = torch.device(stage.executor.device)
        self.dtype = getattr(torch, stage.executor.dtype)

    def modules(self) -> Mapping[str, nn.Module]:
        components = self._executor.pipeline.components
        return {name: part for name, part in components.items() if isinstance(part, nn.Module)}

    def eagerly(self) -> AbstractContextManager[None]:
        denoiser = self._executor.denoiser
        return nullcontext() if denoiser is None else denoiser.eagerly()


class VllmTarget(RecordingTarget):
    """A stage on a vLLM engine in this process; its ranks, and with them its model, may be elsewhere."""

    def __init__(self, stage: Any) -> None:
        self._stage = stage
        self._config = stage.engine.vllm_config
        self.device = torch.device(self._config.device_config.device_type)
        self.dtype = self._config.model_config.dtype
        config = stage.spec.stage
        self.ranks_elsewhere = config.num_ranks if config.has_ranks_elsewhere else 0

    def modules(self) -> Mapping[str, nn.Module]:
        if self.ranks_elsewhere:
            return {}
        (model,) = self._stage.engine.collective_rpc("get_model")
        return {self._stage.spec.stage.name: model}

    def eagerly(self) -> AbstractContextManager[None]:
        mode = getattr(self._stage, "execution_mode", None)
        return nullcontext() if mode is None else mode.eagerly()

    def caches(self) -> Iterator[Resident]:
        for layer in self._config.compilation_config.static_forward_context.values():
            cache = getattr(layer, "kv_cache", None)
            for tensor in cache if isinstance(cache, (list, tuple)) else [cache]:
                if isinstance(tensor, torch.Tensor) and tensor.numel():
                    name = f"KV cache of {getattr(layer, 'layer_name', 'attention')}"
                    yield Resident(name, tensor.nbytes, "cache", tuple(tensor.shape), _name(tensor.dtype))

    def facts(self) -> Mapping[str, Any]:
        from omni_cli.engine.recording.matrices import get_linears, get_uncounted

        found: dict[str, Any] = {"budgets": self._budgets()}
        models = self.modules().items()
        if self._stage.spec.stage.kind == "ar" and models:
            found["linears"] = tuple(one for root, model in models for one in get_linears(root, model, self.dtype))
            found["uncounted"] = tuple(part for root, model in models for part in get_uncounted(root, model))
            found["attentions"] = tuple(
                Attention(module_kind(name), layer.num_heads, layer.num_kv_heads, layer.head_size, self.dtype.itemsize)
                for name, layer in self._config.compilation_config.static_forward_context.items()
                if hasattr(layer, "num_kv_heads")
            )
        return found

    def _budgets(self) -> tuple[MemoryBudget, ...]:
        cache = self._config.cache_config
        found = []
        kv_cache_bytes = sum(resident.size_bytes for resident in self.caches())
        if kv_cache_bytes:
            found.append(MemoryBudget("KV cache", kv_cache_bytes))
        if self.device.type == "cuda" and cache.kv_cache_memory_bytes is None:
            total = torch.cuda.get_device_properties(self.device).total_memory
            budget = int(total * cache.gpu_memory_utilization)
            found.append(MemoryBudget("gpu_memory_utilization", budget, torch.cuda.max_memory_reserved()))
        return tuple(found)

    def kv_cache_usage(self) -> float | None:
        scheduler = getattr(self._stage.engine.engine_core.engine_core, "scheduler", None)
        manager = getattr(scheduler, "kv_cache_manager", None)
        return None if manager is None else manager.usage


def get_residents(target: RecordingTarget) -> Iterator[Resident]:
    """Yield every tensor that the stage holds permanently: weights, buffers and caches."""
    seen: set[object] = set()
    for root, model in target.modules().items():
        for path, tensor in (*model.named_parameters(), *model.named_buffers()):
            # oneDNN's weights have no address, and nothing shares their memory.
            memory = path if tensor.is_mkldnn else tensor.data_ptr()
            if memory not in seen and tensor.numel():
                seen.add(memory)
                yield Resident(f"{root}.{path}", tensor.nbytes, "weight", tuple(tensor.shape), _name(tensor.dtype))
    yield from target.caches()


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
