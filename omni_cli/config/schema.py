"""One declaration per setting: it parses and checks a profile, and the engine uses it directly.

The JSON Schema, `omni profiles show` and the diagnostics are derived from it. A new key is added only here, or to the
class of the model family that has it. Field names are vLLM's for AR stages and diffusers' for diffusion
stages. `None` means the engine's own default (vLLM's or the pipeline's), never "decide later".

Strict: a quoted number is an error, an unknown key is an error. Nothing here names a class or runs code.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal, Self, get_args

from pydantic import Field, PrivateAttr, StringConstraints
from pydantic.fields import FieldInfo

from omni_cli.config.bounds import MAX_FPS, MAX_IMAGE_SIDE, MAX_NUM_INFERENCE_STEPS, MAX_SEED, MAX_TOKENS, MIN_SEED
from omni_cli.config.families import BUILTIN_PREFIX, builtins
from omni_cli.config.stage_keys import (
    ARGUMENT,
    DIFFUSERS_ONLY,
    VLLM_ONLY,
    AccelerationKeys,
    Adapter,
    ArgumentName,
    Backend,
    Dtype,
    Fraction,
    KeyNotes,
    LoraKeys,
    MemoryKeys,
    ParallelKeys,
    Ranks,
    Sampling,
    StrictKeys,
    Tokens,
    has_effect,
    notes_on,
)
from omni_cli.core.errors import InputError
from omni_cli.core.text import suggest

CudagraphMode = Literal["none", "piecewise", "full", "full_decode_only", "full_and_piecewise"]
Execution = Literal["eager", "compile", "cudagraph", "compile_cudagraph"]
OutputCopy = Literal["async", "sync"]
Batching = Literal["exact", "stacked", "padded"]
Precision = Literal["float32", "tf32", "bfloat16"]

# `--stage` uses these words for groups of stages, and `--vary env.NAME` is an environment variable.
RESERVED_STAGE_NAMES = frozenset({"all", "ar", "diffusion", "env"})
STAGE_NAME_PATTERN = r"^[a-z][a-z0-9_-]{0,63}$"

_MAX_BYTES = 2**50
_MAX_ENTRIES = 65_536
MAX_STAGES = 64

Text = Annotated[str, StringConstraints(max_length=10_000)]
NonEmpty = Annotated[str, StringConstraints(min_length=1, max_length=1000)]
StageName = Annotated[str, StringConstraints(pattern=STAGE_NAME_PATTERN)]
Scalar = bool | int | float | Text
# Recursive types would need `$defs` in the JSON Schema; arguments of pipelines have lists of lists at most.
_CallItem = Scalar | None
_CallList = list[_CallItem | list[_CallItem]]
CallValue = _CallItem | _CallList | dict[str | int, _CallItem | _CallList]
PayloadBytes = Annotated[int, Field(ge=1, le=_MAX_BYTES)]
Pixels = Annotated[int, Field(ge=1, le=MAX_IMAGE_SIDE)]
NumInferenceSteps = Annotated[int, Field(ge=1, le=MAX_NUM_INFERENCE_STEPS)]
Seconds = Annotated[float, Field(gt=0, le=1e6)]
Devices = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9/:._-]+(,[A-Za-z0-9/:._-]+)*$", max_length=1000)]


SEVERAL_DEVICES = "for several devices start the whole model several times: `--replicas N`"
_CONTEXT_PARALLEL = f"write `context_parallel: {{ulysses_degree: 2}}`; {SEVERAL_DEVICES}"
_KIND = KeyNotes(missing="add `kind: ar` (makes tokens) or `kind: diffusion` (denoises)")
_RANKS = KeyNotes(backend="vllm", reason="a pipeline's layers stay whole", hint=_CONTEXT_PARALLEL)


class _Stage(LoraKeys):
    input: NonEmpty | None = Field(
        None, description="The earlier stage whose output this one takes; absent for the first stage."
    )
    max_model_len: Annotated[Tokens | None, VLLM_ONLY] = Field(
        None, description="Maximum length of prompt plus answer, in tokens."
    )
    max_num_seqs: int | None = Field(None, ge=1, le=65_536, description="Maximum number of requests per batch.")
    gpu_memory_utilization: Annotated[Fraction | None, VLLM_ONLY] = Field(
        None, description="Share of the device's memory that this stage may use."
    )
    tensor_parallel_size: Annotated[Ranks, _RANKS] = Field(1, description="Devices that share each layer.")
    pipeline_parallel_size: Annotated[Ranks, _RANKS] = Field(1, description="Devices that split the layers.")
    enable_sleep_mode: Annotated[bool | None, VLLM_ONLY] = Field(
        None, description="Load in a way that `/sleep` can give the device's memory back; needs a GPU."
    )
    output_copy: OutputCopy = Field(
        "async", description="Copy outputs to the host while the next step runs, or before it starts."
    )
    max_payload_bytes: Annotated[PayloadBytes | None, VLLM_ONLY] = Field(
        None, description="Maximum size of one request's encoded input from the stage before, in bytes. Default: 2 GiB."
    )
    max_payload_tensor_bytes: Annotated[PayloadBytes | None, VLLM_ONLY] = Field(
        None, description="Maximum size of each tensor in it, in bytes. Default: 1 GiB."
    )
    max_payload_entries: Annotated[int | None, VLLM_ONLY] = Field(
        None, ge=1, le=_MAX_ENTRIES, description="Maximum number of named tensors and lists in it. Default: 64."
    )
    max_payload_items: Annotated[int | None, VLLM_ONLY] = Field(
        None,
        ge=1,
        le=MAX_TOKENS,
        description="Maximum number of items in its lists, such as token ids. Default: 1048576.",
    )
    load_timeout_s: Seconds = Field(1800.0, description="Time limit for loading and warming up.")
    step_timeout_s: Seconds = Field(
        600.0, description="A stage with requests is considered hung after this long without progress."
    )
    devices: Annotated[
        Devices | None, KeyNotes(pattern="must be device numbers or names with commas between them, such as '0,1'")
    ] = Field(None, description="Visible devices of this stage, as in CUDA_VISIBLE_DEVICES, quoted: '0,1'.")
    _name: str = PrivateAttr("")

    @classmethod
    def create(cls, name: str, **values: object) -> Self:
        """Create a stage outside a profile, of the class's kind; `values` are checked as a profile's keys are."""
        (kind,) = get_args(cls.model_fields["kind"].annotation)
        stage = cls.model_validate({"kind": kind, **values})
        stage._name = name
        return stage

    def as_class(self, model: type[StageConfig]) -> StageConfig:
        """Return the stage as another class of its kind; raises `ValidationError` if that lacks a key that is set."""
        stage = model.model_validate(self.model_dump(exclude_unset=True))
        stage.__pydantic_private__ = self.__pydantic_private__
        return stage

    @property
    def name(self) -> str:
        """The stage's key in the profile."""
        return self._name

    @property
    def num_ranks(self) -> int:
        return self.tensor_parallel_size * self.pipeline_parallel_size

    @property
    def has_ranks_elsewhere(self) -> bool:
        """True if its ranks are separate processes."""
        return self.num_ranks > 1

    @property
    def streams(self) -> bool:
        """True if it sends its output in parts, for requests that do not decide it themselves."""
        return False

    @property
    def starts_early(self) -> bool:
        """True if it begins while its input stage runs, also for requests that are not streamed."""
        return False


