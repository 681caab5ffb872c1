"""Decode video to RGB frames: evenly spaced ones, or all."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import BinaryIO

from omni_cli.inputs.media.audio import DecodedAudio
from omni_cli.outputs import Video

# vLLM's default, and enough for its video models.
MAX_NUM_FRAMES = 32
MAX_VIDEO_S = 600.0
MAX_VIDEO_PIXELS = 256 * 1024 * 1024


@dataclass(frozen=True)
class DecodedVideo:
    """Frames of a video; `notes` say what was changed or left out."""

    video: Video
    notes: tuple[str, ...] = ()


def decode_video(
    content: BinaryIO,
    name: str,
    *,
    max_pixels: int = MAX_VIDEO_PIXELS,
    max_s: float = MAX_VIDEO_S,
    max_num_frames: int | None = MAX_NUM_FRAMES,
) -> DecodedVideo:
    """Decode a video; `max_num_frames` evenly spaced frames of a longer one, None means every frame."""
    from omni_cli.inputs import video

    notes: list[str] = []
    decoded = video.decode_video(content, name, notes.append, max_pixels, max_s, max_num_frames)
    return DecodedVideo(decoded, tuple(notes))


def decode_sound(content: BinaryIO, name: str, *, max_s: float = MAX_VIDEO_S) -> DecodedAudio | None:
    """Decode the sound of a video with its channels; None if it has none."""
    import av

    from omni_cli.inputs.media.audio import decode_audio

    data = content.read()
    with av.open(io.BytesIO(data), mode="r", metadata_errors="replace") as container:
        if not container.streams.audio:
            return None
    return decode_audio(io.BytesIO(data), name, max_s=max_s, mono=False)
