"""Decode video files to RGB frames: evenly spaced ones, or all."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from omni_cli.errors import InputError
from omni_cli.inputs.files import open_input
from omni_cli.inputs.images import Warn
from omni_cli.outputs import Video
from omni_cli.video_encoding import MAX_FPS

if TYPE_CHECKING:
    import av
    import numpy as np

# vLLM's default, and enough for its video models.
MAX_NUM_FRAMES = 32
MAX_VIDEO_S = 600.0
MAX_VIDEO_PIXELS = 256 * 1024 * 1024


def load_video(path: Path, warn: Warn, max_num_frames: int | None = MAX_NUM_FRAMES) -> Video:
    """Decode a video file; `max_num_frames` evenly spaced frames of a longer one, None means every frame.

    At most `MAX_VIDEO_S` seconds, and `MAX_VIDEO_PIXELS` pixels in all frames that are kept. Sound is not read; `warn`
    is called where there is some. Raises `InputError` for a file that cannot be used.
    """
    with open_input(path, "video file") as file:
        return decode_video(file, f"video file `{path}`", warn, max_num_frames=max_num_frames)


def load_sound(path: Path) -> tuple[np.ndarray, int] | None:
    """Decode the sound of a video file: float32 (num_samples, channels) and its sample rate in Hz; None if it has none.

    At most `MAX_VIDEO_S` seconds, which the frames do not limit. Raises `InputError` for sound that cannot be used.
    """
    import av
    import numpy as np

    with open_input(path, "video file") as file:
        try:
            with av.open(file, mode="r", metadata_errors="replace") as container:
                if not container.streams.audio:
                    return None
                stream = _decodable(container.streams.audio[0], f"sound of the video file `{path}`")
                planar, parts, num_samples = av.AudioResampler(format="fltp"), [], 0
                for frame in itertools.chain(container.decode(stream), [None]):
                    parts += [part.to_ndarray() for part in planar.resample(frame)]
                    num_samples += frame.samples if frame else 0
                    if num_samples > MAX_VIDEO_S * stream.rate:
                        raise InputError(
                            f"the sound of the video file `{path}` is longer than {MAX_VIDEO_S:g} s, the maximum",
                            hint="cut it",
                        )
                return np.concatenate(parts, axis=1).T, stream.rate
        except (av.error.FFmpegError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise InputError(f"cannot read the sound of the video file `{path}`: {reason}") from error


def decode_video(
    file: BinaryIO,
    name: str,
    warn: Warn,
    max_pixels: int = MAX_VIDEO_PIXELS,
    max_s: float = MAX_VIDEO_S,
    max_num_frames: int | None = MAX_NUM_FRAMES,
) -> Video:
    """Decode a video from an open file; `name` identifies it in messages."""
    try:
        import av
    except ImportError as error:
        raise InputError(f"reading the {name} needs PyAV", hint="pip install 'omni-cli[video]'") from error
    import numpy as np

    try:
        total, fps = _count_frames(file, name, warn, max_s)
        # As vLLM's loaders do.
        wanted = np.linspace(0, total - 1, min(total, max_num_frames or total), dtype=int)
        file.seek(0)
        frames = np.stack(list(_frames(file, name, {int(index) for index in wanted}, max_pixels)))
    except (av.error.FFmpegError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"cannot read the {name}: {reason}", hint="MP4, MOV, WebM, MKV and AVI can be read") from error
    if len(frames) < len(wanted):
        raise InputError(f"the {name} is truncated: it has fewer frames than its header says")
    return Video(frames, fps=fps, total_num_frames=total, frames_indices=tuple(int(index) for index in wanted))


def _count_frames(file: BinaryIO, name: str, warn: Warn, max_s: float) -> tuple[int, float]:
    """The number of frames, from the packets, and the frame rate; decodes nothing."""
    import av

    with av.open(file, mode="r", metadata_errors="replace") as container:
        stream = _stream(container, name)
        fps = float(stream.average_rate or stream.guessed_rate or 0)
        if not 0 < fps <= MAX_FPS:  # beyond it a header is more likely broken than intended
            raise InputError(f"the {name} has no usable frame rate")
        total = 0
        for packet in container.demux(stream):
            total += packet.size > 0
            if total > max_s * fps:
                raise InputError(f"the {name} is longer than {max_s:.0f} s, the maximum", hint="cut it")
        has_sound = bool(container.streams.audio)
    if not total:
        raise InputError(f"the {name} has no frames")
    if has_sound:
        warn(f"the {name} has sound, which is not used")
    return total, fps


def _frames(file: BinaryIO, name: str, wanted: set[int], max_pixels: int) -> Iterator[np.ndarray]:
    """The wanted frames, uint8 RGB (height, width, 3), as a player shows them."""
    import av
    import numpy as np

    with av.open(file, mode="r", metadata_errors="replace") as container:
        stream = _stream(container, name)
        stream.thread_type = "AUTO"
        if stream.width * stream.height * len(wanted) > max_pixels:
            raise InputError(
                f"the {name} has {stream.width}x{stream.height} pixels per frame; the maximum is "
                f"{max_pixels // len(wanted)} for {len(wanted)} frames",
                hint="scale it down",
            )
        for index, frame in enumerate(container.decode(stream)):
            if index in wanted:
                pixels = frame.to_ndarray(format="rgb24")
                yield np.ascontiguousarray(np.rot90(pixels, round(frame.rotation / 90)))


def _stream(container: av.container.InputContainer, name: str) -> Any:
    if not container.streams.video:
        raise InputError(f"the {name} has no video stream")
    return _decodable(container.streams.video[0], name)


def _decodable(stream: Any, name: str) -> Any:
    if stream.codec_context is None:
        raise InputError(f"the {name} has a format that cannot be decoded here")
    return stream
