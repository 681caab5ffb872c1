"""Profile keys that only the painter has."""

from pydantic import Field

from omni_cli.config.schema import DiffusionStageConfig


class PainterConfig(DiffusionStageConfig):
    """Keys of the painter."""

    frame_pixels: int = Field(0, ge=0, le=4, description="Width of the black frame.")
