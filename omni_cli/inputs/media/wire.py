"""Messages between a process that has media and one that decodes them."""

from __future__ import annotations

import math
import socket
import struct
from typing import Literal

import msgspec
import numpy as np

MIB = 2**20


class ImageJob(msgspec.Struct, frozen=True, tag="image"):
    """Decode an image of at most `max_pixels`, or only its transparency (`alpha`)."""

    name: str
    max_pixels: int
    alpha: bool = False
    max_cpu_s: int = 10

    @property
    def max_bytes(self) -> int:
        # What Pillow and we hold at once of an image with 16 bits per channel, transparency and a rotation.
        return 256 * MIB + 32 * self.max_pixels


class AudioJob(msgspec.Struct, frozen=True, tag="audio"):
    """Decode the audio of a file, or of a video (`of_video`), which may have none."""

    name: str
    max_s: float
    mono: bool = True
    of_video: bool = False
    max_cpu_s: int = 20

    max_bytes = 1024 * MIB


class VideoJob(msgspec.Struct, frozen=True, tag="video"):
    """Decode the frames `indices` of a video, or all (None), of at most `max_pixels` together; see `decode_video`."""

    name: str
    max_pixels: int
    max_s: float
    indices: tuple[int, ...] | None
    max_cpu_s: int = 60

    @property
    def max_bytes(self) -> int:
        # The frames, a copy while they become one array, and those that a decoder refers to.
        return 1024 * MIB + 6 * self.max_pixels


Job = ImageJob | AudioJob | VideoJob


class Decoded(msgspec.Struct, frozen=True, tag="decoded"):
    """The header of an array, whose bytes follow; `rate` is that of samples in Hz, or of frames per second.

    `notes` are sentences on what was changed or left out. `total_num_frames` and `frames_indices` as in
    `omni_cli.outputs.Video`.
    """

    shape: tuple[int, ...]
    dtype: Literal["uint8", "float32"]
    notes: tuple[str, ...] = ()
    rate: float = 0.0
    total_num_frames: int = 0
    frames_indices: tuple[int, ...] = ()

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


class Nothing(msgspec.Struct, frozen=True, tag="nothing"):
    """A video without sound."""


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """The medium cannot be used; as `omni_cli.errors.InputError`."""

    message: str
    hint: str | None = None


Reply = Decoded | Nothing | Refused

encode = msgspec.msgpack.Encoder().encode
decode_job = msgspec.msgpack.Decoder(Job).decode
decode_reply = msgspec.msgpack.Decoder(Reply).decode

_LENGTH = struct.Struct("<I")
_MAX_MESSAGE_BYTES = MIB


def send(channel: socket.socket, message: Job | Reply, descriptors: tuple[int, ...] = ()) -> None:
    """Send a message, and with a job the descriptor of its file."""
    content = encode(message)
    framed = _LENGTH.pack(len(content)) + content
    sent = socket.send_fds(channel, [framed], descriptors) if descriptors else 0
    channel.sendall(framed[sent:])


def receive(channel: socket.socket) -> bytes:
    """Receive a message. Raises `EOFError` when the other side has closed, `ValueError` for one that is too long."""
    return _exactly(channel, _length(_exactly(channel, _LENGTH.size)))


def receive_with_descriptor(channel: socket.socket) -> tuple[bytes, int]:
    """Receive a message and the descriptor sent with it."""
    beginning, descriptors, _, _ = socket.recv_fds(channel, _LENGTH.size, 1)
    if not descriptors:
        raise EOFError
    beginning += _exactly(channel, _LENGTH.size - len(beginning))
    return _exactly(channel, _length(beginning)), descriptors[0]


def receive_into(channel: socket.socket, array: np.ndarray) -> None:
    """Fill a contiguous array with the bytes that follow a `Decoded`."""
    left = array.reshape(-1).view(np.uint8).data
    while left:
        count = channel.recv_into(left)
        if not count:
            raise EOFError
        left = left[count:]


def _exactly(channel: socket.socket, size: int) -> bytes:
    content = np.empty(size, np.uint8)
    receive_into(channel, content)
    return content.tobytes()


def _length(field: bytes) -> int:
    (length,) = _LENGTH.unpack(field)
    if length > _MAX_MESSAGE_BYTES:
        raise ValueError(f"a message of {length} bytes")
    return int(length)
