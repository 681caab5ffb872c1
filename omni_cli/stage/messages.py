"""Messages between the command's process and a stage's process: msgspec structs over a pipe, no pickle."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args

import msgspec
import numpy as np

from omni_cli.core.batches import split_by_size
from omni_cli.core.errors import (
    CheckpointError,
    DeadlineError,
    InputError,
    OmniError,
    OutputError,
    StageError,
    UsageError,
)
from omni_cli.requests.contents import CallFile, changed_items
from omni_cli.requests.events import AudioChunk, TextDelta
from omni_cli.requests.outputs import AudioOutput, GenerateRequest, TextOutput, VideoOutput
from omni_cli.requests.shared_samples import SharedSamples, open_samples
from omni_cli.stage.recording import RecordingCommand, RecordingReport

T = TypeVar("T")


class AddRequest(msgspec.Struct, frozen=True, tag=True):
    """A request for this stage: a prompt for the first one of a chain, the previous stage's stage output for others."""

    request: GenerateRequest


class AppendInput(msgspec.Struct, frozen=True, tag=True):
    """A further part of a request's stage output from the previous stage."""

    request_id: str
    stage_output: bytes
    is_last: bool


class AbortRequest(msgspec.Struct, frozen=True, tag=True):
    """Drop a request; the stage sends this back once it has, after its last report of the request."""

    request_id: str


class SleepStage(msgspec.Struct, frozen=True, tag=True):
    """Put a stage without requests to sleep; it answers with `SleepState`."""

    level: int


class WakeStage(msgspec.Struct, frozen=True, tag=True):
    """Put back what vLLM's `tags` name, by default all; the stage answers with `SleepState`."""

    tags: tuple[str, ...] | None = None


class StopStage(msgspec.Struct, frozen=True, tag=True):
    pass


Command = AddRequest | AppendInput | AbortRequest | SleepStage | WakeStage | StopStage | RecordingCommand


class SleepState(msgspec.Struct, frozen=True, tag=True):
    """Answer to `SleepStage` and `WakeStage`."""

    is_asleep: bool


class MemoryReport(msgspec.Struct, frozen=True, tag=True):
    """Peaks in bytes, of loading or since: device memory allocated and reserved, resident host memory."""

    device: int
    host: int
    reserved: int = 0


class CountersReport(msgspec.Struct, frozen=True, tag=True):
    """Counters since the stage began to load: graphs replayed, bytes copied."""

    counters: dict[str, float]


class StageReady(msgspec.Struct, frozen=True, tag=True):
    """A stage has loaded; `effective` settings and configuration keys (`settings`) are read back from the engine.

    `voices` are the speakers that a request may choose, `media` the kinds of media that the model takes, if it decides.
    """

    load_s: float
    effective: dict[str, Any]
    memory: MemoryReport
    settings: dict[str, Any] = {}
    execution_counters: dict[str, float] = {}
    voices: tuple[str, ...] = ()
    media: tuple[str, ...] | None = None


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
            error = _KINDS[self.kind](self.message, hint=self.hint)
            error.details = self.details
            return error
        name = f"stage `{stage}`: "
        return StageError(
            self.message if self.message.startswith(name) else name + self.message,
            stage=stage,
            request_id=self.request_id,
            hint=self.hint,
            details=self.details,
        )


class Progress(msgspec.Struct, frozen=True, tag=True):
    """`heard_s` are the seconds of its sound that a transcription has come to, and those there are."""

    request_id: str
    done: int
    total: int | None
    unit: Literal["token", "step"]
    num_input_tokens: int = 0
    heard_s: tuple[float, float] | None = None


class Alive(msgspec.Struct, frozen=True, tag=True):
    """The stage made a step without output."""


class StageOutputChunk(msgspec.Struct, frozen=True, tag=True):
    """A part of the next stage's input, sent while this stage continues; the last part precedes `RequestDone`."""

    request_id: str
    stage_output: bytes
    is_last: bool


class RequestDone(msgspec.Struct, frozen=True, tag=True):
    """A request that a stage has finished: measurements, output, and the next stage's input.

    Sound that was sent as `AudioChunk`s is not repeated. `notes` are sentences for the user on what the stage changed
    about it.
    """

    request_id: str
    trace: dict[str, Any]
    text: TextOutput | None = None
    audio: AudioOutput | None = None
    more_audio: tuple[AudioOutput, ...] = ()
    images: tuple[np.ndarray, ...] = ()
    videos: tuple[VideoOutput, ...] = ()
    tensors: dict[str, np.ndarray] = {}
    stage_output: bytes | None = None
    notes: tuple[str, ...] = ()


Report = (
    StageReady
    | Failure
    | Progress
    | Alive
    | TextDelta
    | StageOutputChunk
    | AudioChunk
    | RequestDone
    | AbortRequest
    | MemoryReport
    | CountersReport
    | SleepState
    | RecordingReport
)

# Raised when bytes are not a valid message.
DecodeError = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

