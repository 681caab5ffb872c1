"""Media in a prompt: their sizes, which determine the talker's positions, and the cache keys of audio."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from omni_cli.stage.payloads import get_tensor

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


def get_media(information: dict[str, object]) -> dict[str, torch.Tensor]:
    """Return the sizes of media in a stage output; raises `PayloadError` for one of the wrong type."""
    return {
        name: get_tensor(information, name, num_dims=2 if "grid_thw" in name else 1)
        for name in _FIELDS
        if name in information
    }
