"""Sampling, in profiles and in requests: fields of vLLM's `SamplingParams`, with their bounds."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, StringConstraints

from omni_cli.config.bounds import MAX_TEMPERATURE, MAX_TOKENS
from omni_cli.config.key_notes import StrictKeys

Fraction = Annotated[float, Field(gt=0, le=1)]
Tokens = Annotated[int, Field(ge=1, le=MAX_TOKENS)]
MinTokens = Annotated[int, Field(ge=0, le=MAX_TOKENS)]
TokenId = Annotated[int, Field(ge=0, lt=2**31)]
Temperature = Annotated[float, Field(ge=0, le=MAX_TEMPERATURE)]
TopK = Annotated[int, Field(ge=-1, le=MAX_TOKENS)]
MinP = Annotated[float, Field(ge=0, le=1)]
# A smaller one is 0 in float32, and times the minus infinity of a token that a grammar forbids it is NaN.
RepetitionPenalty = Annotated[float, Field(ge=0.01, le=100)]
Penalty = Annotated[float, Field(ge=-2, le=2)]
# One error is enough: for a list of 100,000 they take a second.
_TokenIds = Annotated[list[TokenId], Field(fail_fast=True)]
_Stop = Annotated[str, StringConstraints(min_length=1, max_length=1000)]


class Sampling(StrictKeys):
    """Sampling of an AR stage: fields of vLLM's `SamplingParams`."""

    temperature: Temperature | None = Field(
        None, description="0 picks the most likely token (greedy); vLLM raises values between 0 and 0.01 to 0.01."
    )
    top_p: Fraction | None = Field(None, description="Keep the most likely tokens up to this probability mass.")
    top_k: TopK | None = Field(None, description="Keep this many tokens; 0 or -1: all.")
    min_p: MinP | None = Field(None, description="Drop tokens below this share of the most likely one's probability.")
    repetition_penalty: RepetitionPenalty | None = Field(
        None, description="Above 1 penalises tokens of the prompt and the answer so far."
    )
    presence_penalty: Penalty | None = Field(None, description="Above 0 penalises tokens that the answer contains.")
    frequency_penalty: Penalty | None = Field(
        None, description="Above 0 penalises tokens by how often the answer contains them."
    )
    max_tokens: Tokens | None = Field(None, description="Maximum number of tokens to generate.")
    min_tokens: MinTokens | None = Field(None, description="Minimum number of tokens to generate.")
    stop: _Stop | list[_Stop] | None = Field(None, description="A string, or several, that end the output.")
    stop_token_ids: _TokenIds | None = Field(None, description="Token ids that end the answer.")
    ignore_eos: bool | None = Field(None, description="Continue after the end-of-sequence token.")
    include_stop_str_in_output: bool | None = Field(None, description="Keep the stop string at the end of the text.")
    skip_special_tokens: bool | None = Field(None, description="Leave special tokens out of the text. Default: true.")
    spaces_between_special_tokens: bool | None = Field(None, description="Default: true.")
    bad_words: list[_Stop] | None = Field(None, max_length=1000, description="Words that the answer must not have.")
    allowed_token_ids: _TokenIds | None = Field(None, description="The only token ids that the answer may have.")
    seed: int | None = Field(
        None, ge=0, lt=2**63, description="Seed of this stage's sampling. Default: the request's seed."
    )
    logprobs: int | None = Field(
        None, ge=-1, le=MAX_TOKENS, description="Log probabilities of this many most likely tokens; -1: all."
    )

    def set_values(self) -> dict[str, object]:
        """Return the parameters that the profile sets."""
        return self.model_dump(exclude_none=True)
