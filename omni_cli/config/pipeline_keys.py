"""Keys of a diffusers pipeline for its memory, its speed and the devices that share its work."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from omni_cli.config.key_notes import DIFFUSERS_ONLY, KeyNotes, StrictKeys

Dtype = Literal["float32", "bfloat16", "float16"]
Offload = Literal["none", "model", "sequential", "group"]

# The models that run in each step, by diffusers' names; Wan 2.2 has two.
DENOISERS = ("transformer", "transformer_2", "unet", "prior")
_MAX_RANKS = 1024
ArgumentName = Annotated[str, StringConstraints(pattern=r"^[a-z_][a-z0-9_]{0,99}$")]
Ranks = Annotated[int, Field(ge=1, le=_MAX_RANKS)]


class MemoryKeys(StrictKeys):
    """Keys of a diffusers pipeline that save memory on its device, mostly at the cost of time."""

    offload: Annotated[Offload, DIFFUSERS_ONLY] = Field(
        "none",
        description="Weights that stay on the host until they run: whole models (`model`), single layers "
        "(`sequential`) or groups of layers (`group`).",
    )
    offload_type: Annotated[Literal["block_level", "leaf_level"] | None, DIFFUSERS_ONLY] = Field(
        None, description="The groups of `offload: group`: blocks of a model or its layers. Default: block_level."
    )
    num_blocks_per_group: Annotated[int | None, DIFFUSERS_ONLY] = Field(
        None, ge=1, le=1024, description="Blocks per group of `offload: group`. Default: 1."
    )
    use_stream: Annotated[bool | None, DIFFUSERS_ONLY] = Field(
        None, description="Copy the next group of `offload: group` while one runs. Default: false."
    )
    exclude_modules: Annotated[list[ArgumentName] | None, DIFFUSERS_ONLY] = Field(
        None, description="Components that `offload: group` leaves on the device, such as `text_encoder`."
    )
    enable_vae_tiling: Annotated[bool | None, DIFFUSERS_ONLY] = Field(
        None, description="Decode large outputs in overlapping tiles. Changes pixels. Default: the VAE's own."
    )
    enable_vae_slicing: Annotated[bool | None, DIFFUSERS_ONLY] = Field(
        None, description="Decode the outputs of a batch one by one. Default: the VAE's own."
    )
    torch_dtype: Annotated[dict[ArgumentName, Dtype], DIFFUSERS_ONLY] = Field(
        default_factory=dict,
        description="Types of single components, such as `{vae: float32}`. Default: the profile's `dtype`.",
    )


class ContextParallel(StrictKeys):
    """Fields of diffusers' `ContextParallelConfig`; off unless a degree is above 1."""

    ulysses_degree: Ranks | None = Field(None, description="Devices that split the attention heads. Default: 1.")
    ring_degree: Ranks | None = Field(None, description="Devices that pass keys and values around. Default: 1.")
    ulysses_anything: bool | None = Field(
        None, description="Split any number of tokens and heads, not only multiples of the degree. Default: false."
    )
    ring_anything: bool | None = Field(
        None, description="Split any number of tokens, not only multiples of the degree. Default: false."
    )
    convert_to_fp32: bool | None = Field(
        None, description="Add up the parts of ring attention in float32. Default: true."
    )

    @property
    def num_ranks(self) -> int:
        return (self.ulysses_degree or 1) * (self.ring_degree or 1)


CacheMethod = Literal["none", "first_block", "mag", "taylorseer", "pyramid_attention_broadcast", "faster", "cache_dit"]
Quantization = Literal[
    "none", "int8_weight_only", "int8_dynamic", "float8_weight_only", "float8_dynamic", "bitsandbytes_8bit",
    "bitsandbytes_nf4",
]  # fmt: skip
GGUF_SUFFIX = ".gguf"
GgufFile = Annotated[str, StringConstraints(pattern=r"\.gguf$", max_length=4096)]
# Fields of `StepCache` that a method takes.
CACHE_FIELDS: dict[str, tuple[str, ...]] = {
    "none": (),
    "first_block": ("threshold",),
    "mag": ("threshold", "max_skip_steps", "retention_ratio", "mag_ratios"),
    "taylorseer": ("cache_interval", "disable_cache_before_step", "disable_cache_after_step", "max_order"),
    "pyramid_attention_broadcast": (
        "spatial_attention_block_skip_range", "spatial_attention_timestep_skip_range",
        "cross_attention_block_skip_range", "cross_attention_timestep_skip_range",
    ),
    "faster": (
        "spatial_attention_block_skip_range", "spatial_attention_timestep_skip_range",
        "unconditional_batch_skip_range", "unconditional_batch_timestep_skip_range", "tensor_format",
    ),
    "cache_dit": (
        "threshold", "Fn_compute_blocks", "Bn_compute_blocks", "max_warmup_steps", "max_cached_steps",
        "max_continuous_cached_steps", "taylorseer_order",
    ),
}  # fmt: skip
# Methods that decide between blocks; the others decide within them, which compiled code cannot do.
CACHES_BETWEEN_BLOCKS = frozenset({"none", "first_block", "mag", "cache_dit"})
_Blocks = Annotated[int, Field(ge=0, le=1000)]
_Steps = Annotated[int, Field(ge=0, le=1000)]
_Timesteps = Annotated[list[float], Field(min_length=2, max_length=2)]


