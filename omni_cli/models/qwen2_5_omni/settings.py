"""Profile keys of the talker and of token2wav."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from omni_cli.config.bounds import MAX_TOKENS
from omni_cli.config.stage_keys import VLLM_ONLY
from omni_cli.models.codec.settings import Codes, WaveformConfig
from omni_cli.models.qwen_omni.settings import OmniTalkerConfig

TalkerPrompt = Literal["full", "plain"]


class TalkerConfig(OmniTalkerConfig):
    """Keys of the talker."""

    talker_prompt: TalkerPrompt = Field(
        "full",
        description="Qwen2.5-Omni's talker: `full` as published, `plain` as transformers 5.19 computes one prompt "
        "(no codec embeddings and no M-RoPE positions of media in the prompt).",
    )


class Token2WavConfig(WaveformConfig):
    """Keys of token2wav."""

    sway_coefficient: Annotated[float | None, VLLM_ONLY] = Field(
        None, ge=-1, le=1, description="Bends the time steps towards the start (below 0); vLLM's token2wav."
    )
    stream_first_chunk_codes: Annotated[Codes | None, VLLM_ONLY] = Field(
        None, description="Codec tokens in the first chunk. Default: 12."
    )
    stream_chunk_codes: Annotated[Codes | None, VLLM_ONLY] = Field(
        None,
        description="Codec tokens in a further chunk: two and a half times as many as in the one before it, up to this "
        "many. Default: 192.",
    )
    stream_context_codes: Annotated[int | None, VLLM_ONLY] = Field(
        None,
        ge=0,
        le=MAX_TOKENS,
        description="Codec tokens before a chunk that it is computed with. Default: 36, and 0 with `batching: padded`, "
        "where a chunk continues the one before it.",
    )
    stream_look_ahead_codes: Annotated[Codes | None, VLLM_ONLY] = Field(
        None, description="Codec tokens after a chunk that it waits for and is computed with. Default: 12."
    )
