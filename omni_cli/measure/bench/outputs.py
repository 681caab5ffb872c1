"""Outputs of an iteration: a hash to compare all of them, files to measure their difference, and copies for readers.

Copies in a record are bounded in number and size, and encoded as files.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from omni_cli.records.record import PROMPT, RATE, SHEET_COLUMNS, KeptOutput
from omni_cli.requests.encoding import encode_png, encode_wav
from omni_cli.requests.outputs import AudioOutput, ImageOutput, RequestResult, TensorOutput, VideoOutput

if TYPE_CHECKING:
    import numpy as np

_TOKENS = "tokens"

MAX_OUTPUTS = 2
MAX_IMAGE_BYTES = 2**19
MAX_AUDIO_BYTES = 2**20
_SHEET_FRAMES, _SHEET_SIDE = 12, 192


def output_arrays(results: Sequence[RequestResult]) -> dict[str, np.ndarray]:
    """Return all outputs of the requests by name: token ids of each AR stage, samples float32, pixels uint8."""
    import numpy as np

    arrays: dict[str, np.ndarray] = {}
    for request, result in enumerate(results):
        for trace in result.stages:
            if trace.output_token_ids is not None:
                arrays[f"{request}.{_TOKENS}.{trace.name}"] = np.array(trace.output_token_ids, np.int64)
        for position, output in enumerate(result.outputs):
            if isinstance(output, AudioOutput):
                arrays[f"{request}.audio.{position}"] = output.samples
            elif isinstance(output, ImageOutput):
                arrays[f"{request}.image.{position}"] = output.pixels
            elif isinstance(output, VideoOutput) and output.frames is not None:
                arrays[f"{request}.video.{position}"] = output.frames
            elif isinstance(output, TensorOutput):
                arrays[f"{request}.tensor.{position}"] = output.array
    return arrays


def hash_arrays(arrays: dict[str, np.ndarray]) -> str:
    """Return `sha256:...` of names, shapes, types and bytes."""
    import numpy as np

    digest = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        digest.update(f"{name} {array.dtype} {array.shape}\n".encode())
        digest.update(array.tobytes())
    return "sha256:" + digest.hexdigest()


def unhashed_arrays(results: Sequence[RequestResult], prompts: Sequence[str]) -> dict[str, np.ndarray]:
    """Return the rates of the audio and the prompts, which are saved beside the outputs but not part of their hash."""
    import numpy as np

    arrays = {f"{request}{PROMPT}": np.array(prompt) for request, prompt in enumerate(prompts)}
    for request, result in enumerate(results):
        for position, output in enumerate(result.outputs):
            if isinstance(output, AudioOutput):
                arrays[f"{request}.audio.{position}{RATE}"] = np.array(output.sample_rate)
    return arrays


def save_arrays(path: Path, arrays: dict[str, np.ndarray]) -> None:
    import numpy as np

    with path.open("wb") as file:
        np.savez(file, allow_pickle=False, **arrays)


def load_arrays(path: Path) -> dict[str, np.ndarray] | None:
    """Return saved outputs; None for a file that was never written."""
    import numpy as np

    if not path.is_file():
        return None
    with np.load(path) as arrays:
        return dict(arrays)


def kept_outputs(arrays: Mapping[str, np.ndarray], first: Mapping[str, np.ndarray] | None) -> tuple[KeptOutput, ...]:
    """Return the first outputs of an iteration that can be shown; `first` are those of the first variant."""
    return tuple(_select_outputs(arrays, first))[:MAX_OUTPUTS]


def _select_outputs(arrays: Mapping[str, np.ndarray], first: Mapping[str, np.ndarray] | None) -> Iterator[KeptOutput]:
    for name in sorted(arrays):
        kind, array = name.split(".")[1], arrays[name]
        if kind == "audio" and name + RATE in arrays:
            rate = int(arrays[name + RATE])
            # 16-bit samples.
            shown = array[: MAX_AUDIO_BYTES // 2 // (1 if array.ndim == 1 else array.shape[1])]
            cut = "" if len(shown) == len(array) else f", the first {len(shown) / rate:.0f} s"
            text = f"{len(array) / rate:.2f} s{cut}, {rate} Hz"
            yield KeptOutput(name=name, kind="audio", data=encode_wav(shown, rate), text=text, whole=not cut)
        elif kind in ("image", "video"):
            image = array if kind == "image" else _sheet(array)
            shape = f"{array.shape[-2]}x{array.shape[-3]}" + (f", {len(array)} frames" if kind == "video" else "")
            other = None if first is None else first.get(name)
            difference, gain = None, None
            if other is not None and other.shape == array.shape:
                gap, gain = _difference(image, other if kind == "image" else _sheet(other))
                difference, _ = _encode(gap)
            data, is_reduced = _encode(image)
            # A sheet may have all frames of a video at their own size.
            has_all = kind == "image" or (len(array) <= _SHEET_FRAMES and max(array.shape[1:3]) <= _SHEET_SIDE)
            yield KeptOutput(
                name=name, kind="image" if kind == "image" else "video", data=data, text=shape,
                whole=not is_reduced and has_all,
                frames=None if kind == "image" else min(len(array), _SHEET_FRAMES), difference=difference, gain=gain,
            )  # fmt: skip


def _difference(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, float]:
    """Return the absolute difference, multiplied so that its largest value is white, and the factor."""
    import numpy as np

    gap = np.abs(a[..., :3].astype(np.int16) - b[..., :3])
    gain = 255 / max(int(gap.max()), 1)
    return np.rint(gap * gain).astype(np.uint8), gain


def _sheet(frames: np.ndarray) -> np.ndarray:
    """Lay some of a video's frames out in rows, first and last among them."""
    import numpy as np
    from PIL import Image

    chosen = frames[np.unique(np.linspace(0, len(frames) - 1, _SHEET_FRAMES).round().astype(int))]
    height, width = chosen.shape[1:3]
    scale = min(1.0, _SHEET_SIDE / max(height, width))
    size = max(1, round(width * scale)), max(1, round(height * scale))
    small = [np.asarray(Image.fromarray(frame).resize(size)) for frame in chosen]
    small += [np.zeros_like(small[0])] * (-len(small) % SHEET_COLUMNS)
    rows = [np.concatenate(small[i : i + SHEET_COLUMNS], axis=1) for i in range(0, len(small), SHEET_COLUMNS)]
    return np.concatenate(rows)


def _encode(pixels: np.ndarray) -> tuple[bytes, bool]:
    """Encode as PNG, at half the size until it is small enough; True if that was necessary."""
    from PIL import Image

    size = pixels.size
    while len(png := encode_png(pixels)) > MAX_IMAGE_BYTES:
        import numpy as np

        pixels = np.asarray(Image.fromarray(pixels).reduce(2))
    return png, pixels.size < size
