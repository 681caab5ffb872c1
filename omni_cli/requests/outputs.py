"""Requests, events and results: the inputs and outputs of a run. Imports neither torch nor vLLM."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Literal

from omni_cli.config.families import Modality as Modality
from omni_cli.core.errors import OmniError, StageError
from omni_cli.core.late import LateModule
from omni_cli.core.machine import PlannedMemory
from omni_cli.requests.contents import (
    Media,
    SpeechOptions,
    StageIO,
    TextOptions,
    ToolCall,
    Transcript,
    TranscriptionOptions,
)
from omni_cli.requests.sampling import SamplingValues

if TYPE_CHECKING:
    import numpy as np
else:
    np = LateModule("numpy")  # messages between processes evaluate the annotations

TokenLogprobs = tuple[tuple[int, float, str | None], ...]
"""Token ids with their log-probabilities and texts: of a token, and then of the most likely ones in its place."""


@dataclass(frozen=True)
class PromptTokens:
    """A prompt as the model reads it, with the tokenizer's own `token_strs` if only this is asked for.

    `logprobs` has an entry for each token, if `sampling.prompt_logprobs` asks for them; the first token follows
    nothing, and its log-probability is NaN.
    """

    text: str
    token_ids: tuple[int, ...]
    token_strs: tuple[str, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()


@dataclass(frozen=True)
class Part:
    """A piece of a message: text, or the position of the request's next audio, image or video."""

    type: Literal["text", "audio", "image", "video"]
    text: str = ""


@dataclass(frozen=True)
class Message:
    """One turn of a conversation; a `tool`'s is the result of an earlier answer's call, with the id of that call."""

    role: Literal["system", "user", "assistant", "tool"]
    parts: tuple[Part, ...]
    reasoning: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None


@dataclass(frozen=True)
class GenerateRequest:
    """One request, from its user to each stage: a prompt, or `messages` instead; None where a pipeline needs neither.

    `sampling` overrides the first AR stage's `sampling` keys; `diffusion` overrides call arguments of the diffusion
    stage (diffusers' names: `num_inference_steps`, `guidance_scale`, `height`, `width`, `negative_prompt`, ...).
    `modalities` None means all that the profile makes. `lora` names the adapter that the stages use which have it, ""
    none; None leaves it to the profile, see `LoraKeys`. `cache_salt` separates prefix caches and cached encoder
    outputs: entries with another salt, or none, are not used. `notes` are sentences on what reading its files changed.
    """

    request_id: str
    prompt: str | None = None
    messages: tuple[Message, ...] = ()
    text: TextOptions = field(default_factory=TextOptions)
    media: Media = field(default_factory=Media)
    sampling: Mapping[str, Any] = field(default_factory=dict)
    speech: SpeechOptions = field(default_factory=SpeechOptions)
    transcription: TranscriptionOptions = field(default_factory=TranscriptionOptions)
    diffusion: Mapping[str, Any] = field(default_factory=dict)
    stage: StageIO = field(default_factory=StageIO)
    seed: int = 0
    modalities: frozenset[Modality] | None = None
    lora: str | None = None
    cache_salt: str | None = None
    notes: tuple[str, ...] = ()


def prompt_message(request: GenerateRequest) -> Message:
    """Return a request's prompt as a message of its user, after its media."""
    media = [Part("audio") for _ in request.media.audio] + [Part("image") for _ in request.media.images]
    media += [Part("video") for _ in request.media.videos]
    return Message("user", (*media, Part("text", request.prompt or "")))


