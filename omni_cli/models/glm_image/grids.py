"""Grids of image tokens: their positions, and the prior's stage output to the decoder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from omni_cli.stage.payloads import PayloadError, get_tensor

Grid = tuple[int, int]
"""Rows and columns."""


def mrope_positions(
    token_ids: Sequence[int], start_token_id: int, images: Sequence[Grid], targets: Sequence[Grid]
) -> torch.Tensor:
    """Return M-RoPE positions (3, num_positions) of the prompt, the grids to generate, and an end token.

    Each of the `images` in the prompt follows a `start_token_id`. Text advances by one position per token, a grid by
    its longer side. `targets` are in the order in which the model generates them.
    """
    parts: list[torch.Tensor] = []
    position = done = 0

    def text(length: int) -> None:
        nonlocal position
        parts.append(torch.arange(position, position + length).expand(3, -1))
        position += length

    def grid(rows: int, columns: int) -> None:
        nonlocal position
        row = torch.arange(rows).repeat_interleave(columns)
        column = torch.arange(columns).repeat(rows)
        parts.append(torch.stack([torch.zeros_like(row), row, column]) + position)
        position += max(rows, columns)

    starts = [index + 1 for index, token_id in enumerate(token_ids) if token_id == start_token_id]
    for start, (rows, columns) in zip(starts, images, strict=False):  # the last one begins the answer
        text(start - done)
        grid(rows, columns)
        done = start + rows * columns
    text(len(token_ids) - done)
    for target in targets:
        grid(*target)
    text(1)
    return torch.cat(parts, dim=1)


def upsampled(token_ids: torch.Tensor) -> torch.Tensor:
    """Repeat the tokens of a grid (rows, columns) for the decoder's resolution; returns (4 * rows * columns,)."""
    return token_ids.repeat_interleave(2, 0).repeat_interleave(2, 1).reshape(-1)


@dataclass(frozen=True)
class PriorOutput:
    """Everything that the decoder needs for a request.

    `token_ids` (rows, columns) int64 are those of the image, `image_token_ids` those of the condition `images`, which
    are uint8 RGB (height, width, 3).
    """

    prompt: str
    token_ids: torch.Tensor
    images: tuple[torch.Tensor, ...] = ()
    image_token_ids: tuple[torch.Tensor, ...] = ()

    def information(self) -> dict[str, torch.Tensor | list[str]]:
        """Return the entries of a payload."""
        return {
            "prompt": [self.prompt],
            "token_ids": self.token_ids,
            **{f"image_{index}": image for index, image in enumerate(self.images)},
            **{f"image_token_ids_{index}": ids for index, ids in enumerate(self.image_token_ids)},
        }

    @classmethod
    def from_information(cls, information: Mapping[str, Any]) -> PriorOutput:
        """Check and convert the entries of a payload; raises `PayloadError`."""
        match information.get("prompt"):
            case [str(prompt)]:
                pass
            case _:
                raise PayloadError("prompt: expected a list of one text")
        num_images = sum(name.startswith("image_token_ids_") for name in information)
        return cls(
            prompt=prompt,
            token_ids=get_tensor(information, "token_ids", num_dims=2),
            images=tuple(get_tensor(information, f"image_{index}", num_dims=3) for index in range(num_images)),
            image_token_ids=tuple(
                get_tensor(information, f"image_token_ids_{index}", num_dims=2) for index in range(num_images)
            ),
        )
