"""Profile keys of the talkers."""

from __future__ import annotations

from pydantic import Field

from omni_cli.config.schema import ARStageConfig


class OmniTalkerConfig(ARStageConfig):
    """Keys of a talker."""

    early_start: bool | None = Field(
        None,
        description="Begin with the thinker's second token, as for streamed requests, instead of after its last. "
        "Default: false.",
    )

    @property
    def starts_early(self) -> bool:
        return bool(self.early_start)
