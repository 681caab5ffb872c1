"""FFmpeg's own program: it writes media, and decodes them for comparison."""

from __future__ import annotations

import subprocess
from pathlib import Path

import imageio_ffmpeg
import numpy as np


def ffmpeg(*arguments: str | Path, content: bytes = b"") -> bytes:
    """Run it with `content` on stdin and return its stdout."""
    command = [imageio_ffmpeg.get_ffmpeg_exe(), "-v", "error", "-y", *map(str, arguments)]
    process = subprocess.run(command, input=content, capture_output=True)
    assert process.returncode == 0, process.stderr.decode()[-1000:]
    return process.stdout


def write_sound(path: Path, *arguments: str, rate: int = 44_100, channels: int = 2, seconds: float = 1.2345) -> Path:
    """Write tones and some noise, encoded as `arguments` say."""
    noise = np.random.default_rng(0)
    time = np.arange(int(rate * seconds)) / rate
    tones = np.stack([0.4 * np.sin(2 * np.pi * (220 + 110 * channel) * time) for channel in range(channels)], axis=1)
    samples = (tones + 0.05 * noise.standard_normal(tones.shape)).astype("<f4")
    raw = ("-f", "f32le", "-ar", str(rate), "-ac", str(channels), "-i", "-")
    ffmpeg(*raw, *arguments, path, content=samples.tobytes())
    return path


def write_moving(path: Path, *arguments: str, size: str = "64x48", rate: str = "25", seconds: float = 0.8) -> Path:
    """Write a moving test pattern, encoded as `arguments` say."""
    ffmpeg("-f", "lavfi", "-i", f"testsrc2=size={size}:rate={rate}:duration={seconds}", *arguments, path)
    return path


def decoded_sound(path: Path) -> np.ndarray:
    """All samples of a file's sound, float32 (num_samples * channels,)."""
    return np.frombuffer(ffmpeg("-i", path, "-map", "0:a:0", "-f", "f32le", "-c:a", "pcm_f32le", "-"), np.float32)


def decoded_frames(path: Path, height: int, width: int) -> np.ndarray:
    """All frames of a file, uint8 RGB (num_frames, height, width, 3), turned as its display matrix says."""
    pixels = ffmpeg("-i", path, "-map", "0:v:0", "-fps_mode", "passthrough", "-f", "rawvideo", "-pix_fmt", "rgb24", "-")
    return np.frombuffer(pixels, np.uint8).reshape(-1, height, width, 3)
