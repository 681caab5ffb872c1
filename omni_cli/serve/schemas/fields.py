"""Shared field types of the schemas."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from typing import Annotated, Any, ClassVar, TypeVar, get_args

import jiter
from fastapi import UploadFile
from pydantic import BeforeValidator, Field, GetCoreSchemaHandler, GetJsonSchemaHandler, create_model, model_validator
from pydantic_core import CoreSchema, PydanticCustomError, core_schema
from starlette.datastructures import UploadFile as StarletteUploadFile

from omni_cli.config.bounds import MAX_NAME_LENGTH, MAX_SEED, MIN_SEED
from omni_cli.config.stage_keys import StrictKeys
from omni_cli.requests.fields import FIELDS, Part, Route

T = TypeVar("T")
Body = TypeVar("Body", bound="Strict")
# One error is enough: for a list of 100,000 they take a second.
Items = Annotated[list[T], Field(fail_fast=True)]
_MAX_FIELDS = 1000


def from_json(content: bytes) -> object:
    """Raise `ValueError` also for what Python's reader drops or accepts: repeated fields, NaN, lone surrogates.

    Up to 200 levels deep, and for numbers of up to 4300 digits.
    """
    document: object = jiter.from_json(content, allow_inf_nan=False, catch_duplicate_keys=True)
    return document


def from_text(value: object) -> object:
    """Return what a text says as JSON, and any other value unchanged. Raises `ValueError`, as `from_json`."""
    return from_json(value.encode()) if isinstance(value, str) else value


class Strict(StrictKeys):
    """Rejects text in place of numbers, and unknown fields."""

    route: ClassVar[Route | None] = None
    """The route whose fields the class has, see `with_fields_of`."""

    def request_fields(self, part: Part) -> dict[str, Any]:
        """Return the set fields of a part of the request, by their names in the table of fields."""
        rows = [row for row in FIELDS.values() if row.part == part and not row.is_combined]
        keys = {row.name: key for row in rows if self.route is not None and (key := row.http.get(self.route))}
        values = {name: getattr(self, key) for name, key in keys.items()}
        return {name: value for name, value in values.items() if value is not None}

    @model_validator(mode="before")
    @classmethod
    def _take_integral_numbers(cls, fields: object) -> object:
        """Accept 1.0 for 1: JSON has one kind of number, and to JSON Schema both are integers."""
        if not isinstance(fields, dict):
            return fields
        if len(fields) > _MAX_FIELDS:
            raise ValueError(f"must have at most {_MAX_FIELDS} fields")
        return {
            name: [integral(item) for item in value] if isinstance(value, list) else integral(value)
            for name, value in fields.items()
        }


class ModelBody(Strict):
    """The body of a route that a model answers."""

    model: str | None = Field(None, description="The model's name in `GET /v1/models`.")


def with_fields_of(route: Route) -> Callable[[type[Body]], type[Body]]:
    """Add to a body's class the fields of requests on a route that it does not declare itself."""

    def extend(body: type[Body]) -> type[Body]:
        added: dict[str, Any] = {
            name: (Annotated[row.type, Field(**row.limits)] | None, Field(None, description=row.about))
            for row in FIELDS.values()
            if (name := row.http.get(route)) and name not in body.model_fields
        }
        extended = create_model(body.__name__, __base__=body, __module__=body.__module__, __doc__=body.__doc__, **added)
        extended.route = route
        return extended

    return extend


class Form(Strict):
    """A `multipart/form-data` body: values that are not files are text, read as JSON where the field is not text."""

    @model_validator(mode="before")
    @classmethod
    def _read_text(cls, fields: object) -> object:
        if not isinstance(fields, dict):
            return fields
        texts = {field.alias or name for name, field in cls.model_fields.items() if _is_text(field.annotation)}
        values = dict(fields)
        for name in values.keys() - texts:
            with suppress(ValueError):
                values[name] = from_text(values[name])
        return values

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


def _check_file(value: object) -> object:
    if isinstance(value, StarletteUploadFile):
        return value
    raise ValueError("must be a file")


Upload = Annotated[UploadFile, BeforeValidator(_check_file)]


def integral(value: object) -> object:
    """Return 1 for 1.0."""
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
IgnoredField = Annotated[object, Field(default=None, description="Accepted and ignored.")]


class ForOpenAI(Strict):
    """Fields about the requester, and what OpenAI should store, cache or charge."""

    moderation: IgnoredField
    prompt_cache_key: IgnoredField
    prompt_cache_options: IgnoredField
    prompt_cache_retention: IgnoredField
    safety_identifier: IgnoredField
    service_tier: IgnoredField
    store: IgnoredField
    user: IgnoredField


Seed = Annotated[
    int,
    Field(
        ge=MIN_SEED,
        lt=MAX_SEED + 1,
        description="Seed. Default: a random one, which the response names in its header `X-Seed`.",
    ),
]
Voice = Annotated[str, Field(min_length=1, max_length=MAX_NAME_LENGTH)]


class VoiceId(Strict):
    id: Voice


def voice_name(voice: str | VoiceId | None) -> str | None:
    """Return the requested speaker; None for the model's first one."""
    name = voice.id if isinstance(voice, VoiceId) else voice
    return None if name == "default" else name
