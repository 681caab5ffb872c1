"""Messages between the command's process and a stage's process: msgspec structs over a pipe, no pickle."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
import numpy as np

from omni_cli.errors import CheckpointError, DeadlineError, InputError, OmniError, OutputError, StageError, UsageError
from omni_cli.outputs import Message
from omni_cli.stage.recording import RecordingCommand, RecordingReport

_DTYPES = frozenset({"uint8", "int16", "int32", "int64", "float32", "float64"})


class Array(msgspec.Struct, frozen=True):
    """A numpy array as row-major bytes; decoding raises `ValidationError` if its parts contradict each other."""

    data: bytes
    shape: tuple[int, ...]
    dtype: str

    def __post_init__(self) -> None:
        if self.dtype not in _DTYPES:
            raise ValueError(f"arrays of {self.dtype[:40]!r} are not sent")
        num_bytes = math.prod(self.shape) * np.dtype(self.dtype).itemsize
        if any(size < 0 for size in self.shape) or num_bytes != len(self.data):
            raise ValueError(f"{len(self.data)} bytes are not an array of shape {self.shape} of {self.dtype}")
        if any(size >= 2**31 for size in self.shape):
            raise ValueError(f"no array has the shape {self.shape}")  # an empty array of a size that NumPy rejects

    @classmethod
    def of(cls, array: np.ndarray) -> Array:
        return cls(np.ascontiguousarray(array).tobytes(), array.shape, array.dtype.name)

    def numpy(self) -> np.ndarray:
        return np.frombuffer(self.data, dtype=self.dtype).reshape(self.shape)


class AudioInput(msgspec.Struct, frozen=True):
    samples: Array
    sample_rate: int


class VideoInput(msgspec.Struct, frozen=True):
    """As `omni_cli.outputs.Video`."""

    frames: Array
    fps: float
    total_num_frames: int
    frames_indices: tuple[int, ...]


class CallFileInput(msgspec.Struct, frozen=True):
    """As `omni_cli.outputs.CallFile`."""

    kind: Literal["image", "tensor", "audio", "video"]
    array: Array
    rate: float | None = None
    sound: CallFileInput | None = None


class StageRequest(msgspec.Struct, frozen=True, tag=True):
    """One request for one stage: a prompt for the first stage of a chain, the previous stage's handoff for others.

    `call_files` are arguments of a pipeline's call as JSON would have them, with each file as a `CallFileInput`.
    `handoff` is an encoded `AdditionalInformationPayload`; with `more_follows` it is only the beginning, continued by
    `AppendInput`. `wants_handoff` requests one in return. With `streams`, the stage sends its handoff as `HandoffChunk`
    and its audio as `WaveformChunk` while it produces them.
    """

    request_id: str
    prompt: str | None = None
    messages: tuple[Message, ...] = ()
    reply: str | None = None
    audio: tuple[AudioInput, ...] = ()
    images: tuple[Array, ...] = ()
    mask: Array | None = None
    control_images: tuple[Array, ...] = ()
    videos: tuple[VideoInput, ...] = ()
    raw: bool = False
    seed: int = 0
    speaker: str | None = None
    sampling: dict[str, Any] = {}
    diffusion: dict[str, Any] = {}
    call_files: dict[str, Any] = {}
    cache_salt: str | None = None
    handoff: bytes | None = None
    more_follows: bool = False
    wants_handoff: bool = False
    wants_frames: bool = False
    streams: bool = False


class AppendInput(msgspec.Struct, frozen=True, tag=True):
    """A further part of a request's handoff from the previous stage."""

    request_id: str
    handoff: bytes
    is_last: bool


class AbortRequest(msgspec.Struct, frozen=True, tag=True):
    request_id: str


class StopStage(msgspec.Struct, frozen=True, tag=True):
    pass


Command = StageRequest | AppendInput | AbortRequest | StopStage | RecordingCommand


class MemoryReport(msgspec.Struct, frozen=True, tag=True):
    """Peaks in bytes, of loading or since: device memory allocated and reserved, resident host memory."""

    device: int
    host: int
    reserved: int = 0


class CountersReport(msgspec.Struct, frozen=True, tag=True):
    """Counters since the stage began to load: graphs replayed, bytes copied."""

    counters: dict[str, float]


class StageReady(msgspec.Struct, frozen=True, tag=True):
    """A stage has loaded; `effective` settings and configuration keys (`settings`) are read back from the engine."""

    load_s: float
    effective: dict[str, Any]
    memory: MemoryReport
    settings: dict[str, Any] = {}
    execution_counters: dict[str, float] = {}


