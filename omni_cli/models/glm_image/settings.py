"""Profile keys of the prior."""

from __future__ import annotations

from omni_cli.config.schema import ARStageConfig, ImageSize


class PriorConfig(ImageSize, ARStageConfig):
    """Keys of the prior. The default size of an image is that of the request's first image, else 1024x1024."""

    @property
    def has_given_length(self) -> bool:
        return True
