"""The output of an engine, and the opinion of a reference on the same tokens. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from omni_cli.requests.outputs import GenerateRequest

Attention = Literal["sdpa", "eager"]


@dataclass(frozen=True)
class Way:
    """One way to run a reference. The differences between ways are its noise.

    `dtype` is that of weights and activations, `noise_dtype` that in which noise is drawn. A `low_memory` way keeps
    weights in half of the free memory and reads those of further layers when they run. With `rough_sums`, matrix
    products are as rough as those of any right kernel.
    """

    dtype: str
    attention: Attention = "sdpa"
    noise_dtype: str = "float32"
    low_memory: bool = False
    rough_sums: bool = False


@dataclass(frozen=True)
class EngineTokens:
    """The tokens of an AR stage for one request.

    `candidates` has, for each token, the ids that the engine returned log-probabilities of, its own first; `logprobs`
    are these, in nats, (num_tokens, num_candidates), NaN where there are fewer. `codes` are whole frames, one per
    token; None for a stage that makes no frames.
    """

    token_ids: tuple[int, ...]
    candidates: np.ndarray
    logprobs: np.ndarray
    codes: tuple[tuple[int, ...], ...] | None = None

    @classmethod
    def without_logprobs(cls, token_ids: Sequence[int]) -> EngineTokens:
        """Create it from ids alone."""
        candidates = np.array(token_ids, np.int64)[:, None]
        return cls(tuple(token_ids), candidates, np.full(candidates.shape, np.nan))


@dataclass(frozen=True)
class EngineOutput:
    """An engine's output for a request: tokens by stage, and the arrays of its media by name.

    `sample_rates` are those of its audio. `num_input_tokens` is the engine's count of the first stage's prompt. `text`
    is the answer of a server that tells no tokens, which are then the reference's to find.
    """

    request: GenerateRequest
    tokens: Mapping[str, EngineTokens]
    arrays: Mapping[str, np.ndarray] = field(default_factory=dict)
    sample_rates: Mapping[str, int] = field(default_factory=dict)
    num_input_tokens: int | None = None
    text: str | None = None


@dataclass(frozen=True)
class TokenScores:
    """A reference's opinion of an engine's tokens, each after the engine's own tokens before it.

    `logprobs` (num_tokens, num_candidates) are those of the engine's candidates, without sampling settings. `top_ids`
    (num_tokens,) are the tokens that the reference chooses, `gaps` how much more probable it finds them than the
    engine's, in nats, and `margins` how much more than its second choice, all with sampling settings such as a
    repetition penalty. `code_ids`, `code_gaps` and `code_margins` (num_tokens, num_codes) are the same for the codes of
    a frame after its first. A reference that ends earlier has fewer tokens.
    """

    logprobs: np.ndarray
    top_ids: np.ndarray
    gaps: np.ndarray
    margins: np.ndarray
    code_ids: np.ndarray | None = None
    code_gaps: np.ndarray | None = None
    code_margins: np.ndarray | None = None


@dataclass(frozen=True)
class Expected:
    """A reference's output: scores by AR stage, and by name the arrays that it makes of the engine's tokens.

    `stage` makes the arrays; with `is_exact`, the engine's must be the same to the bit. `num_input_tokens` is the
    length of the first stage's prompt; None if the reference does not report it. `spans` are the times of the parts of
    its own transcript, in seconds, if the request asks for times.
    """

    scores: Mapping[str, TokenScores]
    arrays: Mapping[str, np.ndarray] = field(default_factory=dict)
    stage: str | None = None
    is_exact: bool = False
    num_input_tokens: int | None = None
    spans: tuple[tuple[float, float], ...] | None = None


class NoReferenceError(Exception):
    """The reference cannot run a request or a configuration; the message is the reason."""
