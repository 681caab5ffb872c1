"""Fields of a chat that bind its text to a grammar: OpenAI's `response_format` and vLLM's `structured_outputs`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from omni_cli.json_schemas import check_schema
from omni_cli.serve.schemas.fields import Ignored, Items, Strict, from_json

KeptSchema = Annotated[dict[str, Any], AfterValidator(check_schema)]


class TextFormat(Strict):
    type: Literal["text"]


class JsonObjectFormat(Strict):
    type: Literal["json_object"]


class JsonSchema(Strict):
    name: str
    content: KeptSchema = Field(alias="schema", description="A JSON Schema, which the text fulfils.")
    description: Ignored
    strict: Ignored


class JsonSchemaFormat(Strict):
    type: Literal["json_schema"]
    json_schema: JsonSchema


ResponseFormat = Annotated[TextFormat | JsonObjectFormat | JsonSchemaFormat, Field(discriminator="type")]


def _read_schema(value: object) -> object:
    return from_json(value.encode()) if isinstance(value, str) else value


class StructuredOutputs(Strict):
    """vLLM's own field; exactly one of its fields is given."""

    json_: Annotated[KeptSchema, BeforeValidator(_read_schema, str | dict[str, Any])] | None = Field(
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
