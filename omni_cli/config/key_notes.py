"""Notes on a profile's keys that pydantic cannot express, and the strict model that declares keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from pydantic import BaseModel, ConfigDict
from pydantic.fields import FieldInfo

Backend = Literal["vllm", "diffusers"]


class StrictKeys(BaseModel):
    """Unknown keys and values of another type are mistakes."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


@dataclass(frozen=True)
class KeyNotes:
    """Notes on a key that pydantic cannot express, in the `Annotated` type of its field.

    `backend` is the only one on which the key has an effect; `reason` and `hint` explain it. `pattern` describes the
    field's pattern in words; `values` lists a backend's values, if it does not have all of them; `missing` is the hint
    if a required key is absent. `elsewhere` maps values that have a meaning elsewhere to the hint for them. A request
    may set a key that `is_argument` of the pipeline's call, too.
    """

    backend: Backend | None = None
    reason: str | None = None
    hint: str | None = None
    pattern: str | None = None
    values: Mapping[Backend, tuple[str, ...]] = field(default_factory=dict)
    missing: str | None = None
    elsewhere: Mapping[str, str] = field(default_factory=dict)
    is_argument: bool = False


def notes_on(key: FieldInfo) -> KeyNotes:
    """Return the notes in a field's type; empty ones if it has none."""
    return next((note for note in key.metadata if isinstance(note, KeyNotes)), KeyNotes())


def has_effect(key: FieldInfo, backend: str) -> bool:
    """True if a key has an effect in a stage on that backend."""
    return notes_on(key).backend in (None, backend)


VLLM_ONLY = KeyNotes(backend="vllm")
DIFFUSERS_ONLY = KeyNotes(backend="diffusers")
ARGUMENT = KeyNotes(is_argument=True)
