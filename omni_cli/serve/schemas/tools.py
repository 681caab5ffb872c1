"""Fields of a chat for functions that its answer may call."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from omni_cli.serve.schemas.fields import Ignored, Items, Strict

_NAME = Annotated[str, Field(min_length=1, max_length=256)]


class Function(Strict):
    name: _NAME
    description: str | None = None
    parameters: dict[str, Any] | None = Field(None, description="A JSON Schema of its arguments.")
    strict: bool | None = Field(None, description="Bind a call's arguments to the schema.")


class Tool(Strict):
    type: Literal["function"]
    function: Function


class FunctionName(Strict):
    name: _NAME


class NamedTool(Strict):
    """The function that the answer must call."""

    type: Literal["function"]
    function: FunctionName


class CalledFunction(Strict):
    name: _NAME
    arguments: str = Field(description="JSON.")


class GivenToolCall(Strict):
    """A call in an earlier answer."""

    id: Annotated[str, Field(min_length=1)]
    type: Literal["function"] = "function"
    function: CalledFunction
    index: Ignored


Tools = Annotated[Items[Tool], Field(max_length=1000)]
ToolChoice = Literal["none", "auto", "required"] | NamedTool
