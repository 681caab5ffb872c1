"""`POST /v1/completions`."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Discriminator, Field, Tag

from omni_cli.config.bounds import MAX_TOKENS
from omni_cli.config.sampling_keys import TokenId
from omni_cli.serve.schemas.fields import Items, Only
from omni_cli.serve.schemas.sampling import SampledText

MAX_LOGPROBS = 5
"""OpenAI's maximum for completions."""

_Text = Annotated[str, Field(min_length=1)]
_TokenIds = Annotated[Items[TokenId], Field(min_length=1)]


def _kind(prompt: object) -> str | None:
    match prompt:
        case str():
            return "a text"
        case [int() | float(), *_]:
            return "token ids"
        case [list(), *_]:
            return "lists of token ids"
        case list():
            return "several texts"
    return None


Prompt = Annotated[
    Annotated[_Text, Tag("a text")]
    | Annotated[Annotated[Items[_Text], Field(min_length=1)], Tag("several texts")]
    | Annotated[_TokenIds, Tag("token ids")]
    | Annotated[Items[_TokenIds], Tag("lists of token ids")],
    Discriminator(
        _kind,
        custom_error_type="prompt_type",
        custom_error_message="must be a text, a list of texts, token ids, or a list of lists of token ids",
    ),
]


class CompletionRequest(SampledText):
    prompt: Prompt = Field(description="Texts or token ids, which the model continues.")
    max_tokens: Annotated[int, Field(ge=0, le=MAX_TOKENS)] | None = Field(16, description="0 only with `echo`.")
    echo: bool | None = Field(None, description="Return the prompt, too, before its completion.")
    logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    add_special_tokens: bool | None = Field(None, description="Such as a beginning of sequence. Default: true.")

    best_of: int | None = Field(None, description="Only as many as `n`.")
    suffix: Annotated[object, Only("")] = None

    @property
    def prompts(self) -> list[str | tuple[int, ...]]:
        """One or several."""
        prompts: Any = [self.prompt] if _kind(self.prompt) in ("a text", "token ids") else self.prompt
        return [prompt if isinstance(prompt, str) else tuple(prompt) for prompt in prompts]

    def sampling(self) -> dict[str, object]:
        """The given vLLM sampling parameters of the first stage."""
        # An engine makes at least one token, which an answer of the prompt alone leaves out.
        values = {**super().sampling(), "max_tokens": max(1, 16 if self.max_tokens is None else self.max_tokens)}
        if self.logprobs is not None:
            values["logprobs"] = self.logprobs
            if self.echo:
                values["prompt_logprobs"] = self.logprobs
        return values
