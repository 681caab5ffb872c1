"""Keys of stages in groups: sampling, LoRA adapters, and a pipeline's memory, speed and devices."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints
from pydantic.fields import FieldInfo

from omni_cli.config.bounds import MAX_TEMPERATURE, MAX_TOKENS

Backend = Literal["vllm", "diffusers"]


class StrictKeys(BaseModel):
    """Unknown keys and values of another type are mistakes."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


@dataclass(frozen=True)
class KeyNotes:
    """Notes on a key that pydantic cannot express, in the `Annotated` type of its field.

    `backend` is the only one on which the key has an effect; `reason` and `hint` explain it. `pattern` describes the
    field's pattern in words; `values` lists a backend's values, if it does not have all of them; `missing` is the hint
    if a required key is absent. `elsewhere` maps values that have a meaning elsewhere to the hint for them. A request
    may set a key that `is_argument` of the pipeline's call, too.
    """

    backend: Backend | None = None
    reason: str | None = None
    hint: str | None = None
    pattern: str | None = None
    values: Mapping[Backend, tuple[str, ...]] = field(default_factory=dict)
    missing: str | None = None
    elsewhere: Mapping[str, str] = field(default_factory=dict)
    is_argument: bool = False


def notes_on(key: FieldInfo) -> KeyNotes:
    """Return the notes in a field's type; empty ones if it has none."""
    return next((note for note in key.metadata if isinstance(note, KeyNotes)), KeyNotes())


def has_effect(key: FieldInfo, backend: str) -> bool:
    """True if a key has an effect in a stage on that backend."""
    return notes_on(key).backend in (None, backend)


VLLM_ONLY = KeyNotes(backend="vllm")
DIFFUSERS_ONLY = KeyNotes(backend="diffusers")
ARGUMENT = KeyNotes(is_argument=True)


Fraction = Annotated[float, Field(gt=0, le=1)]
Tokens = Annotated[int, Field(ge=1, le=MAX_TOKENS)]
MinTokens = Annotated[int, Field(ge=0, le=MAX_TOKENS)]
TokenId = Annotated[int, Field(ge=0, lt=2**31)]
Temperature = Annotated[float, Field(ge=0, le=MAX_TEMPERATURE)]
TopK = Annotated[int, Field(ge=-1, le=MAX_TOKENS)]
MinP = Annotated[float, Field(ge=0, le=1)]
# A smaller one is 0 in float32, and times the minus infinity of a token that a grammar forbids it is NaN.
RepetitionPenalty = Annotated[float, Field(ge=0.01, le=100)]
Penalty = Annotated[float, Field(ge=-2, le=2)]
# One error is enough: for a list of 100,000 they take a second.
_TokenIds = Annotated[list[TokenId], Field(fail_fast=True)]
_Stop = Annotated[str, StringConstraints(min_length=1, max_length=1000)]


class Sampling(StrictKeys):
    """Sampling of an AR stage: fields of vLLM's `SamplingParams`."""

    temperature: Temperature | None = Field(
        None, description="0 picks the most likely token (greedy); vLLM raises values between 0 and 0.01 to 0.01."
    )
    top_p: Fraction | None = Field(None, description="Keep the most likely tokens up to this probability mass.")
    top_k: TopK | None = Field(None, description="Keep this many tokens; 0 or -1: all.")
    min_p: MinP | None = Field(None, description="Drop tokens below this share of the most likely one's probability.")
    repetition_penalty: RepetitionPenalty | None = Field(
        None, description="Above 1 penalises tokens of the prompt and the answer so far."
    )
    presence_penalty: Penalty | None = Field(None, description="Above 0 penalises tokens that the answer contains.")
    frequency_penalty: Penalty | None = Field(
        None, description="Above 0 penalises tokens by how often the answer contains them."
    )
    max_tokens: Tokens | None = Field(None, description="Maximum number of tokens to generate.")
    min_tokens: MinTokens | None = Field(None, description="Minimum number of tokens to generate.")
    stop: _Stop | list[_Stop] | None = Field(None, description="A string, or several, that end the output.")
    stop_token_ids: _TokenIds | None = Field(None, description="Token ids that end the answer.")
    ignore_eos: bool | None = Field(None, description="Continue after the end-of-sequence token.")
    include_stop_str_in_output: bool | None = Field(None, description="Keep the stop string at the end of the text.")
    skip_special_tokens: bool | None = Field(None, description="Leave special tokens out of the text. Default: true.")
    spaces_between_special_tokens: bool | None = Field(None, description="Default: true.")
    bad_words: list[_Stop] | None = Field(None, max_length=1000, description="Words that the answer must not have.")
    allowed_token_ids: _TokenIds | None = Field(None, description="The only token ids that the answer may have.")
    seed: int | None = Field(
        None, ge=0, lt=2**63, description="Seed of this stage's sampling. Default: the request's seed."
    )
    logprobs: int | None = Field(
        None, ge=-1, le=MAX_TOKENS, description="Log probabilities of this many most likely tokens, in JSON; -1: all."
    )

    def set_values(self) -> dict[str, object]:
        """Return the parameters that the profile sets."""
        return self.model_dump(exclude_none=True)


# torch's names of modules, which an adapter's is in a pipeline, have no dots.
ADAPTER_NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9_-]{0,99}$"
# The folder of an adapter, and the component of Wan 2.2's pipelines, that is for the steps of less noise.
SECOND_DENOISER = "transformer_2"
_SCALE = re.compile(r"@(\d+(?:\.\d+)?)$")

AdapterName = Annotated[str, StringConstraints(pattern=ADAPTER_NAME_PATTERN)]
AdapterSource = Annotated[str, StringConstraints(min_length=1, max_length=4096)]


@dataclass(frozen=True)
class Adapter:
    """An adapter as a profile names it: `source` is its folder, `DIR` or `DIR@SCALE`."""

    name: str
    source: str

    @property
    def module_name(self) -> str:
        """Its name in PEFT's modules, where `half` and others are names of methods."""
        return f"lora_{self.name}"

    @property
    def path(self) -> Path:
        return Path(_SCALE.sub("", self.source))

    @property
    def scale(self) -> float | None:
        """The factor of its weights; None if it is not set, for 1."""
        found = _SCALE.search(self.source)
        return None if found is None else float(found[1])


class LoraKeys(StrictKeys):
    """The adapters of a stage."""

    lora: dict[AdapterName, AdapterSource] = Field(
        default_factory=dict,
        description="LoRA adapters by name: `{NAME: DIR}`, on diffusers also `DIR@SCALE`. A request names one; without "
        "a name it uses the only one, or the base model if there are several.",
    )

    @property
    def adapters(self) -> tuple[Adapter, ...]:
        return tuple(Adapter(name, source) for name, source in self.lora.items())

    def choose_adapter(self, wanted: str | None) -> str | None:
        """Return the adapter of a request that asks for `wanted` (see `GenerateRequest.lora`); None: the base model."""
        if wanted is None:
            return next(iter(self.lora)) if len(self.lora) == 1 else None
        return wanted if wanted in self.lora else None


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
        None, description="Copy the next group of `offload: group` while one runs. Default: true on CUDA."
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
