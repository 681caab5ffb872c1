"""Shared field types of the schemas."""

from __future__ import annotations

import json
from typing import Annotated, Any, get_args

from fastapi import UploadFile
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    field_validator,
    model_validator,
)
from pydantic_core import CoreSchema, PydanticCustomError, core_schema
from starlette.datastructures import UploadFile as StarletteUploadFile

from omni_cli.inputs.fields import MAX_SEED


class Strict(BaseModel):
    """Rejects text in place of numbers, and unknown fields."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _take_integral_numbers(cls, fields: object) -> object:
        """Accept 1.0 for 1: JSON has one kind of number, and to JSON Schema both are integers."""
        return {name: _integral(value) for name, value in fields.items()} if isinstance(fields, dict) else fields

    @field_validator("*")
    @classmethod
    def _check_text(cls, value: object) -> object:
        """Reject lone surrogates, which JSON can escape but no tokenizer accepts."""
        for text in value if isinstance(value, list) else [value]:
            if isinstance(text, str):
                try:
                    text.encode()
                except UnicodeEncodeError as error:
                    raise ValueError("must be valid Unicode text") from error
        return value


class Form(Strict):
    """A `multipart/form-data` body: values that are not files are text, read as JSON where the field is not text."""

    @model_validator(mode="before")
    @classmethod
    def _read_text(cls, fields: object) -> object:
        if not isinstance(fields, dict):
            return fields
        texts = {field.alias or name for name, field in cls.model_fields.items() if _is_text(field.annotation)}
        return {name: value if name in texts else _read(value) for name, value in fields.items()}

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """Document no null, which a form does not have: optional fields are left out."""
        document = handler(schema)
        fields = handler.resolve_ref_schema(document)["properties"]
        for name, field in fields.items():
            options = [option for option in field.get("anyOf", ()) if option != {"type": "null"}]
            if len(options) == 1:
                fields[name] = {key: value for key, value in field.items() if key != "anyOf"} | options[0]
        return document


def _is_text(annotation: object) -> bool:
    return annotation is str or any(map(_is_text, get_args(annotation)))


def _read(value: object) -> object:
    try:
        return json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError):
        return value


def _check_file(value: object) -> object:
    if isinstance(value, StarletteUploadFile):
        return value
    raise ValueError("must be a file")


Upload = Annotated[UploadFile, BeforeValidator(_check_file)]


def _integral(value: object) -> object:
    if isinstance(value, list):
        return [_integral(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


class Only:
    """An official field that is unsupported, except for null and these neutral values."""

    def __init__(self, *neutral: object) -> None:
        self._neutral = neutral

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self._check, handler(source))

    def __get_pydantic_json_schema__(self, _schema: CoreSchema, _handler: GetJsonSchemaHandler) -> dict[str, object]:
        return {"enum": [None, *self._neutral]}

    def _check(self, value: object) -> object:
        # 1 equals True in Python, but not in JSON.
        if value is None or any(value == known and type(value) is type(known) for known in self._neutral):
            return value
        known = " or ".join(json.dumps(known) for known in self._neutral)
        allowed = f"; only {known} is" if known else ""
        raise PydanticCustomError("unsupported_parameter", "is not supported{allowed}", {"allowed": allowed})


# No influence on a reply: the requester, and what OpenAI should store.
Ignored = Annotated[object, Field(default=None, description="Accepted and ignored.")]

Seed = Annotated[int, Field(ge=0, le=MAX_SEED, description="Seed. Default: the profile's.")]
Voice = Annotated[str, Field(min_length=1, max_length=200)]


class VoiceId(Strict):
    id: Voice


def voice_name(voice: str | VoiceId | None) -> str | None:
    """Return the requested speaker; None for the model's first one."""
    name = voice.id if isinstance(voice, VoiceId) else voice
    return None if name == "default" else name
