"""What a profile may contain: the source of the checks, of the defaults and of the JSON Schema.

Strict: a quoted number is an error, an unknown key is an error. Nothing here names a class or runs code.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from omni_cli.config.engine_config import CudagraphMode, Dtype, Execution, OutputCopy, TalkerPrompt

Builtin = Literal["tiny-omni", "small-omni", "tiny-image"]
BUILTIN_PREFIX = "builtin:"
BUILTIN_NAMES: tuple[str, ...] = get_args(Builtin)

# `--stage` takes these words for groups of stages, and `--vary env.NAME` is an environment variable.
RESERVED_STAGE_NAMES = frozenset({"all", "ar", "diffusion", "env"})
STAGE_NAME_PATTERN = r"^[a-z][a-z0-9_-]{0,63}$"

_MAX_TOKENS = 2**24  # far beyond any model's context; catches a slip of the keyboard
_MAX_BYTES = 2**50
_MAX_RANKS = 1024
_MAX_ENTRIES = 65_536
MAX_STAGES = 64

Text = Annotated[str, StringConstraints(max_length=10_000)]
NonEmpty = Annotated[str, StringConstraints(min_length=1, max_length=1000)]
StageName = Annotated[str, StringConstraints(pattern=STAGE_NAME_PATTERN)]
TokenId = Annotated[int, Field(ge=0, lt=2**31)]
ArgumentName = Annotated[str, StringConstraints(pattern=r"^[a-z_][a-z0-9_]{0,99}$")]
Scalar = bool | int | float | Text
Tokens = Annotated[int, Field(ge=1, le=_MAX_TOKENS)]
Codes = Annotated[int, Field(ge=1, le=_MAX_TOKENS)]
Ranks = Annotated[int, Field(ge=1, le=_MAX_RANKS)]
PayloadBytes = Annotated[int, Field(ge=1, le=_MAX_BYTES)]
Pixels = Annotated[int, Field(ge=1, le=16_384)]
Seconds = Annotated[float, Field(gt=0, le=1e6)]
Fraction = Annotated[float, Field(gt=0, le=1)]
Devices = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9/:._-]+(,[A-Za-z0-9/:._-]+)*$", max_length=1000)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class Sampling(_Strict):
    """How an AR stage picks its tokens: fields of vLLM's `SamplingParams`."""

    temperature: float | None = Field(None, ge=0, le=100, description="0 picks the likeliest token (greedy).")
    top_p: Fraction | None = Field(None, description="Keep the likeliest tokens up to this probability mass.")
    top_k: int | None = Field(None, ge=-1, le=_MAX_TOKENS, description="Keep this many tokens; 0 or -1: all.")
    min_p: float | None = Field(
        None, ge=0, le=1, description="Drop tokens below this share of the likeliest one's probability."
    )
    repetition_penalty: float | None = Field(
        None, gt=0, le=100, description="Above 1 disfavours tokens of the prompt and the answer so far."
    )
    presence_penalty: float | None = Field(
        None, ge=-2, le=2, description="Above 0 disfavours tokens that the answer has."
    )
    frequency_penalty: float | None = Field(
        None, ge=-2, le=2, description="Above 0 disfavours tokens by how often the answer has them."
    )
    max_tokens: Tokens | None = Field(None, description="Tokens to generate at most.")
    min_tokens: int | None = Field(
        None, ge=0, le=_MAX_TOKENS, description="Tokens to generate before the end of the answer may come."
    )
    stop: NonEmpty | list[NonEmpty] | None = Field(None, description="A text, or several, that ends the answer.")
    stop_token_ids: list[TokenId] | None = Field(None, description="Token ids that end the answer.")
    ignore_eos: bool | None = Field(None, description="Go on after the end-of-sequence token.")
    seed: int | None = Field(
        None, ge=0, lt=2**63, description="Seed of this stage's sampling; the request's seed if absent."
    )
    logprobs: int | None = Field(
        None, ge=-1, le=_MAX_TOKENS, description="Log probabilities for this many likeliest tokens; -1: all."
    )


class _Stage(_Strict):
    input: NonEmpty | None = Field(
        None, description="The earlier stage whose output this one takes; absent for the first stage."
    )
    max_model_len: Tokens | None = Field(None, description="Longest prompt plus answer, in tokens.")
    max_num_seqs: int | None = Field(None, ge=1, le=65_536, description="Requests in one batch at most.")
    gpu_memory_utilization: Fraction | None = Field(
        None, description="Share of the device's memory that this stage may use."
    )
    tensor_parallel_size: Ranks = Field(1, description="Devices that share each layer.")
    pipeline_parallel_size: Ranks = Field(1, description="Devices that share the layers one after another.")
    output_copy: OutputCopy = Field(
        "async", description="Copy outputs to the host while the next step runs, or before it starts."
    )
    max_payload_bytes: PayloadBytes | None = Field(
        None, description="Bytes of one request's hand-off from the stage before, in its encoded form: 2 GiB if absent."
    )
    max_payload_tensor_bytes: PayloadBytes | None = Field(
        None, description="Bytes of each tensor in it: 1 GiB if absent."
    )
    max_payload_entries: int | None = Field(
        None, ge=1, le=_MAX_ENTRIES, description="Named tensors and lists in it: 64 if absent."
    )
    max_payload_items: int | None = Field(
        None, ge=1, le=_MAX_TOKENS, description="Items of all its lists together, such as token ids: 1048576 if absent."
    )
    load_timeout_s: Seconds = Field(1800.0, description="Loading and warming up may take so long.")
    step_timeout_s: Seconds = Field(
        600.0, description="A stage that has requests and says nothing for so long is taken for dead."
    )
    devices: Devices | None = Field(
        None, description="Visible devices of this stage, as in CUDA_VISIBLE_DEVICES, quoted: '0,1'."
    )