# Codes of msgpack's extension types, for what it has no type for.
_ARRAY, _FILE, _FRACTION, _SHARED = range(4)
_Dtype = Literal["uint8", "int16", "int32", "int64", "float32", "float64"]


class _Array(msgspec.Struct, frozen=True):
    """A numpy array as row-major bytes."""

    data: memoryview
    shape: tuple[Annotated[int, msgspec.Meta(ge=0)], ...]
    dtype: _Dtype


def _sendable(value: object) -> object:
    """Return a value that msgpack has no type for in a form that it can send."""
    match value:
        case SharedSamples() if value.path is not None:
            return msgspec.msgpack.Ext(_SHARED, _encode((str(value.path), len(value))))
        case np.ndarray():
            if value.dtype.name not in get_args(_Dtype):
                raise TypeError(f"arrays of {value.dtype} are not sent")
            data = np.ascontiguousarray(value).reshape(-1).view(np.uint8).data
            return msgspec.msgpack.Ext(_ARRAY, _encode(_Array(data, value.shape, value.dtype.name)))
        case Mapping():
            return dict(value)
        case Fraction():
            return msgspec.msgpack.Ext(_FRACTION, _encode(value.as_integer_ratio()))
    raise TypeError(f"values of type {type(value).__name__} are not sent")


def _value(code: int, data: memoryview) -> object:
    """Return the value of an extension; an array is a view of the message, unless that would not be aligned."""
    if code == _ARRAY:
        parts = _decode_array(data)
        try:
            array = np.frombuffer(parts.data, parts.dtype).reshape(parts.shape)
        except ValueError as error:
            what = f"an array of shape {parts.shape} of {parts.dtype}"
            raise msgspec.ValidationError(f"{len(parts.data)} bytes are not {what}") from error
        return np.require(array, requirements=["ALIGNED"])
    if code == _FILE:
        return _decode_file(data)
    if code == _SHARED:
        path, num_samples = _decode_shared(data)
        # A request that was dropped meanwhile has no samples.
        with suppress(OSError, ValueError), Path(path).open("rb") as file:
            return open_samples(file, num_samples)
        return np.empty(0, np.float32)
    if code == _FRACTION:
        return Fraction(*_decode_fraction(data))
    raise msgspec.ValidationError(f"there is no extension {code}")


_encode = msgspec.msgpack.Encoder(enc_hook=_sendable).encode
_decode_array = msgspec.msgpack.Decoder(_Array).decode
_decode_shared = msgspec.msgpack.Decoder(tuple[str, Annotated[int, msgspec.Meta(ge=1)]]).decode
_decode_fraction = msgspec.msgpack.Decoder(tuple[int, Annotated[int, msgspec.Meta(ge=1)]]).decode
_decode_file = msgspec.msgpack.Decoder(CallFile, ext_hook=_value).decode
decode_command = msgspec.msgpack.Decoder(Command, ext_hook=_value).decode
_Some = Annotated[list[T], msgspec.Meta(min_length=1)]
_decode_commands = msgspec.msgpack.Decoder(Command | _Some[Command], ext_hook=_value).decode
_decode_reports = msgspec.msgpack.Decoder(Report | _Some[Report], ext_hook=_value).decode


def decoder(kind: type[T]) -> msgspec.msgpack.Decoder[T]:
    """Return a decoder of structs or dataclasses with arrays and files, which `pack` encodes."""
    return msgspec.msgpack.Decoder(kind, ext_hook=_value)


def pack(value: object) -> bytes:
    """Encode a struct or dataclass. Raises `TypeError` for a value of a type that is not sent."""
    return _encode(value)


def sendable_request(request: GenerateRequest) -> GenerateRequest:
    """Return the request with its files marked: in JSON of any depth, one has to be told from an object."""
    files = changed_items(request.media.call_files, lambda file: msgspec.msgpack.Ext(_FILE, _encode(file)))
    return dataclasses.replace(request, media=dataclasses.replace(request.media, call_files=files))


def encode(message: Command | Report) -> bytes:
    """Encode a message. Raises `TypeError` for a value of a type that is not sent."""
    if isinstance(message, AddRequest):
        message = AddRequest(sendable_request(message.request))
    return _encode(message)


# An array that is kept keeps the whole message, of which it is a view.
_MOST_TOGETHER_BYTES = 1 << 20


def join(messages: Iterable[bytes]) -> Iterator[bytes]:
    """Make one of several encoded messages, up to 1 MiB; a larger message stays alone. Their order stays.

    What is one is written, read and handled at once.
    """
    for together in split_by_size(messages, len, _MOST_TOGETHER_BYTES):
        yield together[0] if len(together) == 1 else _encode([msgspec.Raw(message) for message in together])


def decode_commands(message: bytes) -> list[Command]:
    """Decode what `join` yields. Raises one of `DecodeError`."""
    commands = _decode_commands(message)
    return commands if isinstance(commands, list) else [commands]


def decode_reports(message: bytes) -> list[Report]:
    """Decode what `join` yields. Raises one of `DecodeError`."""
    reports = _decode_reports(message)
    return reports if isinstance(reports, list) else [reports]