class ARStageConfig(_Stage):
    """An autoregressive stage, which generates tokens on vLLM's engine. Keys are vLLM's engine arguments."""

    kind: Annotated[Literal["ar"], _KIND] = Field(description="Autoregressive: makes tokens.")
    backend: Literal["vllm"] = Field("vllm", description="AR stages run on vLLM.")
    max_num_batched_tokens: Tokens | None = Field(None, description="Maximum number of tokens per engine step.")
    kv_cache_memory_bytes: int | None = Field(
        None,
        ge=1,
        le=_MAX_BYTES,
        description="Size of the KV cache, with branches of guidance; gpu_memory_utilization is without effect then, "
        "and on a GPU the stage loads beside others.",
    )
    block_size: int | None = Field(None, ge=1, le=1024, description="Tokens per block of the KV cache.")
    enable_prefix_caching: bool | None = Field(
        None, description="Reuse the KV cache of earlier prompts with the same prefix."
    )
    enable_chunked_prefill: bool | None = Field(None, description="Split long prompts over engine steps.")
    distributed_executor_backend: Annotated[
        Literal["mp", "ray"] | None,
        KeyNotes(
            elsewhere={
                "external_launcher": "it is for programs that start each rank themselves, as torchrun does; omni "
                "starts the ranks: write `mp`"
            }
        ),
    ] = Field(
        None, description="The launcher of a parallel stage's ranks: `mp` on this machine, `ray` on CUDA devices."
    )
    max_lora_rank: Literal[8, 16, 32, 64, 128, 256, 320, 512] | None = Field(
        None, description="Largest rank of the adapters in `lora`. Default: vLLM's, 16."
    )
    limit_mm_per_prompt: dict[Literal["audio", "image", "video"], Annotated[int, Field(ge=0, le=999)]] | None = Field(
        None,
        description="Maximum number of audio, image and video inputs per request. Default: as many as the model takes.",
    )
    system_prompt: Text | None = Field(None, description="System prompt. Default: the checkpoint's own.")
    tool_call_parser: Text | None = Field(
        None, description="vLLM's parser of calls of tools. Default: the one for the checkpoint's chat template."
    )
    reasoning_parser: Text | None = Field(
        None, description="vLLM's parser that separates reasoning from the answer. Default: none."
    )
    aligner: Text | None = Field(
        None, description="Folder of a Qwen3 forced aligner, which tells the times of a transcript's words."
    )
    cudagraph_mode: CudagraphMode = Field("none", description="The calls that vLLM replays from CUDA graphs.")
    sampling: Sampling = Field(
        default_factory=lambda: Sampling.model_validate({}),
        description="Defaults for requests: vLLM SamplingParams fields.",
    )

    @property
    def has_given_length(self) -> bool:
        """True if something other than `sampling` determines its number of tokens."""
        return False

    @property
    def has_ranks_elsewhere(self) -> bool:
        """True for several ranks, and for a single one if an executor is set."""
        return self.num_ranks > 1 or self.distributed_executor_backend is not None


