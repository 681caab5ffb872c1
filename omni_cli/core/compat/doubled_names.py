"""Names of weights that transformers 5.19 saves with one `model.` too many.

It saves models such as Qwen2-Audio, Voxtral and Granite Speech that were made from a configuration as
`language_model.model.model.norm.weight`, having undone one renaming twice (`findings/doubled_names_in_checkpoints.sh`).
vLLM knows the name in the releases, `language_model.model.norm.weight`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

_SAVED, _RELEASED = "language_model.model.model.", "language_model.model."


def with_released_names(weights: Iterable[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield `weights` by the names in the releases."""
    for name, weight in weights:
        yield (_RELEASED + name.removeprefix(_SAVED) if name.startswith(_SAVED) else name), weight