class StepCache(StrictKeys):
    """A cache of diffusers or cache-dit between denoising steps; fields are those of its configuration class."""

    method: CacheMethod = Field("none", description="What is taken from earlier steps. Changes outputs.")
    threshold: float | None = Field(
        None,
        ge=0,
        description="Largest change for which a step is skipped (`first_block`, `mag`, `cache_dit`); 0: none is "
        "skipped.",
    )
    max_skip_steps: _Steps | None = Field(None, description="Steps that `mag` skips in a row, at most.")
    retention_ratio: float | None = Field(None, ge=0, le=1, description="Share of first steps that `mag` computes.")
    mag_ratios: Annotated[list[float], Field(min_length=1, max_length=1000)] | None = Field(
        None, description="Ratios of the checkpoint for `mag`, as its calibration in diffusers prints them."
    )
    cache_interval: Annotated[int, Field(ge=1, le=1000)] | None = Field(
        None, description="Steps from one that `taylorseer` computes to the next."
    )
    disable_cache_before_step: _Steps | None = Field(None, description="First steps that `taylorseer` computes.")
    disable_cache_after_step: _Steps | None = Field(None, description="Step from which `taylorseer` computes all.")
    max_order: Annotated[int, Field(ge=0, le=10)] | None = Field(None, description="Order of `taylorseer`.")
    spatial_attention_block_skip_range: Annotated[int, Field(ge=1, le=1000)] | None = Field(
        None, description="Steps from one in which self-attention is computed to the next."
    )
    spatial_attention_timestep_skip_range: _Timesteps | None = Field(
        None, description="Timesteps between which self-attention may be skipped."
    )
    cross_attention_block_skip_range: Annotated[int, Field(ge=1, le=1000)] | None = Field(
        None, description="Steps from one in which cross-attention is computed to the next."
    )
    cross_attention_timestep_skip_range: _Timesteps | None = Field(
        None, description="Timesteps between which cross-attention may be skipped."
    )
    unconditional_batch_skip_range: Annotated[int, Field(ge=1, le=1000)] | None = Field(
        None, description="Steps from one in which `faster` computes both halves of guidance to the next."
    )
    unconditional_batch_timestep_skip_range: _Timesteps | None = Field(
        None, description="Timesteps between which `faster` may leave out the half without the prompt."
    )
    tensor_format: Literal["BCFHW", "BFCHW", "BCHW"] | None = Field(
        None, description="Order of the axes of the denoiser's input, for `faster`."
    )
    Fn_compute_blocks: Annotated[int, Field(ge=1, le=1000)] | None = Field(
        None, description="First blocks that `cache_dit` computes in each step, to see how much changed."
    )
    Bn_compute_blocks: _Blocks | None = Field(
        None, description="Last blocks that `cache_dit` computes in each step, too."
    )
    max_warmup_steps: Annotated[int, Field(ge=1, le=1000)] | None = Field(
        None, description="First steps that `cache_dit` computes."
    )
    max_cached_steps: Annotated[int, Field(ge=1, le=1000)] | None = Field(
        None, description="Steps that `cache_dit` skips at most."
    )
    max_continuous_cached_steps: Annotated[int, Field(ge=1, le=1000)] | None = Field(
        None, description="Steps that `cache_dit` skips in a row at most."
    )
    taylorseer_order: Annotated[int, Field(ge=1, le=10)] | None = Field(
        None, description="Order with which `cache_dit` extrapolates what it skips. Default: the last value is kept."
    )


class AccelerationKeys(StrictKeys):
    """Keys of a diffusers pipeline that trade exactness, or time at the start, for speed."""

    cache: Annotated[StepCache, DIFFUSERS_ONLY] = Field(
        default_factory=lambda: StepCache.model_validate({}),
        description="What denoising steps take from earlier ones instead of computing it.",
    )
    quantization: Annotated[
        Quantization | GgufFile, KeyNotes(backend="diffusers", pattern="or write the path of a GGUF file: `PATH.gguf`")
    ] = Field(
        "none",
        description="Types of the denoiser's linear layers, by torchao (of their weights only, or of products too: "
        "`dynamic`) or bitsandbytes; or a GGUF file with its weights, `PATH.gguf`. Changes outputs.",
    )
    channels_last: Annotated[bool, DIFFUSERS_ONLY] = Field(
        False, description="Store the weights of convolutions with channels last. Changes outputs by rounding."
    )


class ParallelKeys(StrictKeys):
    """Keys of a diffusers pipeline that share its work between devices."""

    attention_backend: Annotated[ArgumentName | None, DIFFUSERS_ONLY] = Field(
        None, description="Implementation of the denoiser's attention, by diffusers' names. Default: diffusers' own."
    )
    context_parallel: Annotated[ContextParallel, DIFFUSERS_ONLY] = Field(
        default_factory=lambda: ContextParallel.model_validate({}),
        description="Devices that share the tokens of one image or video; each has all weights.",
    )
