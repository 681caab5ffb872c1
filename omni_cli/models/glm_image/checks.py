"""The prior's keys, and checks of a request that need nothing loaded: its arguments and the size of its image."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from omni_cli.config.schema import ARStageConfig, ImageSize
from omni_cli.core.errors import InputError
from omni_cli.models.glm_image.family import FAMILY

if TYPE_CHECKING:
    from omni_cli.config.schema import EngineConfig
    from omni_cli.requests.outputs import GenerateRequest


class PriorConfig(ImageSize, ARStageConfig):
    """Keys of the prior. The default size of an image is that of the request's first image, else 1024x1024."""

    @property
    def has_given_length(self) -> bool:
        return True


FACTOR = 32
"""Pixels per token in either direction, before the tokens are upsampled."""
_DEFAULT_PIXELS = 1024
# The other fields of `Sampling` set the number of tokens, which is fixed, or concern prompt tokens without logits.
_SAMPLING = ("temperature", "top_p", "top_k", "min_p", "seed", "logprobs")


def check_request(request: GenerateRequest, config: EngineConfig) -> None:
    """Raise `InputError` for a request that the prior would reject."""
    prior = config.stages[0]
    assert isinstance(prior, PriorConfig)
    check_arguments(request.diffusion)
    check_sampling(request.sampling)
    get_size(request.diffusion, prior, [image.shape for image in request.media.images])


def check_arguments(names: Iterable[str]) -> None:
    decoder = FAMILY.role("decoder")
    for name in names:
        if decoder is None or name not in decoder.takes:
            raise InputError(f"this pipeline takes no `{name}`", hint=f"remove `{name}`")


def check_sampling(names: Iterable[str], prefix: str = "") -> None:
    for name in names:
        if name not in _SAMPLING:
            raise InputError(
                f"{prefix}this model's sampling has no `{name}`: the size of the image determines the number of tokens",
                hint=f"remove `{name}`; it has {', '.join(f'`{name}`' for name in _SAMPLING)}",
            )


def get_size(diffusion: Mapping[str, object], prior: PriorConfig, images: Sequence[Sequence[int]]) -> tuple[int, int]:
    """Return height and width in pixels: the request's, else the profile's, else those of the first image.

    Raises `InputError` unless an image of this size is a whole number of tokens.
    """
    wanted = (diffusion.get("height"), diffusion.get("width"))
    of_image = images[0][:2] if images else (_DEFAULT_PIXELS, _DEFAULT_PIXELS)
    height, width = (
        next(int(str(pixels)) for pixels in choices if pixels is not None)
        for choices in zip(wanted, (prior.height, prior.width), of_image, strict=True)
    )
    for name, pixels in (("height", height), ("width", width)):
        if pixels % FACTOR or not pixels:
            below, above = pixels // FACTOR * FACTOR, (pixels // FACTOR + 1) * FACTOR
            near = f"{below} or {above}" if below else str(above)
            raise InputError(
                f"`{name}` must be a multiple of {FACTOR} for this model, not {pixels}", hint=f"use {near}"
            )
    return height, width
