"""Profile keys of the talker."""

from __future__ import annotations

from pydantic import Field

from omni_cli.config.schema import ARStageConfig


class Qwen3TTSTalkerKeys(ARStageConfig):
    """Keys of the stage that makes frames of codes from a text."""

    text_first: bool | None = Field(
        None,
        description="Read the whole text before the first frame, or one token of it beside each frame. "
        "Default: the publisher's, true with the model's own voices and false with a cloned one.",
    )
