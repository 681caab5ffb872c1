"""Media for vision- and audio-language models, the same in every process."""

from __future__ import annotations

import io
import zlib

import numpy as np

from omni_cli.requests.contents import Video


def image_of(seed: int, height: int = 48, width: int = 64) -> np.ndarray:
    """Smooth colours, uint8 RGB."""
    rng = np.random.default_rng(seed)
    rows, columns = np.meshgrid(np.linspace(0, 6, height), np.linspace(0, 6, width), indexing="ij")
    waves = [np.sin(rng.uniform(0.5, 2) * rows + rng.uniform(0.5, 2) * columns + rng.uniform(0, 6)) for _ in range(3)]
    return ((np.stack(waves, axis=-1) + 1) * 127).astype(np.uint8)


def tone(seed: int, sample_rate: int = 16000) -> tuple[np.ndarray, int]:
    """Half a second of two tones, float32 mono."""
    rng = np.random.default_rng(seed)
    times = np.arange(sample_rate // 2) / sample_rate
    low, high = (np.sin(2 * np.pi * rng.uniform(100, 2000) * times) for _ in range(2))
    return (0.4 * low + 0.2 * high).astype(np.float32), sample_rate


def clip(seed: int, num_frames: int = 6, fps: float = 8.0) -> Video:
    """Frames that drift, from seed 6 on ten times as slowly: in Qwen2.5-VL's positions longer than wide."""
    fps /= 1 if seed < 6 else 10
    frames = np.stack([np.roll(image_of(seed, 48, 48), 3 * index, axis=1) for index in range(num_frames)])
    return Video(frames, fps, num_frames, tuple(range(num_frames)))


def write_lossless(video: Video) -> bytes:
    """A file of the same frames, to the last bit."""
    import av

    file = io.BytesIO()
    with av.open(file, "w", format="matroska") as container:
        stream = container.add_stream("ffv1", rate=round(video.fps))
        stream.height, stream.width = video.frames.shape[1:3]
        stream.pix_fmt = "bgr0"
        for pixels in video.frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(np.ascontiguousarray(pixels), format="rgb24")))
        container.mux(stream.encode())
    return file.getvalue()


def bomb_png(width: int, height: int) -> bytes:
    """A small file that claims to be a large image."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return len(data).to_bytes(4, "big") + kind + data + zlib.crc32(kind + data).to_bytes(4, "big")

    header = width.to_bytes(4, "big") + height.to_bytes(4, "big") + bytes([8, 2, 0, 0, 0])
    rows = zlib.compress(bytes(1 + 3 * width) * 8)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")
