"""Contents of requests and answers: files and arguments of a pipeline's call, voices, transcripts, functions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar

import numpy as np


@dataclass(frozen=True)
class CallFile:
    """A file for an argument of a pipeline's call.

    An image, uint8 RGB (height, width, 3); a tensor of any shape; audio, float32 (num_samples,) or (num_samples,
    channels), with its sample rate; frames of a video, uint8 RGB (num_frames, height, width, 3), with their rate and
    the video's sound.
    """

    kind: Literal["image", "tensor", "audio", "video"]
    array: np.ndarray
    rate: float | None = None
    sound: CallFile | None = None


T = TypeVar("T")
NestedCall: TypeAlias = (
    "T | list[NestedCall[T]] | tuple[NestedCall[T], ...] | dict[Any, NestedCall[T]] | str | float | None"
)
"""A value of JSON with files at any depth."""


def get_items(nested: object) -> Iterator[Any]:
    """Yield the files of a `NestedCall` in order."""
    if isinstance(nested, list | tuple):
        yield from (item for each in nested for item in get_items(each))
    elif isinstance(nested, Mapping):
        yield from (item for each in nested.values() for item in get_items(each))
    elif nested is not None and not isinstance(nested, str | bool | int | float):
        yield nested


def changed_items(nested: object, change: Callable[[Any], object]) -> Any:
    """Return the same value of a `NestedCall` with other files."""
    if isinstance(nested, list | tuple):
        return type(nested)(changed_items(each, change) for each in nested)
    if isinstance(nested, Mapping):
        return {key: changed_items(each, change) for key, each in nested.items()}
    return nested if nested is None or isinstance(nested, str | bool | int | float) else change(nested)


def holds_files(value: object) -> bool:
    """Return True if a checked value of `--arg` names files."""
    return any(isinstance(item, Path) for item in get_items(value))


@dataclass(frozen=True)
class ReferenceVoice:
    """Samples float32 mono (num_samples,) of one speaker at `sample_rate` Hz, and the words spoken in them, if known.

    `name` identifies the recording in messages.
    """

    samples: np.ndarray
    sample_rate: int
    text: str | None = None
    name: str = "recording of a voice"


@dataclass(frozen=True)
class Segment:
    """A part of a transcript, with its times in seconds from the beginning of the sound."""

    start_s: float
    end_s: float
    text: str
    token_ids: tuple[int, ...]


@dataclass(frozen=True)
class Transcript:
    """A transcribed sound; `language` is its ISO 639-1 code, the request's or the one that the model detected."""

    language: str | None
    duration_s: float
    segments: tuple[Segment, ...]


@dataclass(frozen=True)
class ToolCall:
    """A model's call of a function; `arguments` is JSON as the model wrote it, which may be wrong or cut."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True)
class ToolCallDelta:
    """A piece of the call at `index` of an answer: its `id` and `name` first, then pieces of its arguments."""

    index: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""


@dataclass(frozen=True)
class ToolUse:
    """The functions that an answer may call, in OpenAI's form; `choice` is a mode, or the function that it must call.

    `parallel` allows several calls in one answer.
    """

    tools: tuple[Mapping[str, Any], ...]
    choice: Literal["auto", "none", "required"] | Mapping[str, Any] = "auto"
    parallel: bool = True
