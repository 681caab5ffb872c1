"""The prior's prompt and its output: grids of image tokens, their positions, and the text around them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from omni_cli.core.errors import CheckpointError, InputError
from omni_cli.models.glm_image.family import FACTOR
from omni_cli.stage.payloads import PayloadError, get_tensor

if TYPE_CHECKING:
    import numpy as np

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


def upsample(token_ids: torch.Tensor) -> torch.Tensor:
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


_LATENT_FACTOR = FACTOR // 2


@dataclass(frozen=True)
class PriorPrompt:
    """A tokenized prompt. `targets` are the grids to generate, in the model's order.

    The last target is the image; without images in the prompt, a preview precedes it. `pixel_values` and `image_grids`
    are the processor's output for the images in the prompt.
    """

    token_ids: list[int]
    targets: tuple[Grid, ...]
    images: tuple[Grid, ...] = ()
    pixel_values: torch.Tensor | None = None
    image_grids: torch.Tensor | None = None

    @property
    def num_new_tokens(self) -> int:
        """The number of tokens in all grids to generate."""
        return sum(rows * columns for rows, columns in self.targets)


class PriorProcessor:
    """A checkpoint's processor; raises `CheckpointError` if it has no chat template."""

    def __init__(self, folder: Path) -> None:
        from transformers import GlmImageProcessor

        self._processor = GlmImageProcessor.from_pretrained(folder)
        if self._processor.chat_template is None:
            raise CheckpointError(
                f"`{folder}` has no chat template", hint="the folder is incomplete: download or copy it again"
            )

    def make(self, prompt: str, images: Sequence[np.ndarray], height: int, width: int, *, raw: bool) -> PriorPrompt:
        """Tokenize a prompt with its images, uint8 RGB (height, width, 3), as `GlmImagePipeline` does.

        `raw` omits the chat template. Raises `InputError` for prompts and images that the model cannot use.
        """
        if not prompt.strip():
            raise InputError("the prompt is empty", hint="describe the image")
        tokenizer = self._processor.tokenizer
        for token in (tokenizer.image_token, tokenizer.bos_token, tokenizer.eos_token):
            if token in prompt:
                raise InputError(f"the prompt contains `{token}`, which the model reserves", hint="remove it")
        inputs = self._inputs(prompt, images, height, width, raw)
        grids: torch.Tensor = inputs["image_grid_thw"]
        sizes = [(rows, columns) for _, rows, columns in grids.tolist()]
        num_images = len(images)
        _check_images(images, sizes[:num_images])
        return PriorPrompt(
            token_ids=inputs["input_ids"][0].tolist(),
            # The model generates the preview first; the processor lists it last.
            targets=tuple(reversed(sizes[num_images:])),
            images=tuple(sizes[:num_images]),
            pixel_values=inputs["pixel_values"] if images else None,
            image_grids=grids[:num_images] if images else None,
        )

    def _inputs(self, prompt: str, images: Sequence[np.ndarray], height: int, width: int, raw: bool) -> Any:
        from PIL import Image

        decoded = [Image.fromarray(image) for image in images]
        if raw and images:
            raise InputError("images need the chat template", hint="send the prompt without `raw`")
        options = {"target_h": height, "target_w": width}
        content = [*({"type": "image", "image": image} for image in decoded), {"type": "text", "text": prompt}]
        try:
            if raw:
                return self._processor(text=[prompt], return_tensors="pt", **options)
            return self._processor.apply_chat_template(
                [[{"role": "user", "content": content}]],
                tokenize=True,
                return_dict=True,
                return_tensors="pt",
                processor_kwargs=options,
            )
        except ValueError as error:
            raise InputError(f"the model cannot use this image: {error}") from error


def _check_images(images: Sequence[np.ndarray], grids: Sequence[Grid]) -> None:
    """Check that the prior, whose processor scales images, and the decoder, which does not, get the same grid."""
    for image, (rows, columns) in zip(images, grids, strict=True):
        height, width = image.shape[:2]
        if (height // _LATENT_FACTOR, width // _LATENT_FACTOR) != (2 * rows, 2 * columns):
            raise InputError(
                f"the model cannot use an image of {width}x{height} pixels: its processor makes "
                f"{columns * FACTOR}x{rows * FACTOR} of it",
                hint=f"scale the image to {columns * FACTOR}x{rows * FACTOR}",
            )
