"""Profile keys of the speaker."""

from __future__ import annotations

from pydantic import Field

from omni_cli.config.schema import ARStageConfig
from omni_cli.models.codec.settings import WaveformKeys


class SpeakerConfig(WaveformKeys, ARStageConfig):
    """Keys of a stage whose every step ends in a diffusion; both come from generation_config.json if not set."""

    num_diffusion_steps: int | None = Field(None, ge=1, le=1000, description="Denoising steps per latent of speech.")
    cfg_scale: float | None = Field(
        None, ge=0, le=100, description="Guidance of the latents and, as in transformers, of the control tokens."
    )
