"""Functions that an answer may call, and its calls of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class ToolCall:
    """A model's call of a function; `arguments` is JSON as the model wrote it, which may be wrong or cut."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True)
class ToolCallDelta:
    """A piece of the call at `index` of an answer: its `id` and `name` first, then pieces of its arguments."""

    index: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""


@dataclass(frozen=True)
class ToolUse:
    """The functions that an answer may call, in OpenAI's form; `choice` is a mode, or the function that it must call.

    `parallel` allows several calls in one answer.
    """

    tools: tuple[Mapping[str, Any], ...]
    choice: Literal["auto", "none", "required"] | Mapping[str, Any] = "auto"
    parallel: bool = True