@dataclass(frozen=True)
class TextOutput:
    """`token_ids` are those of the whole answer, without a stop string and what follows it; `reasoning` and
    `tool_calls` are not in `text`, if it was split.

    `transcript` is set for the text of a sound.
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: str
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    num_reasoning_tokens: int = 0
    prompt: PromptTokens | None = None
    transcript: Transcript | None = None


@dataclass(frozen=True)
class AudioOutput:
    """`samples` is float32 (num_samples,) in [-1, 1], or (num_samples, channels) with several channels.

    `finish_reason` is `length` if the stage that made its tokens reached its maximum, so that the sound is cut.
    """

    samples: np.ndarray
    sample_rate: int
    finish_reason: str = "stop"


@dataclass(frozen=True)
class ImageOutput:
    """`pixels` is uint8 RGB (height, width, 3), or with transparency RGBA (height, width, 4)."""

    pixels: np.ndarray


@dataclass(frozen=True)
class VideoSound:
    """The sound of a video, as its model made it."""

    sample_rate: int
    num_samples: int


@dataclass(frozen=True)
class VideoOutput:
    """`content` is an MP4 file, with the sound if there is one; `preview` a WebP image with some of the frames.

    `frames` is uint8 RGB (num_frames, height, width, 3), and None unless the request wants them.
    """

    content: bytes
    preview: bytes
    width: int
    height: int
    num_frames: int
    fps: Fraction
    sound: VideoSound | None = None
    frames: np.ndarray | None = None


@dataclass(frozen=True)
class TensorOutput:
    """A field of a pipeline's output other than media, such as embeddings for another pipeline."""

    name: str
    array: np.ndarray


Output = TextOutput | AudioOutput | ImageOutput | VideoOutput | TensorOutput


def audio_seconds(outputs: Iterable[Output]) -> float:
    """Return the duration of all audio outputs, and of the sounds that are transcribed."""
    seconds = 0.0
    for output in outputs:
        if isinstance(output, AudioOutput):
            seconds += len(output.samples) / output.sample_rate
        elif isinstance(output, TextOutput) and output.transcript is not None:
            seconds += output.transcript.duration_s
    return seconds


@dataclass(frozen=True)
class StageTrace:
    """One stage's work for one request; times are seconds on the stage's own monotonic clock.

    `finish_reason` of an AR stage is vLLM's: `stop`, or `length` if it reached its maximum of tokens. `sampling` is
    what is in effect, and who named it. `token_times_s` is the time of each output token since the request's arrival;
    tokens of one engine step share a time. `output_logprobs` has, for each output token, (token id, log-probability in
    nats, text) of itself and then of the most likely tokens; None unless `sampling.logprobs` asks for them; of a token
    in which a stop string begins, the text before that. `output_codes` are a talker's frames, with one code per
    codebook; `backbone_s` and `code_predictor_s` are, for each token, its step's time in the forward pass and for all
    codes after the first; the rest of a step is the host's. A talker hears the first `num_heard_tokens` but one.
    For a diffusion stage, `text_encode_s`, `vae_encode_s` (of its images), `denoise_step_s` (one entry per step),
    `vae_decode_s` or `vocoder_s`, and `encode_s` (of its videos, the host's) are its parts. Those times are on the
    device's clock. `num_chunks` counts the chunks of streamed audio; None if it was not streamed. `chunk_times_s` has,
    for each, when its codes were there, when its first denoising step had been launched and when its audio was there,
    since the request's arrival in the stage; that is `began_s` seconds after its arrival in the chain.
    """

    name: str
    kind: Literal["ar", "diffusion"]
    latency_s: float
    ttft_s: float | None = None
    num_input_tokens: int | None = None
    num_output_tokens: int | None = None
    finish_reason: str | None = None
    sampling: SamplingValues | None = None
    output_token_ids: tuple[int, ...] | None = None
    output_logprobs: tuple[TokenLogprobs, ...] | None = None
    output_codes: tuple[tuple[int, ...], ...] | None = None
    num_heard_tokens: int | None = None
    code_predictor_s: tuple[float, ...] | None = None
    backbone_s: tuple[float, ...] | None = None
    num_inference_steps: int | None = None
    effective: Mapping[str, Any] = field(default_factory=dict)
    token_times_s: tuple[float, ...] | None = None
    text_encode_s: float | None = None
    vae_encode_s: float | None = None
    denoise_step_s: tuple[float, ...] | None = None
    vae_decode_s: float | None = None
    vocoder_s: float | None = None
    encode_s: float | None = None
    num_chunks: int | None = None
    chunk_times_s: tuple[tuple[float, float, float], ...] | None = None
    began_s: float | None = None


