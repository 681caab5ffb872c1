"""What goes into a run and what comes out of it: requests, events and results. Imports neither torch nor vLLM."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from omni_cli.errors import OmniError

if TYPE_CHECKING:
    import numpy as np

Modality = Literal["text", "audio", "image"]


@dataclass(frozen=True)
class GenerateRequest:
    """One request for the whole chain.

    `sampling` overrides the first AR stage's `sampling` keys; `diffusion` overrides
    call arguments of the diffusion stage (diffusers' names: `num_inference_steps`, `guidance_scale`,
    `height`, `width`, `negative_prompt`, ...). `audio` holds (samples float32 mono (num_samples,), sample rate Hz)
    pairs; `images` holds uint8 RGB arrays (height, width, 3). `modalities` None means all that the profile makes.
    """

    request_id: str
    prompt: str
    audio: tuple[tuple[np.ndarray, int], ...] = ()
    images: tuple[np.ndarray, ...] = ()
    seed: int = 0
    modalities: frozenset[Modality] | None = None
    raw: bool = False
    speaker: str | None = None
    sampling: Mapping[str, Any] = field(default_factory=dict)
    diffusion: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class TextOutput:
    text: str
    token_ids: tuple[int, ...]
    finish_reason: str


@dataclass(frozen=True)
class AudioOutput:
    """`samples` is float32 (num_samples,) in [-1, 1]."""

    samples: np.ndarray
    sample_rate: int


@dataclass(frozen=True)
class ImageOutput:
    """`pixels` is uint8 RGB (height, width, 3)."""

    pixels: np.ndarray


Output = TextOutput | AudioOutput | ImageOutput


@dataclass(frozen=True)
class StageTrace:
    """What one stage did for one request; times are seconds on the stage's own monotonic clock."""

    name: str
    kind: Literal["ar", "diffusion"]
    latency_s: float
    ttft_s: float | None = None
    num_input_tokens: int | None = None
    num_output_tokens: int | None = None
    output_token_ids: tuple[int, ...] | None = None
    num_inference_steps: int | None = None
    effective: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class StageInfo:
    """One loaded stage; `peak_memory_bytes` has the keys `device` and `host`."""

    name: str
    kind: Literal["ar", "diffusion"]
    load_s: float
    peak_memory_bytes: Mapping[str, int]
    effective: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class StageLoading:
    """Event: a stage has begun to load (`info` None) or is ready."""

    name: str
    kind: Literal["ar", "diffusion"]
    info: StageInfo | None = None


@dataclass(frozen=True)
class StageProgress:
    """Event: `done` of `total` tokens or denoising steps; `total` None when unknown."""

    request_id: str
    stage: str
    done: int
    total: int | None
    unit: Literal["token", "step"]


@dataclass(frozen=True)
class TextDelta:
    """Event: more text of a request's answer."""

    request_id: str
    text: str


@dataclass(frozen=True)
class OutputReady:
    """Event: one output of a request is whole, while later stages of it may still run."""

    request_id: str
    output: Output


@dataclass(frozen=True)
class RequestResult:
    """Event: a request has ended; the last one that it sends. `error` is set exactly when it failed."""

    request_id: str
    outputs: tuple[Output, ...]
    stages: tuple[StageTrace, ...]
    error: OmniError | None = None


Event = StageLoading | StageProgress | TextDelta | OutputReady | RequestResult
