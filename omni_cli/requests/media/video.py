"""Decode video to RGB frames, chosen ones or all, as a player shows them."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import numpy as np

from omni_cli.config.bounds import MAX_FPS
from omni_cli.core.errors import InputError
from omni_cli.requests.contents import Video
from omni_cli.requests.media.containers import MAX_FRAME_PIXELS, Track, open_container
from omni_cli.requests.media.images import on_white

if TYPE_CHECKING:
    import av

MAX_VIDEO_S = 600.0
MAX_VIDEO_PIXELS = 256 * 1024 * 1024
# Pixels that are decoded to pick the frames from: 600 s of 3840x2160 at 30 frames per second.
MAX_DECODED_PIXELS = 600 * 30 * 3840 * 2160
# 600 s of slow motion at 240 frames per second.
MAX_FRAMES = 600 * 240

_HINT = "MP4, MOV, WebM, MKV, AVI, MPEG-TS and GIF can be read"
# Display matrices of turns to the left.
_QUARTER_TURNS = ((1, 0, 0, 1), (0, -1, 1, 0), (-1, 0, 0, -1), (0, 1, -1, 0))
# Each thread holds frames of its own.
_NUM_THREADS = 4


def decode_video(
    content: BinaryIO,
    name: str,
    *,
    max_pixels: int = MAX_VIDEO_PIXELS,
    max_s: float = MAX_VIDEO_S,
    indices: Sequence[int] | None = None,
) -> tuple[Video, tuple[str, ...]]:
    """Decode the frames `indices` of a video, which may repeat, None means every frame; and say what was changed.

    Without any, nothing is decoded: number, rate and size of the frames are those that headers and packets give.
    `name` identifies it in messages, `max_pixels` limits the pixels of all frames that are kept. Raises `InputError`
    for a video that cannot be used.
    """
    limits = _Limits(name, max_pixels, max_s)
    shown = _count_packets(content, limits)
    if indices is None or indices:
        total = shown.total
        shown = _decode(content, limits, total, indices)
        if indices is None and shown.total != total:
            # Not every packet is one frame: some are hidden, hold half of one, or have lost what they refer to.
            total = shown.total
            shown = _decode(content, limits, total, None)
            if shown.total != total:
                raise InputError(f"cannot read the {name}: it has another number of frames each time")
    # Who chooses frames gets the rate of the header, as vLLM does.
    fps = shown.header_fps if indices is not None and 0 < shown.header_fps <= MAX_FPS else shown.fps()
    if not 0 < fps <= MAX_FPS:  # beyond it a header is more likely broken than intended
        raise InputError(f"the {name} has no usable frame rate")
    if shown.total > max_s * (shown.fps() or fps):
        raise limits.too_long()
    video = Video(shown.pixels, fps=fps, total_num_frames=shown.total, frames_indices=tuple(shown.indices))
    return video, tuple(shown.notes)


@dataclass(frozen=True)
class _Limits:
    """The limits on one video."""

    name: str
    max_pixels: int
    max_s: float

    def too_long(self) -> InputError:
        return InputError(f"the {self.name} is longer than {self.max_s:.0f} s, the maximum", hint="cut it")

    def other_size(self) -> InputError:
        return InputError(f"the size of the frames of the {self.name} changes in the middle")

    def check_pixels(self, width: int, height: int, num_kept: int, num_decoded: int) -> None:
        most = min(self.max_pixels // num_kept, MAX_FRAME_PIXELS)
        if width * height > most:
            raise InputError(
                f"the {self.name} has {width}x{height} pixels per frame; the maximum is {most} for {num_kept} frames",
                hint="scale it down",
            )
        if width * height * num_decoded > MAX_DECODED_PIXELS:
            raise InputError(
                f"the {self.name} has {num_decoded:,} frames of {width}x{height} pixels; the maximum of all frames is "
                f"{MAX_DECODED_PIXELS / 1e9:.0f} billion pixels",
                hint="scale it down, or cut it",
            )


def _video_track(container: av.container.InputContainer, name: str) -> Track:
    stream = container.streams.best("video")
    if stream is None or _is_cover(stream):
        raise InputError(f"the {name} has no video stream")
    return Track(container, stream, name)


def _count_packets(content: BinaryIO, limits: _Limits) -> _Shown:
    """Return no frames, but their size, times, and number of packets, mostly one per frame; decodes nothing."""
    with open_container(content, limits.name, _HINT) as container:
        track = _video_track(container, limits.name)
        shown = _Shown.of(track.stream)
        for packet in track.packets():
            if not packet.size or packet.is_discard:
                continue
            shown.total += 1
            if shown.total > MAX_FRAMES:
                raise InputError(f"the {limits.name} has more than {MAX_FRAMES:,} frames, the maximum", hint="cut it")
            if packet.pts is not None:
                shown.add_time(float(packet.pts * track.stream.time_base))
                if shown.seconds > limits.max_s:
                    raise limits.too_long()
    if not shown.total:
        raise InputError(f"the {limits.name} has no frames")
    return shown


@dataclass
class _Shown:
    """The frames that are kept, how many were shown in all, and when."""

    pixels: np.ndarray
    indices: list[int]
    header_fps: float
    total: int = 0
    first_s: float = math.inf
    last_s: float = -math.inf
    notes: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, stream: Any, indices: Sequence[int] = ()) -> _Shown:
        empty = np.empty((0, stream.height, stream.width, 3), np.uint8)
        return cls(empty, list(indices), float(stream.average_rate or stream.guessed_rate or 0))

    def add_time(self, time_s: float) -> None:
        self.first_s, self.last_s = min(self.first_s, time_s), max(self.last_s, time_s)

    @property
    def seconds(self) -> float:
        return self.last_s - self.first_s

    def fps(self) -> float:
        """Return the rate of the frames that were shown: that of the header where it agrees with their times."""
        if self.total < 2 or self.seconds <= 0:
            return self.header_fps
        agrees = abs(self.header_fps * self.seconds - (self.total - 1)) <= 1
        return self.header_fps if self.header_fps and agrees else (self.total - 1) / self.seconds


def _decode(content: BinaryIO, limits: _Limits, total: int, indices: Sequence[int] | None) -> _Shown:
    """Decode all frames of about `total` and keep those at `indices`, None means all."""
    wanted = range(total) if indices is None else indices
    with open_container(content, limits.name, _HINT) as container:
        track = _video_track(container, limits.name)
        stream = track.stream
        stream.thread_type, stream.thread_count = "AUTO", _NUM_THREADS
        limits.check_pixels(stream.width, stream.height, len(wanted), total)
        shown = _Shown.of(stream, wanted)
        position, size, converter = 0, (0, 0), _FrameConverter(limits.name)
        for frame in track.frames():
            if shown.total == 0:
                size = frame.width, frame.height
                limits.check_pixels(*size, len(wanted), total)
            elif size != (frame.width, frame.height):
                raise limits.other_size()
            while position < len(wanted) and wanted[position] == shown.total:
                pixels = converter.pixels(frame)
                if position == 0:
                    shown.pixels = np.empty((len(wanted), *pixels.shape), np.uint8)
                elif shown.pixels.shape[1:] != pixels.shape:
                    raise limits.other_size()
                shown.pixels[position] = pixels
                position += 1
            shown.total += 1
            if frame.time is not None:
                shown.add_time(frame.time)
        if not shown.total:
            raise InputError(
                f"cannot read the {limits.name}: its frames are damaged, or have more than {MAX_FRAME_PIXELS:,} pixels",
                hint=_HINT,
            )
        shown.notes = [*track.notes(), *converter.notes, *_left_out(container, limits.name)]
    return shown


class _FrameConverter:
    """Convert frames to what a player shows."""

    def __init__(self, name: str) -> None:
        self.notes: list[str] = []
        self._name = name
        self._graphs: dict[tuple[str, str], av.filter.Graph] = {}

    def pixels(self, frame: av.VideoFrame) -> np.ndarray:
        """Return uint8 RGB (height, width, 3), turned and mirrored as the frame says, on white where transparent."""
        from PIL import Image

        if not any(component.is_alpha for component in frame.format.components) and frame.format.name != "pal8":
            return self._turn(frame, self._convert(frame, "rgb24"))
        colours = self._convert(frame, "rgba")
        if colours[:, :, 3].min() == 255:
            return self._turn(frame, colours[:, :, :3])
        self._note(f"the transparency of the {self._name} was put on white")
        image = Image.fromarray(colours)
        return self._turn(frame, np.asarray(on_white(image, image.getchannel("A"))))

    def _convert(self, frame: av.VideoFrame, pixel_format: str) -> np.ndarray:
        """Convert as ffmpeg does, with libavfilter: alone, libswscale places colours elsewhere in some formats."""
        import av

        key = frame.format.name, pixel_format
        if (graph := self._graphs.get(key)) is None:
            graph = self._graphs[key] = av.filter.Graph()
            graph.link_nodes(
                graph.add_buffer(
                    width=frame.width, height=frame.height, format=frame.format, time_base=frame.time_base
                ),
                graph.add("format", pixel_format),
                graph.add("buffersink"),
            ).configure()
        graph.push(frame)
        return cast("av.VideoFrame", graph.pull()).to_ndarray()

    def _turn(self, frame: av.VideoFrame, pixels: np.ndarray) -> np.ndarray:
        """Apply the display matrix: column' = a * column + c * row, row' = b * column + d * row."""
        a, b, c, d = _display_matrix(frame)
        straight, crossed = abs(a) + abs(d), abs(b) + abs(c)
        if min(straight, crossed) > max(straight, crossed) / 50:
            self._note(f"the {self._name} is turned by an angle between quarter turns; the nearest one is used")
        if crossed > straight:
            pixels, a, d = pixels.transpose(1, 0, 2), c, b
        return pixels[:: -1 if d < 0 else 1, :: -1 if a < 0 else 1]

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)


def _display_matrix(frame: av.VideoFrame) -> tuple[int, int, int, int]:
    from av.sidedata.sidedata import SideData, Type

    try:
        entries = cast(Sequence[SideData], list(frame.side_data))
    except ValueError:
        # PyAV does not know every kind that libav has, such as EXIF. A rotation it knows nevertheless, but no mirror.
        return _QUARTER_TURNS[round(frame.rotation / 90) % 4]
    for entry in entries:
        if entry.type is Type.DISPLAYMATRIX:
            a, b, _, c, d, *_ = struct.unpack("=9i", bytes(entry))
            return a, b, c, d
    return _QUARTER_TURNS[0]


def _left_out(container: av.container.InputContainer, name: str) -> Iterator[str]:
    if (num_streams := sum(not _is_cover(stream) for stream in container.streams.video)) > 1:
        yield f"the {name} has {num_streams} video streams; only one is used"
    if container.streams.audio:
        yield f"the {name} has sound, which is not used"


def _is_cover(stream: Any) -> bool:
    import av

    return bool(stream.disposition & av.stream.Disposition.attached_pic)
