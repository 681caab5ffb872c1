"""A process that decodes untrusted media, one at a time, within limits of memory and time, and its messages.

It is started with the number of a connected socket as its only argument, and ends when the other side closes it.
"""

from __future__ import annotations

import contextlib
import importlib
import math
import os
import resource
import select
import socket
import struct
import sys
import threading
from pathlib import Path
from typing import BinaryIO, Literal

import msgspec
import numpy as np

from omni_cli.core.errors import InputError

_NO_LIMIT = resource.RLIM_INFINITY
# Below the engine: a flood of media must not slow down the requests that it works on.
_NICENESS = 5
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
    """Decode the audio of a file, or of a video (`of_video`), which may have none.

    For speech to transcribe a second file comes with it, into which a long one is written.
    """

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
_DECODERS: dict[type[Job], str] = {ImageJob: "images", AudioJob: "audio", VideoJob: "video"}


class Decoded(msgspec.Struct, frozen=True, tag="decoded"):
    """The header of an array, whose bytes follow; `rate` is that of samples in Hz, or of frames per second.

    `notes` are sentences on what was changed or left out. `total_num_frames` and `frames_indices` as in
    `omni_cli.requests.contents.Video`. With `is_in_file` the array is in the second file, and no bytes follow.
    """

    shape: tuple[int, ...]
    dtype: Literal["uint8", "float32"]
    notes: tuple[str, ...] = ()
    rate: float = 0.0
    total_num_frames: int = 0
    frames_indices: tuple[int, ...] = ()
    is_in_file: bool = False

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


class Begun(msgspec.Struct, frozen=True, tag="begun"):
    """The process has started, with its imports; from now on it decodes."""


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """The medium cannot be used; as `omni_cli.core.errors.InputError`."""

    message: str
    hint: str | None = None


Reply = Begun | Decoded | Refused | None
"""None is a video without sound."""

decode_job = msgspec.msgpack.Decoder(Job).decode
decode_reply = msgspec.msgpack.Decoder(Reply).decode

_LENGTH = struct.Struct("<I")
_MAX_MESSAGE_BYTES = MIB


def send(channel: socket.socket, message: Job | Reply, descriptors: tuple[int, ...] = ()) -> None:
    """Send a message, and with a job the descriptor of its file."""
    content = msgspec.msgpack.encode(message)
    framed = _LENGTH.pack(len(content)) + content
    sent = socket.send_fds(channel, [framed], descriptors) if descriptors else 0
    channel.sendall(framed[sent:])


def receive(channel: socket.socket) -> bytes:
    """Receive a message. Raises `EOFError` when the other side has closed, `ValueError` for one that is too long."""
    return _exactly(channel, _length(_exactly(channel, _LENGTH.size)))


def receive_with_descriptors(channel: socket.socket) -> tuple[bytes, list[int]]:
    """Receive a message and the one or two descriptors sent with it."""
    beginning, descriptors, _, _ = socket.recv_fds(channel, _LENGTH.size, 2)
    if not descriptors:
        raise EOFError
    beginning += _exactly(channel, _LENGTH.size - len(beginning))
    return _exactly(channel, _length(beginning)), descriptors


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


def main() -> None:
    channel = socket.socket(fileno=int(sys.argv[1]))
    os.nice(_NICENESS)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    threading.Thread(target=_end_with_the_other_side, args=(channel.fileno(),), daemon=True).start()
    while True:
        try:
            message, descriptors = receive_with_descriptors(channel)
        except EOFError:
            return
        try:
            reply, array = _decode(decode_job(message), descriptors, channel)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        send(channel, reply)
        if array is not None:
            channel.sendall(array.reshape(-1).view(np.uint8).data)


def _decode(job: Job, descriptors: list[int], channel: socket.socket) -> tuple[Reply, np.ndarray | None]:
    try:
        # Before the limits, which are for the medium alone.
        importlib.import_module(f"omni_cli.requests.media.{_DECODERS[type(job)]}")
        send(channel, Begun())
        with contextlib.ExitStack() as stack:
            content = stack.enter_context(open(descriptors[0], "rb", closefd=False))
            others = [stack.enter_context(open(each, "r+b", closefd=False)) for each in descriptors[1:]]
            content.seek(0)
            _limit(job)
            try:
                return _run(job, content, *others)
            finally:
                for limit in (resource.RLIMIT_DATA, resource.RLIMIT_CPU):
                    resource.setrlimit(limit, (_NO_LIMIT, _NO_LIMIT))
    except InputError as error:
        return Refused(error.message, error.hint), None
    except MemoryError:
        return Refused(f"decoding the {job.name} needs more than {job.max_bytes // MIB} MiB of memory"), None
    except Exception as error:  # noqa: BLE001 - whatever a library raises for such bytes is the medium's fault
        reason = str(error).partition("\n")[0] or type(error).__name__
        return Refused(f"cannot read the {job.name}: {reason[:200]}", "is the file damaged?"), None


def _run(job: Job, content: BinaryIO, file: BinaryIO | None = None) -> tuple[Decoded | None, np.ndarray | None]:
    match job:
        case ImageJob():
            from omni_cli.requests.media.images import decode_alpha, decode_image

            decode = decode_alpha if job.alpha else decode_image
            return _describe(*decode(content, job.name, max_pixels=job.max_pixels))
        case AudioJob():
            from omni_cli.requests.media.audio import DecodedAudio, decode_audio, decode_sound

            audio: DecodedAudio | None
            if job.of_video:
                audio = decode_sound(content, job.name, max_s=job.max_s)
            else:
                audio = decode_audio(content, job.name, max_s=job.max_s, mono=job.mono, file=file)
            if audio is None:
                return None, None
            if audio.num_written:
                shape = (audio.num_written,)
                return Decoded(shape, "float32", audio.notes, audio.sample_rate, is_in_file=True), None
            return _describe(audio.samples, audio.notes, rate=audio.sample_rate)
        case VideoJob():
            from omni_cli.requests.media.video import decode_video

            video, notes = decode_video(
                content, job.name, max_pixels=job.max_pixels, max_s=job.max_s, indices=job.indices
            )
            numbers = {"total_num_frames": video.total_num_frames, "frames_indices": video.frames_indices}
            return _describe(video.frames, notes, rate=video.fps, **numbers)


def _describe(array: np.ndarray, notes: tuple[str, ...], **fields: object) -> tuple[Decoded, np.ndarray]:
    contiguous = np.ascontiguousarray(array)
    return Decoded(contiguous.shape, contiguous.dtype.name, notes, **fields), contiguous  # type: ignore[arg-type]


def _limit(job: Job) -> None:
    """Limit the memory and the processor time that this process may use from now on."""
    used_s = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
    # The kernel ends the process (SIGXCPU), whatever a decoder is doing.
    resource.setrlimit(resource.RLIMIT_CPU, (int(used_s) + 1 + job.max_cpu_s, _NO_LIMIT))
    status = Path("/proc/self/status")
    if status.exists():  # other systems have no such limit, or do not keep it
        fields = dict(line.split(":", 1) for line in status.read_text().splitlines())
        resource.setrlimit(resource.RLIMIT_DATA, (int(fields["VmData"].split()[0]) * 1024 + job.max_bytes, _NO_LIMIT))


def _end_with_the_other_side(descriptor: int) -> None:
    """End this process when the one that it decodes for has ended, even in the middle of a medium."""
    poller = select.poll()
    poller.register(descriptor, select.POLLHUP)
    poller.poll()
    os._exit(0)


if __name__ == "__main__":
    main()