class ImageSize(StrictKeys):
    """Keys of stages that determine the size of an image."""

    height: Annotated[Pixels | None, ARGUMENT] = Field(None, description="Height of the image in pixels.")
    width: Annotated[Pixels | None, ARGUMENT] = Field(None, description="Width of the image in pixels.")


class DiffusionStageConfig(AccelerationKeys, ParallelKeys, MemoryKeys, ImageSize, _Stage):
    """A diffusion stage: a fixed number of denoising steps, on vLLM or on a diffusers pipeline."""

    kind: Annotated[Literal["diffusion"], _KIND] = Field(description="Denoises in a fixed number of steps.")
    backend: Backend = Field("diffusers", description="The engine that runs the stage.")
    num_inference_steps: Annotated[NumInferenceSteps | None, ARGUMENT] = Field(None, description="Denoising steps.")
    guidance_scale: Annotated[float | None, ARGUMENT] = Field(None, ge=0, le=1000, description="Strength of guidance.")
    negative_prompt: Annotated[Text | None, ARGUMENT] = Field(
        None, description="Content to avoid in the image or the video."
    )
    fps: Annotated[float | None, DIFFUSERS_ONLY] = Field(
        None,
        gt=0,
        le=MAX_FPS,
        description="Frames per second of a video; passed to pipelines whose call takes it. Default: the pipeline's.",
    )
    execution: Annotated[Execution | None, KeyNotes(values={"vllm": ("eager", "compile", "cudagraph")})] = Field(
        None,
        description="Execution mode of a denoising step: as Python, with compiled blocks, from a CUDA graph, or from a "
        "CUDA graph over compiled blocks (diffusers only). Default: `eager`, and for a pipeline of diffusers on a CUDA "
        "device what its calls are measured to need while it loads.",
    )
    batching: Annotated[Batching, KeyNotes(values={"vllm": ("exact", "padded"), "diffusers": ("exact", "stacked")})] = (
        Field(
            "exact",
            description="How requests share a batch: one after another, each with the output that it has alone "
            "(`exact`); as one tensor of equal shapes (`stacked`, diffusers); or in blocks padded to a common size "
            "(`padded`, token2wav). The latter two are faster and change outputs by rounding: in float32 by at most "
            "one of a pixel's 256 values, or 1e-5 of a sample.",
        )
    )
    precision: Precision | None = Field(
        None,
        description="Arithmetic of all matrix products and convolutions; `tf32` needs a CUDA device. On diffusers, "
        "weights are loaded in `bfloat16` or `float32` accordingly, and the default is `dtype`, on a CUDA device with "
        "the convolutions of float32 in TF32, as torch has it. Default of Qwen2.5-Omni's token2wav: float32.",
    )
    call: Annotated[dict[ArgumentName, CallValue], DIFFUSERS_ONLY] = Field(
        default_factory=dict,
        description="Further arguments of the pipeline call by diffusers' names, such as true_cfg_scale.",
    )
    _droppable_arguments: tuple[str, ...] = PrivateAttr(())

    @property
    def num_ranks(self) -> int:
        return self.context_parallel.num_ranks

    @property
    def droppable_arguments(self) -> tuple[str, ...]:
        """Arguments of the pipeline's call that were written for another checkpoint, and need not fit this one."""
        return self._droppable_arguments


