"""Read media from files and requests, decoded in separate processes, which a hostile file can at worst end."""

from __future__ import annotations

import atexit
import functools
import math
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, Concatenate, ParamSpec, TypeVar

import msgspec
import numpy as np

from omni_cli.core.child_python import python_command
from omni_cli.core.errors import InputError, OmniError
from omni_cli.core.machine import count_usable_cores
from omni_cli.requests.contents import Video
from omni_cli.requests.files import open_input
from omni_cli.requests.media.audio import MAX_AUDIO_S, MAX_SPEECH_S
from omni_cli.requests.media.images import MAX_IMAGE_PIXELS
from omni_cli.requests.media.video import MAX_VIDEO_PIXELS, MAX_VIDEO_S
from omni_cli.requests.media.worker import (
    AudioJob,
    Begun,
    Decoded,
    ImageJob,
    Job,
    Refused,
    VideoJob,
    decode_reply,
    receive,
    receive_into,
    send,
)
from omni_cli.requests.shared_samples import new_file, share_samples

P = ParamSpec("P")
T = TypeVar("T")
Warn = Callable[[str], None]
FrameChoice = tuple[Sequence[int], Mapping[str, Any]]
ChooseFrames = Callable[[int, float], FrameChoice]
"""Returns which frames a model sees, and vLLM's metadata on them, for the number and the rate of all."""
FIRST_FRAME: FrameChoice = (0,), {"frames_indices": (0,), "do_sample_frames": False}
# Videos, which take the longest, have workers of their own, so that other media never wait for them.
_NUM_WORKERS = {"video": 2, "other": max(4, count_usable_cores())}
_MAX_IDLE = 2
# Limits of their own, since no medium makes them longer: a process's start with its imports, and its end.
_START_S, _END_S = 300.0, 30.0
# A decoder may take this many times its limit on processor time: on a busy machine it waits for a processor.
_PATIENCE = 6.0
_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "2"}


