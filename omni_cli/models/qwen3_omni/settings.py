"""Profile keys that only Qwen3-Omni's stages have."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from omni_cli.config.schema import VLLM_ONLY
from omni_cli.models.codec.settings import Codes, WaveformConfig


class Code2WavConfig(WaveformConfig):
    """Keys of code2wav."""

    stream_first_chunk_frames: Annotated[Codes | None, VLLM_ONLY] = Field(
        None, description="Frames of codes, 80 ms each, in the first chunk. Default: 4."
    )
    stream_chunk_frames: Annotated[Codes | None, VLLM_ONLY] = Field(
        None, description="Frames of codes in each further chunk. Default: 12."
    )
