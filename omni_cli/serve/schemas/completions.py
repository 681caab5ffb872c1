"""`POST /v1/completions`, and what it shares with chats: sampled text, which a grammar may bind."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, StringConstraints, Tag

from omni_cli.config.bounds import MAX_TOKENS
from omni_cli.config.stage_keys import Sampling, TokenId
from omni_cli.requests.json_schemas import check_schema
from omni_cli.serve.schemas.fields import IgnoredField, Items, ModelBody, Only, Seed, Strict, from_text

TokenText = Annotated[str, StringConstraints(pattern=r"^\d{1,9}$")]
CacheSalt = Annotated[str, Field(min_length=1, max_length=256)]


KeptSchema = Annotated[dict[str, Any], AfterValidator(check_schema)]


class TextFormat(Strict):
    type: Literal["text"]


class JsonObjectFormat(Strict):
    type: Literal["json_object"]


class JsonSchema(Strict):
    name: str
    content: KeptSchema = Field(alias="schema", description="A JSON Schema, which the text fulfils.")
    description: IgnoredField
    strict: IgnoredField


class JsonSchemaFormat(Strict):
    type: Literal["json_schema"]
    json_schema: JsonSchema


ResponseFormat = Annotated[TextFormat | JsonObjectFormat | JsonSchemaFormat, Field(discriminator="type")]


class StructuredOutputs(Strict):
    """vLLM's own field; exactly one of its fields is given."""

    json_: Annotated[KeptSchema, BeforeValidator(from_text, str | dict[str, Any])] | None = Field(
        None, alias="json", description="A JSON Schema, also as a text."
    )
    json_object: Literal[True] | None = None
    regex: Annotated[str, Field(min_length=1)] | None = None
    choice: Annotated[Items[Annotated[str, Field(min_length=1)]], Field(min_length=1, max_length=1000)] | None = None
    grammar: Annotated[str, Field(min_length=1)] | None = None


def constraint(asked: TextFormat | JsonObjectFormat | JsonSchemaFormat | StructuredOutputs | None) -> dict[str, Any]:
    """Return the fields of vLLM's `StructuredOutputsParams`; none for free text."""
    match asked:
        case JsonObjectFormat():
            return {"json_object": True}
        case JsonSchemaFormat():
            return {"json": asked.json_schema.content}
        case StructuredOutputs():
            return asked.model_dump(by_alias=True, exclude_none=True)
    return {}


class StreamOptions(Strict):
    include_usage: bool = False
    include_obfuscation: Annotated[object, Only(False)] = None
    continuous_usage_stats: bool = False
    """Usage so far in every chunk, as in vLLM."""


class SampledText(ModelBody, Sampling):
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    seed: Seed | None = None
    n: Annotated[int, Field(ge=1)] | None = Field(None, description="Number of answers to a prompt, of text alone.")
    stop: (
        Annotated[str, Field(min_length=1)]
        | Annotated[Items[Annotated[str, Field(min_length=1)]], Field(max_length=16)]
        | None
    ) = None
    response_format: ResponseFormat | None = None
    logit_bias: dict[TokenText, Annotated[float, Field(ge=-100, le=100)]] | None = None

    # Extensions of vLLM.
    return_token_ids: bool | None = None
    structured_outputs: StructuredOutputs | None = None
    cache_salt: CacheSalt | None = None

    user: IgnoredField

    def sampling(self) -> dict[str, object]:
        """The given vLLM sampling parameters of the first stage."""
        names = Sampling.model_fields.keys() - {"seed", "logprobs"}
        values: dict[str, object] = {name: getattr(self, name) for name in names}
        if bound := constraint(self.response_format) or constraint(self.structured_outputs):
            values["structured_outputs"] = bound
        if self.logit_bias:
            values["logit_bias"] = {int(token_id): bias for token_id, bias in self.logit_bias.items()}
        return {name: value for name, value in values.items() if value is not None}


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
