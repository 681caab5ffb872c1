"""Keys of a diffusers pipeline that place it: its memory, and the devices that share its work."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from omni_cli.config.key_notes import DIFFUSERS_ONLY, StrictKeys

Dtype = Literal["float32", "bfloat16", "float16"]
Offload = Literal["none", "model", "sequential", "group"]

_MAX_RANKS = 1024
ArgumentName = Annotated[str, StringConstraints(pattern=r"^[a-z_][a-z0-9_]{0,99}$")]
Ranks = Annotated[int, Field(ge=1, le=_MAX_RANKS)]


class MemoryKeys(StrictKeys):
    """Keys of a diffusers pipeline that save memory on its device, mostly for time."""

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
        None, description="Components that `offload: group` leaves on the device, such as `vae`."
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


class ParallelKeys(StrictKeys):
    """Keys of a diffusers pipeline that share its work between devices."""

    attention_backend: Annotated[ArgumentName | None, DIFFUSERS_ONLY] = Field(
        None, description="Implementation of the denoiser's attention, by diffusers' names. Default: diffusers' own."
    )
    context_parallel: Annotated[ContextParallel, DIFFUSERS_ONLY] = Field(
        default_factory=lambda: ContextParallel.model_validate({}),
        description="Devices that share the tokens of one image or video; each has all weights.",
    )
