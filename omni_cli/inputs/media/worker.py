"""The main program of a process that decodes untrusted media, one at a time, within limits of memory and time.

It is started with the number of a connected socket as its only argument, and ends when the other side closes it.
"""

from __future__ import annotations

import os
import resource
import select
import socket
import sys
import threading
from pathlib import Path
from typing import BinaryIO

import numpy as np

from omni_cli.errors import InputError
from omni_cli.inputs.media import wire
from omni_cli.inputs.media.wire import AudioJob, Decoded, ImageJob, Job, Nothing, Refused, VideoJob

_UNLIMITED = resource.RLIM_INFINITY
# Below the engine: a flood of media must not slow down the requests that it works on.
_NICENESS = 5


def main() -> None:
    channel = socket.socket(fileno=int(sys.argv[1]))
    os.nice(_NICENESS)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    threading.Thread(target=_end_with_the_other_side, args=(channel.fileno(),), daemon=True).start()
    while True:
        try:
            message, descriptor = wire.receive_with_descriptor(channel)
        except EOFError:
            return
        try:
            reply, array = _decode(wire.decode_job(message), descriptor)
        finally:
            os.close(descriptor)
        wire.send(channel, reply)
        if array is not None:
            channel.sendall(array.reshape(-1).view(np.uint8).data)


def _decode(job: Job, descriptor: int) -> tuple[Decoded | Nothing | Refused, np.ndarray | None]:
    try:
        _import_decoder(job)
        with open(descriptor, "rb", closefd=False) as content:
            content.seek(0)
            _limit(job)
            try:
                return _run(job, content)
            finally:
                resource.setrlimit(resource.RLIMIT_DATA, (_UNLIMITED, _UNLIMITED))
    except InputError as error:
        return Refused(error.message, error.hint), None
    except MemoryError:
        return Refused(f"decoding the {job.name} needs more than {job.max_bytes // wire.MIB} MiB of memory"), None
    except Exception as error:  # noqa: BLE001 - whatever a library raises for such bytes is the medium's fault
        reason = str(error).partition("\n")[0] or type(error).__name__
        return Refused(f"cannot read the {job.name}: {reason[:200]}", "is the file damaged?"), None


def _import_decoder(job: Job) -> None:
    """Import before the limits, which are for the medium alone."""
    if isinstance(job, ImageJob):
        import omni_cli.inputs.media.images
    elif isinstance(job, AudioJob):
        import omni_cli.inputs.media.audio
    else:
        import omni_cli.inputs.media.video  # noqa: F401


def _run(job: Job, content: BinaryIO) -> tuple[Decoded | Nothing, np.ndarray | None]:
    match job:
        case ImageJob():
            from omni_cli.inputs.media.images import decode_alpha, decode_image

            decode = decode_alpha if job.alpha else decode_image
            image = decode(content, job.name, max_pixels=job.max_pixels)
            return _described(image.pixels, image.notes)
        case AudioJob():
            from omni_cli.inputs.media.audio import decode_audio, decode_sound

            if job.of_video:
                audio = decode_sound(content, job.name, max_s=job.max_s)
            else:
                audio = decode_audio(content, job.name, max_s=job.max_s, mono=job.mono)
            if audio is None:
                return Nothing(), None
            return _described(audio.samples, audio.notes, rate=audio.sample_rate)
        case VideoJob():
            from omni_cli.inputs.media.video import decode_video

            decoded = decode_video(content, job.name, max_pixels=job.max_pixels, max_s=job.max_s, indices=job.indices)
            video = decoded.video
            return _described(
                video.frames,
                decoded.notes,
                rate=video.fps,
                total_num_frames=video.total_num_frames,
                frames_indices=video.frames_indices,
            )


def _described(array: np.ndarray, notes: tuple[str, ...], **fields: object) -> tuple[Decoded, np.ndarray]:
    contiguous = np.ascontiguousarray(array)
    return Decoded(contiguous.shape, contiguous.dtype.name, notes, **fields), contiguous  # type: ignore[arg-type]


def _limit(job: Job) -> None:
    """Limit the memory and the processor time that this process may use from now on."""
    used_s = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
    # The kernel ends the process (SIGXCPU), whatever a decoder is doing.
    resource.setrlimit(resource.RLIMIT_CPU, (int(used_s) + 1 + job.max_cpu_s, _UNLIMITED))
    status = Path("/proc/self/status")
    if status.exists():  # other systems have no such limit, or do not keep it
        fields = dict(line.split(":", 1) for line in status.read_text().splitlines())
        resource.setrlimit(resource.RLIMIT_DATA, (int(fields["VmData"].split()[0]) * 1024 + job.max_bytes, _UNLIMITED))


def _end_with_the_other_side(descriptor: int) -> None:
    """End this process when the one that it decodes for has ended, even in the middle of a medium."""
    poller = select.poll()
    poller.register(descriptor, select.POLLHUP)
    poller.poll()
    os._exit(0)


if __name__ == "__main__":
    main()