class MediaReader:
    """Decodes media for one requester; `warn` is called with a sentence on everything that is changed or left out.

    `name` identifies a medium in messages. The methods block, and raise `InputError` for a medium that cannot be used
    or exceeds a limit.
    """

    def __init__(self, warn: Warn, requester: Requester | None = None) -> None:
        self._warn = warn
        self._requester = requester

    def image(self, content: BinaryIO, name: str, *, max_pixels: int = MAX_IMAGE_PIXELS) -> np.ndarray:
        """Decode to uint8 RGB (height, width, 3), turned by its EXIF orientation, with transparency put on white."""
        return self._require(ImageJob(name, max_pixels), content)[1]

    def alpha(self, content: BinaryIO, name: str, *, max_pixels: int = MAX_IMAGE_PIXELS) -> np.ndarray:
        """Decode the transparency of an image to uint8 (height, width): 0 is fully transparent."""
        return self._require(ImageJob(name, max_pixels, alpha=True), content)[1]

    def audio(
        self, content: BinaryIO, name: str, *, max_s: float = MAX_AUDIO_S, mono: bool = True
    ) -> tuple[np.ndarray, int]:
        """Decode to float32 (num_samples,), with `mono` False (num_samples, channels), and the sample rate in Hz."""
        header, samples = self._require(AudioJob(name, max_s, mono), content)
        return samples, int(header.rate)

    def speech(self, content: BinaryIO, name: str, *, max_s: float = MAX_SPEECH_S) -> tuple[np.ndarray, int]:
        """Decode a sound of any length to transcribe, as `audio`; a long one is read when it is needed."""
        header, samples = self._require(AudioJob(name, max_s, max_cpu_s=20 + int(max_s / 60)), content, new_file())
        return samples, int(header.rate)

    def sound(self, content: BinaryIO, name: str) -> tuple[np.ndarray, int] | None:
        """Decode the sound of a video, as `audio` with its channels; None if it has none."""
        decoded = self._decode(AudioJob(name, MAX_VIDEO_S, mono=False, of_video=True), content)
        return None if decoded is None else (decoded[1], int(decoded[0].rate))

    def video(
        self,
        content: BinaryIO,
        name: str,
        /,
        choose: ChooseFrames | None = None,
        *,
        max_pixels: int = MAX_VIDEO_PIXELS,
        **limits: Any,
    ) -> Video:
        """Decode the frames that `choose` returns, without it all; `limits` are further ones of `VideoJob`."""
        job = VideoJob(name, max_pixels, MAX_VIDEO_S, None if choose is None else (), **limits)
        header, frames = self._require(job, content)
        if choose is None:
            return Video(frames, header.rate, header.total_num_frames, header.frames_indices)
        # Where packets are hidden, or hold half a frame, decoding alone tells how many frames there are.
        for _ in range(2):
            total = header.total_num_frames
            answer = choose(total, header.rate) if total > 1 else FIRST_FRAME
            chosen, metadata = answer if answer[0] else FIRST_FRAME  # vLLM gives some models no frame of 0.1 s
            most = max_pixels // max(1, frames.shape[1] * frames.shape[2])
            if 1 < most < len(chosen):
                self._warn(f"of the {name} a limit of {max_pixels:,} pixels leaves {most} of {len(chosen)} frames")
                chosen = tuple(chosen[index * (len(chosen) - 1) // (most - 1)] for index in range(most))
                metadata = {**metadata, "frames_indices": chosen, "do_sample_frames": False}
            header, frames = self._require(msgspec.structs.replace(job, indices=tuple(chosen)), content)
            if header.total_num_frames == total:
                break
        else:
            raise InputError(f"cannot read the {name}: it has another number of frames each time")
        count, rate = len(chosen), len(chosen) * header.rate / total
        self._warn(f"the model sees {count} frame{'s' * (count > 1)} of the {name}, {rate:.3g} per second, of {total}")
        return Video(frames, header.rate, total, tuple(metadata["frames_indices"]), metadata["do_sample_frames"])

    def _require(self, job: Job, content: BinaryIO, file: BinaryIO | None = None) -> tuple[Decoded, np.ndarray]:
        decoded = self._decode(job, content, file)
        assert decoded is not None
        return decoded

    def _decode(self, job: Job, content: BinaryIO, file: BinaryIO | None = None) -> tuple[Decoded, np.ndarray] | None:
        decoded = media_pool().decode(job, content, self._requester, file)
        for note in () if decoded is None else decoded[0].notes:
            self._warn(note)
        return decoded


def _loader(
    read: Callable[Concatenate[MediaReader, BinaryIO, str, P], T], kind: str
) -> Callable[Concatenate[Path, Warn, P], T]:
    """Return a function that reads a file as a method of `MediaReader`, with its options."""

    def load(path: Path, warn: Warn, /, *args: P.args, **options: P.kwargs) -> T:
        with open_input(path, f"{kind} file") as file:
            return read(MediaReader(warn), file, f"{kind} file `{path}`", *args, **options)

    return load


load_image = _loader(MediaReader.image, "image")
load_audio = _loader(MediaReader.audio, "audio")
load_speech = _loader(MediaReader.speech, "audio")
load_video = _loader(MediaReader.video, "video")
load_sound = _loader(MediaReader.sound, "video")


class Requester:
    """One client of the pool, which may cancel the decoding that it waits for."""

    is_cancelled = False


class MediaPool:
    """Worker processes, started when they are needed. For use in threads, which wait while all workers are busy."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._idle: list[_Worker] = []
        self._busy: dict[str, dict[_Worker, Requester]] = {kind: {} for kind in _NUM_WORKERS}
        self._num_ends = 0

    def decode(
        self, job: Job, content: BinaryIO, requester: Requester | None = None, file: BinaryIO | None = None
    ) -> tuple[Decoded, np.ndarray] | None:
        """Decode a file; None is a video without sound. A long recording is written to `file`, if there is one.

        Raises `InputError` for a medium that cannot be used or exceeds a limit of `job`, `OmniError` once the requester
        is cancelled.
        """
        kind = "video" if isinstance(job, VideoJob) else "other"
        worker = self._take(kind, requester or Requester())
        try:
            return worker.decode(job, content, file)
        finally:
            self._give_back(kind, worker)

    def cancel(self, requester: Requester) -> None:
        """End the decoding for a requester, now and later."""
        with self._changed:
            requester.is_cancelled = True
            for worker in (worker for busy in self._busy.values() for worker in busy if busy[worker] is requester):
                worker.kill()
            self._changed.notify_all()

    def end_all(self) -> None:
        """End all processes and all decoding in progress; later media get new processes."""
        with self._changed:
            self._num_ends += 1
            for worker, requester in (pair for busy in self._busy.values() for pair in busy.items()):
                requester.is_cancelled = True
                worker.kill()
            idle, self._idle = self._idle, []
            self._changed.notify_all()
        for worker in idle:
            worker.end()

    def _take(self, kind: str, requester: Requester) -> _Worker:
        busy = self._busy[kind]
        with self._changed:
            num_ends = self._num_ends
            while not requester.is_cancelled and num_ends == self._num_ends:
                if len(busy) == _NUM_WORKERS[kind]:
                    self._changed.wait()
                    continue
                worker = self._idle.pop() if self._idle else _Worker()
                if worker.is_running:  # the system may have ended an idle one
                    busy[worker] = requester
                    return worker
                worker.end()
        raise OmniError("the decoding of media was cancelled")

    def _give_back(self, kind: str, worker: _Worker) -> None:
        with self._changed:
            del self._busy[kind][worker]
            is_kept = worker.is_usable and len(self._idle) < _MAX_IDLE
            if is_kept:
                self._idle.append(worker)
            self._changed.notify_all()
        if not is_kept:
            worker.end()


@functools.cache
def media_pool() -> MediaPool:
    """Return the pool of this process."""
    pool = MediaPool()
    atexit.register(pool.end_all)
    return pool


class _Worker:
    def __init__(self) -> None:
        self.is_usable = True
        self._channel, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                python_command("-m", "omni_cli.requests.media.worker", str(theirs.fileno())),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={**os.environ, **_ENVIRONMENT},
                pass_fds=(theirs.fileno(),),
                start_new_session=True,  # Ctrl-C is for the command
            )

    def decode(self, job: Job, content: BinaryIO, file: BinaryIO | None = None) -> tuple[Decoded, np.ndarray] | None:
        self.is_usable = False  # an interrupt would leave half an answer in the channel
        self._channel.settimeout(_START_S)
        has_begun = False
        array: np.ndarray | None = None
        try:
            send(self._channel, job, (content.fileno(), *(() if file is None else (file.fileno(),))))
            reply = decode_reply(receive(self._channel))
            if has_begun := isinstance(reply, Begun):
                self._channel.settimeout(_PATIENCE * (1 + job.max_cpu_s))
                reply = decode_reply(receive(self._channel))
            if isinstance(reply, Decoded) and reply.is_in_file:
                if file is None:
                    raise ValueError("an unexpected file")
                array = share_samples(file, math.prod(reply.shape))
            elif isinstance(reply, Decoded):
                if reply.num_bytes > job.max_bytes:
                    raise ValueError(f"{reply.num_bytes} bytes of pixels or samples")
                array = np.empty(reply.shape, reply.dtype)
                receive_into(self._channel, array)
        except (OSError, EOFError, ValueError, msgspec.DecodeError) as error:
            raise self._failure(job, error, has_begun=has_begun) from error
        self.is_usable = True
        if isinstance(reply, Refused):
            raise InputError(reply.message, hint=reply.hint)
        return None if array is None or not isinstance(reply, Decoded) else (reply, array)

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        self._process.kill()

    def end(self) -> None:
        self.kill()
        self._process.wait()
        self._channel.close()

    def _failure(self, job: Job, error: Exception, *, has_begun: bool) -> OmniError:
        """Describe what has happened to this worker, and end it."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_S if isinstance(error, (EOFError, ConnectionError)) else 0)
        code = self._process.returncode
        is_late = code is None and isinstance(error, TimeoutError)
        if (is_late and has_begun) or code == -signal.SIGXCPU:
            return InputError(f"the {job.name} takes longer than {job.max_cpu_s} s to decode")
        if is_late or code == 1:
            return OmniError("the process that decodes media could not start", hint="`omni doctor` checks the packages")
        reason = f"signal {-code}" if code is not None and code < 0 else f"an invalid message ({error})"
        return InputError(f"cannot read the {job.name}: its decoder ended with {reason}", hint="is the file damaged?")


@contextmanager
def in_memory(content: bytes) -> Iterator[BinaryIO]:
    """Yield `content` as a file with a descriptor, which another process can read."""
    with new_file() as file:
        file.write(content)
        file.flush()
        yield file