PIPELINE_ARGUMENTS = tuple(name for name, key in DiffusionStageConfig.model_fields.items() if notes_on(key).is_argument)
"""Keys of a diffusion stage, and fields of a request, that are arguments of the pipeline's call."""
StageConfig = ARStageConfig | DiffusionStageConfig
STAGE_MODELS: dict[str, type[StageConfig]] = {"ar": ARStageConfig, "diffusion": DiffusionStageConfig}


class EngineConfig(StrictKeys):
    """A model for `omni`: its checkpoint and its stages. One complete file per model."""

    version: Annotated[Literal[1], KeyNotes(missing="add `version: 1`")] = Field(description="Version of this format.")
    name: Annotated[
        str,
        StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$"),
        KeyNotes(pattern="must be letters, digits, `.`, `_` and `-`, at most 100", missing="add `name: NAME`"),
    ] = Field(description="Name of the profile; `--profile NAME` for a bundled one.")
    description: Annotated[str, StringConstraints(max_length=500)] = Field(
        "", description="One line for `omni profiles list`."
    )
    model: Annotated[NonEmpty, KeyNotes(missing="add `model: DIR` or a Hugging Face repo id")] = Field(
        description="Checkpoint: builtin:NAME (built locally), a folder, or a Hugging Face repo id.",
        json_schema_extra=lambda schema: schema.update(examples=[BUILTIN_PREFIX + name for name in builtins()]),
    )
    dtype: Annotated[Dtype, KeyNotes(missing="add `dtype: bfloat16`, `float16` or `float32`")] = Field(
        description="Type of weights and activations."
    )
    seed: int = Field(0, ge=MIN_SEED, lt=MAX_SEED + 1, description="Seed of requests without their own.")
    mps: Literal["auto", True, False] = Field(
        False,
        description="Run a server of NVIDIA's Multi-Process Service with the engine, so that stages that share a GPU "
        "run on it at the same time instead of alternating; `auto`: if there are such stages, and this machine has it. "
        "A fault of one stage on the device then ends all of them.",
    )
    stages_by_name: Annotated[
        dict[StageName, Annotated[StageConfig, Field(discriminator="kind")]],
        Field(min_length=1, max_length=MAX_STAGES),
        KeyNotes(
            pattern="a stage's name is lower-case letters, digits, `_` and `-`, at most 64, a letter first",
            missing="see `omni profiles show tiny-omni` for an example",
        ),
    ] = Field(alias="stages", description="The stages in order, by name; each but the first names its input.")
    _trust_remote_code: bool = PrivateAttr(False)

    def model_post_init(self, context: object, /) -> None:
        """Set each stage's name."""
        for name, stage in self.stages_by_name.items():
            stage._name = name

    @property
    def trust_remote_code(self) -> bool:
        """True if code of the checkpoint may run, which only the command line can allow."""
        return self._trust_remote_code

    @property
    def stages(self) -> tuple[StageConfig, ...]:
        return tuple(self.stages_by_name.values())

    @property
    def named_seed(self) -> int | None:
        """The seed that the profile, or an option over it, names; None for the default."""
        return self.seed if "seed" in self.model_fields_set else None

    @property
    def backends(self) -> frozenset[str]:
        """The backends of the stages: `vllm`, `diffusers` or both."""
        return frozenset(stage.backend for stage in self.stages)

    def stage(self, name: str) -> StageConfig:
        """Return the stage of that name; raises `KeyError` if there is none."""
        return self.stages_by_name[name]

    @property
    def adapters(self) -> dict[str, Adapter]:
        """The LoRA adapters of all stages by name."""
        return {adapter.name: adapter for stage in self.stages for adapter in stage.adapters}

    def check_adapter(self, name: str | None) -> None:
        """Raise `InputError` for an adapter that no stage has; None and "" name none."""
        known = list(self.adapters)
        if name and name not in known:
            hint = suggest(name, known) or (
                f"loaded are {', '.join(known)}" if known else f"load it: `--lora {name}=DIR`"
            )
            raise InputError(f"no LoRA adapter `{name}` is loaded", hint=hint)

    def with_stages(self, stages: Iterable[StageConfig]) -> EngineConfig:
        """Return the same model with these stages."""
        return self.model_copy(update={"stages_by_name": {stage.name: stage for stage in stages}})

    def trusting_remote_code(self) -> EngineConfig:
        """Return the same model with permission to run its checkpoint's code."""
        trusting = self.model_copy()
        trusting._trust_remote_code = True
        return trusting


PROFILE_KEYS: dict[str, FieldInfo] = {key.alias or name: key for name, key in EngineConfig.model_fields.items()}


def profile_data(config: EngineConfig) -> dict[str, object]:
    """Return the profile that resolves to `config`: every key with a value, defaults included, in reading order.

    Omitted are `trust_remote_code`, which no profile may set, and the default `seed`: a server would give that to all.
    """
    omitted = {"stages_by_name", *(["seed"] if config.named_seed is None else [])}
    top_level = config.model_dump(exclude=omitted)
    return {**top_level, "stages": {stage.name: _stage_data(stage) for stage in config.stages}}


def _stage_data(stage: StageConfig) -> dict[str, object]:
    """Return the keys with a value and an effect; those of the kind and the family first."""
    values = stage.model_dump(exclude_none=True)
    keys = type(stage).model_fields
    own = [name for name in keys if name not in _Stage.model_fields]
    mappings = [name for name in keys if isinstance(values.get(name), dict)]
    order = dict.fromkeys(["kind", "backend", "input", *(name for name in own if name not in mappings), *keys])
    names = [name for name in order if name not in mappings] + [name for name in mappings if values[name]]
    return {name: values[name] for name in names if name in values and has_effect(keys[name], stage.backend)}
