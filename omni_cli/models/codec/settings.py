"""Profile keys of stages that turn codes into sound."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from omni_cli.config.bounds import MAX_TOKENS
from omni_cli.config.schema import DiffusionStageConfig
from omni_cli.config.stage_keys import VLLM_ONLY, StrictKeys

Codes = Annotated[int, Field(ge=1, le=MAX_TOKENS)]


class WaveformKeys(StrictKeys):
    """Keys of the stage of a chain that makes sound."""

    stream: Annotated[bool | None, VLLM_ONLY] = Field(
        None,
        description="Send audio in chunks as it is made, and begin while the stage before it still runs; "
        "that of the stage which makes audio, for requests that do not say it themselves.",
    )

    @property
    def streams(self) -> bool:
        return bool(self.stream)


class WaveformConfig(WaveformKeys, DiffusionStageConfig):
    """Keys of the last stage of a chain that speaks."""


class CodecConfig(WaveformConfig):
    """Keys of a stage that decodes frames of codes, in pieces of any size with the same samples."""

    stream_first_chunk_frames: Annotated[Codes, VLLM_ONLY] = Field(
        4, description="Frames of codes in the first chunk of streamed audio."
    )
    stream_chunk_frames: Annotated[Codes, VLLM_ONLY] = Field(
        12, description="Frames of codes in each further chunk of streamed audio."
    )
