"""Read an MP4 file back."""

from __future__ import annotations

import io
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np


@dataclass(frozen=True)
class ReadVideo:
    """`frames` uint8 RGB; `times` of the frames in seconds; durations in seconds, `sound_s` None without sound."""

    frames: np.ndarray
    times: list[Fraction]
    fps: Fraction
    duration_s: Fraction
    pixel_format: str
    sound_s: float | None
    sample_rate: int | None
    samples: np.ndarray | None


def read_video(content: bytes | Path) -> ReadVideo:
    content = content.read_bytes() if isinstance(content, Path) else content
    opened: Any = av.open(io.BytesIO(content))
    with opened as container:
        stream = container.streams.video[0]
        decoded = list(container.decode(stream))
        audio = next(iter(container.streams.audio), None)
        samples = None
        if audio is not None:
            container.seek(0)
            samples = np.concatenate([frame.to_ndarray() for frame in container.decode(audio)], axis=1)
        return ReadVideo(
            frames=np.stack([frame.to_ndarray(format="rgb24") for frame in decoded]),
            times=[frame.pts * frame.time_base for frame in decoded],
            fps=stream.average_rate,
            duration_s=stream.duration * stream.time_base,
            pixel_format=stream.pix_fmt,
            sound_s=None if audio is None else float(audio.duration * audio.time_base),
            sample_rate=None if audio is None else audio.rate,
            samples=samples,
        )


def psnr_db(a: np.ndarray, b: np.ndarray) -> float:
    return float(10 * np.log10(255**2 / ((a.astype(float) - b) ** 2).mean()))