class ARStage(_Stage):
    """An autoregressive stage: makes tokens, on vLLM's engine. Keys are vLLM's engine arguments."""

    kind: Literal["ar"] = Field(description="Autoregressive: makes tokens.")
    backend: Literal["vllm"] = Field("vllm", description="AR stages run on vLLM.")
    max_num_batched_tokens: Tokens | None = Field(None, description="Tokens in one engine step at most.")
    kv_cache_memory_bytes: int | None = Field(
        None,
        ge=1,
        le=_MAX_BYTES,
        description="Size of the KV cache; overrides gpu_memory_utilization for it.",
    )
    block_size: int | None = Field(None, ge=1, le=1024, description="Tokens in one block of the KV cache.")
    enable_prefix_caching: bool | None = Field(
        None, description="Reuse the KV cache of an equal beginning of an earlier prompt."
    )
    enable_chunked_prefill: bool | None = Field(None, description="Split long prompts over engine steps.")
    distributed_executor_backend: Literal["mp", "ray"] | None = Field(
        None, description="What starts the ranks of a parallel stage: `mp` on this machine, `ray` on CUDA devices."
    )
    system_prompt: Text | None = Field(
        None, description="What the model is told before every prompt; the checkpoint's own words if absent."
    )
    talker_prompt: TalkerPrompt = Field(
        "full",
        description="Qwen2.5-Omni's talker: `full` as published, `plain` as transformers 5.23 computes one prompt "
        "(no codec embeddings and no M-RoPE positions of media in the prompt).",
    )
    cudagraph_mode: CudagraphMode = Field("none", description="What vLLM replays from CUDA graphs.")
    sampling: Sampling = Field(
        default_factory=lambda: Sampling.model_validate({}),
        description="Defaults for requests: vLLM SamplingParams fields.",
    )


class DiffusionStage(_Stage):
    """A diffusion stage: a fixed number of denoising steps, on vLLM or on a diffusers pipeline."""

    kind: Literal["diffusion"] = Field(description="Denoises in a fixed number of steps.")
    backend: Literal["vllm", "diffusers"] = Field("diffusers", description="What runs the stage.")
    num_inference_steps: int | None = Field(None, ge=1, le=1000, description="Denoising steps.")
    guidance_scale: float | None = Field(None, ge=0, le=1000, description="Strength of guidance.")
    negative_prompt: Text | None = Field(None, description="What the picture should not show.")
    height: Pixels | None = Field(None, description="Height of the picture in pixels.")
    width: Pixels | None = Field(None, description="Width of the picture in pixels.")
    sway_coefficient: float | None = Field(
        None, ge=-1, le=1, description="Bends the time steps towards the start (below 0); vLLM's token2wav."
    )
    execution: Execution = Field("eager", description="How a denoising step runs.")
    stream: bool | None = Field(
        None,
        description="Send audio in chunks as it is made, and begin each stage while the one before it still runs; "
        "token2wav's, for requests that do not say it themselves.",
    )
    stream_first_chunk_codes: Codes | None = Field(None, description="Codec tokens in the first chunk: 24 if absent.")
    stream_chunk_codes: Codes | None = Field(None, description="Codec tokens in each further chunk: 48 if absent.")
    stream_context_codes: int | None = Field(
        None, ge=0, le=_MAX_TOKENS, description="Codec tokens before a chunk that it is computed with: 24 if absent."
    )
    stream_look_ahead_codes: Codes | None = Field(
        None, description="Codec tokens after a chunk that it waits for and is computed with: 24 if absent."
    )
    call: dict[ArgumentName, Scalar] = Field(
        default_factory=dict,
        description="Further arguments of the pipeline call by diffusers' names, such as true_cfg_scale.",
    )


Stage = Annotated[ARStage | DiffusionStage, Field(discriminator="kind")]
STAGE_MODELS: dict[str, type[_Stage]] = {"ar": ARStage, "diffusion": DiffusionStage}


class Profile(_Strict):
    """A model for `omni`: its checkpoint and its stages. One complete file per model."""

    version: Literal[1] = Field(description="Version of this format.")
    name: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")] = Field(
        description="Name of the profile; `--profile NAME` for a bundled one."
    )
    description: Annotated[str, StringConstraints(max_length=500)] = Field(
        "", description="One line for `omni profiles list`."
    )
    model: NonEmpty = Field(
        description="Checkpoint: builtin:NAME (built locally), a folder, or a Hugging Face repo id.",
        examples=[BUILTIN_PREFIX + name for name in BUILTIN_NAMES],
    )
    dtype: Dtype = Field(description="Type of weights and activations.")
    seed: int = Field(0, ge=0, lt=2**32, description="Seed of every request that does not bring its own.")
    stages: Annotated[dict[StageName, Stage], Field(min_length=1, max_length=MAX_STAGES)] = Field(
        description="The stages in order, by name; each but the first names its input."
    )


def json_schema() -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of a profile, for editors' YAML language servers."""
    schema = _without_null(Profile.model_json_schema())
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **schema,
        "title": "omni profile",
    }


def _without_null(node: Any) -> Any:
    """The schema without `null` alternatives: an absent key, not an empty one, means the engine's default."""
    if isinstance(node, list):
        return [_without_null(item) for item in node]
    if not isinstance(node, dict):
        return node
    node = {key: _without_null(value) for key, value in node.items() if not (key == "default" and value is None)}
    if "patternProperties" in node:
        node["additionalProperties"] = False
    choices = [choice for choice in node.get("anyOf", ()) if choice != {"type": "null"}]
    if len(choices) == 1:
        del node["anyOf"]
        node = {**choices[0], **node}
    elif choices:
        node["anyOf"] = choices
    return node
