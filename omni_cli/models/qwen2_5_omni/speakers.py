"""The speaker file of a Qwen2.5-Omni checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

from omni_cli.errors import CheckpointError, InputError
from omni_cli.models.voices import speaker_for

if TYPE_CHECKING:
    import torch


class Speaker(TypedDict):
    """The shapes are (1, enc_emb_dim) and (1, num_frames, num_mels)."""

    bos_token: int
    cond: torch.Tensor
    ref_mel: torch.Tensor


def load_speakers(model: str) -> dict[str, Speaker]:
    """Load the speakers by name from `spk_dict.pt` of a folder or repo.

    Raises `CheckpointError` if it is missing or cannot be read without running code.
    """
    import pickle

    import torch
    from transformers.utils import cached_file

    try:
        path = cached_file(model, "spk_dict.pt")
        speakers: dict[str, Speaker] = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, pickle.UnpicklingError, EOFError, ValueError) as error:
        raise CheckpointError(
            f"cannot read the speaker file spk_dict.pt of {model}: {str(error).splitlines()[0]}",
            hint="Qwen2.5-Omni checkpoints come with one; copy it into the folder",
        ) from error
    return speakers


def pick_speaker(speakers: dict[str, Speaker], name: str | None) -> str:
    """Return the speaker, by default the first. Raises `InputError` with the list."""
    if name is None:
        return next(iter(speakers))
    name = speaker_for(name, list(speakers))
    if name not in speakers:
        raise InputError(f"unknown speaker `{name}`", hint=f"this model has {', '.join(speakers)}")
    return name
