"""The resolved configuration that everything behind the command line works from: complete and frozen.

Field names are vLLM's for AR stages and diffusers' for diffusion stages. `None` means that the engine's own
default holds (vLLM's or the pipeline's), never "decide later".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

CudagraphMode = Literal["none", "piecewise", "full", "full_decode_only", "full_and_piecewise"]
Execution = Literal["eager", "compile", "cudagraph"]
OutputCopy = Literal["async", "sync"]
TalkerPrompt = Literal["full", "plain"]
Dtype = Literal["float32", "bfloat16", "float16"]


@dataclass(frozen=True)
class _CommonStageConfig:
    """What stages of both kinds have. The `max_payload` keys, which are vLLM's alone, bound what a request brings from
    the stage before; their defaults are `PayloadLimits`'.
    """

    name: str
    input: str | None = None
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    gpu_memory_utilization: float | None = None
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    output_copy: OutputCopy = "async"
    max_payload_bytes: int | None = None
    max_payload_tensor_bytes: int | None = None
    max_payload_entries: int | None = None
    max_payload_items: int | None = None
    load_timeout_s: float = 1800.0
    step_timeout_s: float = 600.0
    devices: str | None = None

    @property
    def num_ranks(self) -> int:
        return self.tensor_parallel_size * self.pipeline_parallel_size

    @property
    def has_ranks_elsewhere(self) -> bool:
        """Whether its ranks are processes of their own."""
        return self.num_ranks > 1


@dataclass(frozen=True)
class ARStageConfig(_CommonStageConfig):
    """One autoregressive stage; `sampling` holds vLLM `SamplingParams` fields."""

    backend: Literal["vllm"] = "vllm"
    max_num_batched_tokens: int | None = None
    kv_cache_memory_bytes: int | None = None
    block_size: int | None = None
    enable_prefix_caching: bool | None = None
    enable_chunked_prefill: bool | None = None
    distributed_executor_backend: Literal["mp", "ray"] | None = None
    cudagraph_mode: CudagraphMode = "none"
    system_prompt: str | None = None
    talker_prompt: TalkerPrompt = "full"
    sampling: Mapping[str, Any] = field(default_factory=dict)
    kind: Literal["ar"] = "ar"

    @property
    def has_ranks_elsewhere(self) -> bool:
        """Several are; a single one is where an executor was asked for."""
        return self.num_ranks > 1 or self.distributed_executor_backend is not None


@dataclass(frozen=True)
class DiffusionStageConfig(_CommonStageConfig):
    """One diffusion stage on a vLLM runner or on a diffusers pipeline.

    `call` holds further arguments of the pipeline call by diffusers' names (`true_cfg_scale`); `max_num_seqs` bounds
    how many compatible requests share a batch. The `stream` keys are token2wav's; their defaults are `ChunkSizes`'.
    """

    backend: Literal["vllm", "diffusers"] = "diffusers"
    num_inference_steps: int | None = None
    guidance_scale: float | None = None
    negative_prompt: str | None = None
    height: int | None = None
    width: int | None = None
    sway_coefficient: float | None = None
    execution: Execution = "eager"
    stream: bool | None = None
    stream_first_chunk_codes: int | None = None
    stream_chunk_codes: int | None = None
    stream_context_codes: int | None = None
    stream_look_ahead_codes: int | None = None
    call: Mapping[str, Any] = field(default_factory=dict)
    kind: Literal["diffusion"] = "diffusion"


StageConfig = ARStageConfig | DiffusionStageConfig


@dataclass(frozen=True)
class EngineConfig:
    """A whole model. `model` is as written (`builtin:NAME`, a folder, a Hugging Face repo id)."""

    name: str
    description: str
    model: str
    dtype: Dtype
    stages: tuple[StageConfig, ...]
    seed: int = 0
    trust_remote_code: bool = False

    @property
    def backends(self) -> frozenset[str]:
        """What runs the stages: `vllm`, `diffusers` or both."""
        return frozenset(stage.backend for stage in self.stages)

    def stage(self, name: str) -> StageConfig:
        """The stage of that name; `KeyError` if there is none."""
        return {stage.name: stage for stage in self.stages}[name]