@dataclass(frozen=True)
class StageInfo:
    """One loaded stage.

    `peak_memory_bytes` has the keys `device` and `host` and counts from the start of its process;
    `load_memory_bytes` (until ready) and `run_memory_bytes` (since then) also have `reserved`. `settings` are
    configuration keys as the engine resolved them; `execution_counters` counts what happened since loading began (graph
    replays, bytes copied, ...). `voices` are the speakers that a request may choose, and `media` the kinds of media
    that the loaded model takes; None if its profile alone decides.
    """

    name: str
    kind: Literal["ar", "diffusion"]
    load_s: float
    peak_memory_bytes: Mapping[str, int]
    effective: Mapping[str, Any] = field(default_factory=dict)
    load_memory_bytes: Mapping[str, int] = field(default_factory=dict)
    run_memory_bytes: Mapping[str, int] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    execution_counters: Mapping[str, float] = field(default_factory=dict)
    voices: tuple[str, ...] = ()
    media: tuple[str, ...] | None = None

    @property
    def default_sampling(self) -> SamplingValues:
        """The sampling of a request that names none; empty for a stage that draws no tokens."""
        named: SamplingValues = self.effective.get("default_sampling", {})
        return named

    @property
    def warnings(self) -> tuple[str, ...]:
        """Sentences about deviations of the stage from its profile."""
        return stage_warnings(self.name, self.effective)


def stage_warnings(name: str, effective: Mapping[str, Any]) -> tuple[str, ...]:
    """Return sentences about deviations of a stage from its profile, according to its effective settings."""
    dropped = ", ".join(f"`{argument}`" for argument in effective.get("dropped_arguments", ()))
    message = f"stage `{name}`: this checkpoint's pipeline has no use for the profile's {dropped}; dropped"
    tokenizer = (f"stage `{name}`: {effective['tokenizer']}",) if "tokenizer" in effective else ()
    return ((message,) if dropped else ()) + tokenizer


@dataclass(frozen=True)
class StageLoading:
    """Event: a stage is loading (`info` None) or ready."""

    name: str
    kind: Literal["ar", "diffusion"]
    info: StageInfo | None = None


@dataclass(frozen=True)
class MemoryPlanned:
    """Event: the memory of every stage, before any of them loads."""

    stages: tuple[PlannedMemory, ...]


@dataclass(frozen=True)
class StageFailed:
    """Event: a stage has ended for good; requests that need it fail."""

    name: str
    error: StageError


@dataclass(frozen=True)
class StageProgress:
    """Event: `done` of `total` tokens or denoising steps; `total` None when unknown, `num_input_tokens` 0.

    `heard_s` are the seconds of its sound that a transcription has come to, and those there are.
    """

    request_id: str
    stage: str
    done: int
    total: int | None
    unit: Literal["token", "step"]
    num_input_tokens: int = 0
    heard_s: tuple[float, float] | None = None


@dataclass(frozen=True)
class OutputReady:
    """Event: one output of a request is complete, while later stages may still run."""

    request_id: str
    output: Output


@dataclass(frozen=True)
class RequestResult:
    """Event: a request has ended; its last event. `error` is set if and only if it failed.

    `stage_output` is the last stage's output for the next, if requested. For a request that makes audio,
    `audio_arrivals` are the seconds from its arrival to each piece, with the number of samples until then, and `rtf` is
    the total time in seconds per second of audio. `notes` are sentences on what was changed about the request, first
    those that it came with.
    """

    request_id: str
    outputs: tuple[Output, ...]
    stages: tuple[StageTrace, ...]
    error: OmniError | None = None
    stage_output: bytes | None = None
    audio_arrivals: tuple[tuple[float, int], ...] = ()
    rtf: float | None = None
    notes: tuple[str, ...] = ()

    @property
    def ttfp_s(self) -> float | None:
        """The seconds from a request's arrival to its first audio."""
        return self.audio_arrivals[0][0] if self.audio_arrivals else None