FailureKind = Literal["input", "checkpoint", "output", "usage", "deadline", "stage"]
_KINDS: Mapping[FailureKind, type[OmniError]] = {
    "input": InputError,
    "checkpoint": CheckpointError,
    "output": OutputError,
    "usage": UsageError,  # after its subclasses
    "deadline": DeadlineError,
}


class Failure(msgspec.Struct, frozen=True, tag=True):
    """A stage (`request_id` None) or one request failed; `details` is a traceback."""

    kind: FailureKind
    message: str
    hint: str | None = None
    details: str | None = None
    request_id: str | None = None

    @classmethod
    def of(cls, error: OmniError, *, request_id: str | None = None, details: str | None = None) -> Failure:
        kind: FailureKind = next((name for name, cls_ in _KINDS.items() if isinstance(error, cls_)), "stage")
        return cls(kind, error.message, error.hint, details, request_id)

    def error(self, stage: str) -> OmniError:
        """Rebuild the exception, in the command's process."""
        if self.kind in _KINDS:
            return _KINDS[self.kind](self.message, hint=self.hint)
        name = f"stage `{stage}`: "
        return StageError(
            self.message if self.message.startswith(name) else name + self.message,
            stage=stage,
            request_id=self.request_id,
            hint=self.hint,
            details=self.details,
        )


class Progress(msgspec.Struct, frozen=True, tag=True):
    request_id: str
    done: int
    total: int | None
    unit: Literal["token", "step"]


class Alive(msgspec.Struct, frozen=True, tag=True):
    """The stage made a step without output."""


class TextChunk(msgspec.Struct, frozen=True, tag=True):
    request_id: str
    text: str


class Text(msgspec.Struct, frozen=True):
    text: str
    token_ids: tuple[int, ...]
    finish_reason: str


class Audio(msgspec.Struct, frozen=True):
    samples: Array
    sample_rate: int


class FileSound(msgspec.Struct, frozen=True):
    """As `omni_cli.outputs.VideoSound`."""

    sample_rate: int
    num_samples: int


class VideoFile(msgspec.Struct, frozen=True):
    """As `omni_cli.outputs.VideoOutput`; `fps` is a numerator and a denominator."""

    content: bytes
    preview: bytes
    width: int
    height: int
    num_frames: int
    fps: tuple[int, Annotated[int, msgspec.Meta(ge=1)]]
    sound: FileSound | None = None
    frames: Array | None = None


class HandoffChunk(msgspec.Struct, frozen=True, tag=True):
    """A part of the next stage's input, sent while this stage continues; the last part precedes `RequestDone`."""

    request_id: str
    handoff: bytes
    is_last: bool


class WaveformChunk(msgspec.Struct, frozen=True, tag=True):
    """The next part of a request's audio. `RequestDone` does not repeat audio that was sent in chunks."""

    request_id: str
    audio: Audio


class RequestDone(msgspec.Struct, frozen=True, tag=True):
    """A request that a stage has finished: measurements, output, and the next stage's input.

    `notes` are sentences for the user on what the stage changed about it.
    """

    request_id: str
    trace: dict[str, Any]
    text: Text | None = None
    audio: Audio | None = None
    more_audio: tuple[Audio, ...] = ()
    images: tuple[Array, ...] = ()
    videos: tuple[VideoFile, ...] = ()
    tensors: dict[str, Array] = {}
    handoff: bytes | None = None
    notes: tuple[str, ...] = ()


Report = (
    StageReady
    | Failure
    | Progress
    | Alive
    | TextChunk
    | HandoffChunk
    | WaveformChunk
    | RequestDone
    | MemoryReport
    | CountersReport
    | RecordingReport
)

# Raised when bytes are not a valid message.
DecodeError = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

# The code of msgpack's extension types for a file at any depth of `StageRequest.call_files`.
_FILE = 1
_decode_file = msgspec.msgpack.Decoder(CallFileInput).decode


def _read_extension(code: int, data: memoryview) -> CallFileInput:
    if code != _FILE:
        raise ValueError(f"there is no extension {code}")
    return _decode_file(data)


def file_extension(file: CallFileInput) -> msgspec.msgpack.Ext:
    """Return a file in the form that it has within `StageRequest.call_files`."""
    return msgspec.msgpack.Ext(_FILE, encode(file))


encode = msgspec.msgpack.Encoder().encode
decode_command = msgspec.msgpack.Decoder(Command, ext_hook=_read_extension).decode
decode_report = msgspec.msgpack.Decoder(Report).decode
