"""A thinker's output, with the sizes of its media, which determine the talker's positions; and cache keys of audio."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from omni_cli.stage.payloads import get_integers, get_tensor

Embed = Callable[[Sequence[int]], torch.Tensor]
"""Look up the thinker's embeddings (num_tokens, embedding_size)."""

# Grids of images and videos are (num_items, 3), the others (num_items,).
_FIELDS = ("image_grid_thw", "video_grid_thw", "second_per_grid_ts", "audio_feature_lengths")


def media_of_prompt(engine_input: Any) -> dict[str, torch.Tensor]:
    """Return the sizes of the media in a prompt that vLLM has preprocessed."""
    media = {}
    for items in engine_input.get("mm_kwargs", {}).values():
        for name in _FIELDS:
            sizes = [item[name].data.reshape(-1) for item in items if item is not None and name in item]
            if sizes:
                stacked = torch.stack(sizes)
                media[name] = stacked if "grid_thw" in name else stacked.reshape(-1)
    return media


def reference_positions(
    get_rope_index: Callable[..., tuple[torch.Tensor, torch.Tensor]],
    token_ids: Sequence[int],
    media: Mapping[str, torch.Tensor],
) -> torch.Tensor:
    """Return M-RoPE positions (3, num_tokens) int64 by a model's `get_rope_index` in transformers."""
    ids = torch.tensor([token_ids])
    positions, _ = get_rope_index(
        ids,
        media.get("image_grid_thw"),
        media.get("video_grid_thw"),
        torch.ones_like(ids),
        False,
        media.get("audio_feature_lengths"),
        media.get("second_per_grid_ts"),
    )
    return positions[:, 0].long()


def key_by_padding(audio: Sequence[tuple[np.ndarray, int]], engine_input: Any) -> None:
    """Make vLLM's cache keys of a preprocessed prompt's audio depend on the request's longest audio.

    As in the reference, the processor pads the audio of a request to the longest, and trailing silence changes the
    last feature of an audio. vLLM's keys depend on the samples only.
    """
    if audio:
        longest_s = max(len(samples) / sample_rate for samples, sample_rate in audio)
        hashes = engine_input["mm_hashes"]
        hashes["audio"] = [f"{name} of {longest_s} s" for name in hashes["audio"]]


@dataclass(frozen=True)
class ThinkerOutput:
    """The thinker's output for one request; the first part of a stage output if it has not finished.

    `hidden_states` (num_rows, hidden_size) are the rows that the family's talker needs, None for none. `media` has the
    grids and lengths of images, videos and audio in the prompt.
    """

    prompt_token_ids: list[int]
    output_token_ids: list[int]
    hidden_states: torch.Tensor | None = None
    media: dict[str, torch.Tensor] = field(default_factory=dict)

    @classmethod
    def from_information(cls, information: dict[str, object], *, needs_rows: bool = True) -> ThinkerOutput:
        """Create it from a payload. Raises `PayloadError` if something is missing or of the wrong type."""
        has_rows = needs_rows or "hidden_states" in information
        return cls(
            get_integers(information, "prompt_token_ids"),
            get_integers(information, "output_token_ids"),
            get_tensor(information, "hidden_states", num_dims=2) if has_rows else None,
            {
                name: get_tensor(information, name, num_dims=2 if "grid_thw" in name else 1)
                for name in _FIELDS
                if name in information
            },
        )

    def information(self) -> dict[str, object]:
        rows = {} if self.hidden_states is None else {"hidden_states": self.hidden_states}
        ids = {"prompt_token_ids": self.prompt_token_ids, "output_token_ids": self.output_token_ids}
        return {**ids, **rows, **self.media}
