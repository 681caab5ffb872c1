"""Contents of requests and answers: media, voices, transcripts, functions; and the parts of a request."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

from omni_cli.core.late import LateModule

if TYPE_CHECKING:
    import numpy as np
else:
    np = LateModule("numpy")  # messages between processes evaluate the annotations


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


SpeechTask = Literal["transcribe", "translate"]
PromptCondition = Literal["first-segment", "all-segments"]
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
    """A part of a transcript, with its times in seconds from the beginning of the sound.

    The rest is about the window in which it was heard, None if the model tells it not: where the window begins
    (`seek`, in frames of the spectrogram), its temperature, how sure the model is (the mean log-probability of its
    tokens), how far its text can be compressed, the probability that nothing is said, and the code of the language
    that it sounds like, if none was asked for; the text is in that of the first window, as transformers writes it. The
    `speaker` is one of those that the model tells apart, if it was asked to.
    """

    start_s: float
    end_s: float
    text: str
    token_ids: tuple[int, ...]
    seek: int | None = None
    temperature: float | None = None
    avg_logprob: float | None = None
    compression_ratio: float | None = None
    no_speech_prob: float | None = None
    language: str | None = None
    speaker: str | None = None


@dataclass(frozen=True)
class Word:
    """A word of a transcript with the punctuation beside it, and its times in seconds from the sound's beginning."""

    start_s: float
    end_s: float
    text: str


@dataclass(frozen=True)
class Transcript:
    """A transcribed sound; `language` is its ISO 639-1 code, the request's or the one that the model detected.

    `language_name` is its English name in lower case, `unknown` if the model does not tell. `words` are None unless
    they were asked for.
    """

    language: str | None
    duration_s: float
    segments: tuple[Segment, ...]
    words: tuple[Word, ...] | None = None
    language_name: str = "unknown"


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


@dataclass(frozen=True)
class Video:
    """Frames of a video, uint8 RGB (num_frames, height, width, 3): those at `frames_indices` of `total_num_frames`.

    `fps` is the video's own rate. With `do_sample_frames`, the model's processor chooses from these frames again.
    """

    frames: np.ndarray
    fps: float
    total_num_frames: int
    frames_indices: tuple[int, ...]
    do_sample_frames: bool = False


@dataclass(frozen=True)
class Media:
    """The decoded files of a request.

    `audio` holds (samples float32 mono (num_samples,), sample rate Hz) pairs; `images` holds uint8 RGB arrays
    (height, width, 3), and so do `control_images` and `mask`, which is white where the model paints. `call_files` are
    those for other arguments of a pipeline's call: JSON with a `CallFile` in place of each file.
    """

    audio: tuple[tuple[np.ndarray, int], ...] = ()
    images: tuple[np.ndarray, ...] = ()
    mask: np.ndarray | None = None
    control_images: tuple[np.ndarray, ...] = ()
    videos: tuple[Video, ...] = ()
    call_files: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class TextOptions:
    """The form of a prompt, which its stage turns into tokens, and of the text that answers it.

    `prompt_token_ids` are a prompt in place of text; a `raw` one is read without the chat template.
    `add_special_tokens` None leaves them to the chat template, and adds the tokenizer's to a raw prompt; without
    `add_generation_prompt` a chat ends with its messages, and with `continue_final_message` within the last one.
    `chat_template_kwargs` are variables of the chat template, as in vLLM; `reasoning_effort` is OpenAI's.

    `reply` fixes the first AR stage's answer word for word. With `split_reply`, the answer's reasoning and calls of
    `tool_use`'s functions are taken out of its text. With `wants_prompt`, the text output has the prompt, too; with
    `prompt_only` it has nothing else, and the model does not run.
    """

    prompt_token_ids: tuple[int, ...] | None = None
    raw: bool = False
    add_special_tokens: bool | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    reasoning_effort: str | None = None
    reply: str | None = None
    tool_use: ToolUse | None = None
    split_reply: bool = False
    wants_prompt: bool = False
    prompt_only: bool = False


@dataclass(frozen=True)
class SpeechOptions:
    """The speech to make: `speaker` is a voice that the model has.

    `voices` are recordings to clone, of the speakers in the order in which they first speak. `max_audio_tokens` bounds
    the tokens that become sound, as `max_tokens` of sampling does those of text. With `stream_audio`, stages start
    before their input stage has finished, and audio arrives in `AudioChunk`s while it is generated; None leaves the
    choice to the profile. In a stage, it means that it sends parts of its output as early as it can.
    """

    speaker: str | None = None
    voices: tuple[ReferenceVoice, ...] = ()
    max_audio_tokens: int | None = None
    stream_audio: bool | None = None


@dataclass(frozen=True)
class TranscriptionOptions:
    """The text to make of speech: in its language, or in English with the task `translate`.

    `language` (ISO 639-1) is the language of the speech, None if the model detects it, and for a model that speaks that
    of the speech to make, which may be a name. With `timestamps` the text has the times of its parts, with
    `word_timestamps` those of its words, with `speakers` the parts of each. Of a long sound, the prompt comes before
    the first window, or with `prompt_condition_type` before all of them, and with `condition_on_prev_tokens` also the
    text so far. `asked` of a model that chats as well, this is what to make of a request's sound.
    """

    language: str | None = None
    task: SpeechTask = "transcribe"
    timestamps: bool = False
    word_timestamps: bool = False
    speakers: bool = False
    condition_on_prev_tokens: bool = False
    prompt_condition_type: PromptCondition = "first-segment"
    asked: bool = False


@dataclass(frozen=True)
class StageIO:
    """The ends of a stage: set by the engine for each, and by whoever measures single ones for the first and the last.

    `input` is the output of the stage before, in place of a prompt, with `more_follows` only its beginning.
    `wants_output` asks for the stage's output to the next one. With `wants_frames`, a video arrives with its frames as
    they were before encoding.
    """

    input: bytes | None = None
    more_follows: bool = False
    wants_output: bool = False
    wants_frames: bool = False
