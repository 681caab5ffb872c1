"""Types that the schemas share."""

from __future__ import annotations

import json
from functools import partial
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, WithJsonSchema, field_validator
from pydantic_core import PydanticCustomError

from omni_cli.inputs.fields import MAX_SEED


class Strict(BaseModel):
    """Numbers are not text, and unknown fields are errors."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)

    @field_validator("*")
    @classmethod
    def _check_text(cls, value: Any) -> Any:
        """JSON can escape halves of characters, which no tokenizer takes."""
        for text in value if isinstance(value, list) else [value]:
            if isinstance(text, str):
                try:
                    text.encode()
                except UnicodeEncodeError as error:
                    raise ValueError("must be valid Unicode text") from error
        return value


def only(*neutral: Any) -> Any:
    """The type of an official field that is not supported, but for these values, which ask for nothing."""
    return Annotated[
        Any, AfterValidator(partial(_refuse, neutral)), WithJsonSchema({"enum": [None, *neutral]}), Field(default=None)
    ]


def _refuse(neutral: tuple[Any, ...], value: Any) -> Any:
    # 1 equals True in Python, and not in JSON.
    if value is None or any(value == known and type(value) is type(known) for known in neutral):
        return value
    allowed = "; only " + " or ".join(json.dumps(known) for known in neutral) + " is" if neutral else ""
    raise PydanticCustomError("unsupported_parameter", "is not supported{allowed}", {"allowed": allowed})


# Has no influence on an answer: who asks, and what OpenAI should keep.
Ignored = Annotated[Any, Field(default=None, description="Taken and ignored.")]

Seed = Annotated[int, Field(ge=0, le=MAX_SEED, description="Seed; the profile's if absent.")]
Voice = Annotated[str, Field(min_length=1, max_length=200)]


class VoiceId(Strict):
    id: Voice


def voice_name(voice: str | VoiceId | None) -> str | None:
    """The speaker that is meant; None for the model's first one."""
    name = voice.id if isinstance(voice, VoiceId) else voice
    return None if name == "default" else name
