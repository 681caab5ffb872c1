"""Events of a run. Parts of a request's text and audio are also what a stage sends, as messages."""

from __future__ import annotations

import msgspec
import numpy as np

from omni_cli.requests.contents import ToolCallDelta
from omni_cli.requests.outputs import (
    MemoryPlanned,
    OutputReady,
    PromptTokens,
    RequestResult,
    StageFailed,
    StageLoading,
    StageProgress,
    TokenLogprobs,
)


class TextDelta(msgspec.Struct, frozen=True, tag=True):
    """Event: more text of a request's answer, with the numbers of tokens of its prompt and of the answer so far.

    `logprobs` are those of its tokens, if the request asks for them, and so is the `prompt` of the first one.
    """

    request_id: str
    text: str
    num_input_tokens: int = 0
    num_output_tokens: int = 0
    logprobs: tuple[TokenLogprobs, ...] = ()
    reasoning: str = ""
    tool_calls: tuple[ToolCallDelta, ...] = ()
    prompt: PromptTokens | None = None


class AudioChunk(msgspec.Struct, frozen=True, tag=True):
    """Event: the next part of a request's audio, float32 (num_samples,) in [-1, 1]; joined, they are its output."""

    request_id: str
    samples: np.ndarray
    sample_rate: int


Event = (
    MemoryPlanned | StageLoading | StageFailed | StageProgress | TextDelta | AudioChunk | OutputReady | RequestResult
)
