"""Outputs of an iteration: a hash to compare all of them, files to measure their difference."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from omni_cli.outputs import AudioOutput, ImageOutput, RequestResult, TensorOutput, VideoOutput
from omni_cli.record import PROMPT, RATE

if TYPE_CHECKING:
    import numpy as np

_TOKENS = "tokens"


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


def sample_rates(results: Sequence[RequestResult]) -> dict[str, np.ndarray]:
    """Return the rates of the audio among the outputs, which are saved but not part of their hash."""
    import numpy as np

    return {
        f"{request}.audio.{position}{RATE}": np.array(output.sample_rate)
        for request, result in enumerate(results)
        for position, output in enumerate(result.outputs)
        if isinstance(output, AudioOutput)
    }


def prompt_arrays(prompts: Sequence[str]) -> dict[str, np.ndarray]:
    """Return the requests' prompts, which are saved but not part of the hash."""
    import numpy as np

    return {f"{request}{PROMPT}": np.array(prompt) for request, prompt in enumerate(prompts)}


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
