"""The answers of a window as arrays, to compare servers by hash and by the largest difference."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from omni_cli.errors import InputError
from omni_cli.loadtest.answers import ServerAnswer

if TYPE_CHECKING:
    import numpy as np


def answer_arrays(answers: Sequence[ServerAnswer]) -> dict[str, np.ndarray]:
    """Return arrays like `omni_cli.bench.outputs.output_arrays`: text as UTF-8 bytes, samples float32, pixels uint8."""
    import numpy as np

    arrays: dict[str, np.ndarray] = {}
    for number, answer in enumerate(answers):
        if answer.text:
            arrays[f"{number}.tokens.text"] = np.frombuffer("".join(answer.text).encode(), np.uint8)
        if answer.pcm:
            whole = len(answer.pcm) // 2 * 2
            arrays[f"{number}.audio.0"] = np.frombuffer(bytes(answer.pcm[:whole]), "<i2").astype(np.float32) / 2**15
        for position, image in enumerate(answer.images):
            arrays[f"{number}.image.{position}"] = _pixels(image)
    return arrays


def _pixels(image: bytes) -> np.ndarray:
    """Decode to uint8 (height, width, 3); return the bytes unchanged if they are not an image."""
    import numpy as np

    from omni_cli.inputs.media.pool import in_memory
    from omni_cli.inputs.media.reading import MediaReader

    try:
        with in_memory(image) as file:
            return MediaReader(lambda _note: None).image(file, "image of the answer")
    except InputError:
        return np.frombuffer(image, np.uint8)
