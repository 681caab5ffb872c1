"""The choices of a chat's answer, from the deltas in which they come or from whole messages, and its `usage`."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import msgspec

from omni_cli.requests.contents import ToolCall

_EARLIER_CALL = -1
"""The index of a `function_call`, beside those of `tool_calls`."""


class SpokenDelta(msgspec.Struct):
    """`sample_rate` is of `omni serve`."""

    data: str | None = None
    sample_rate: int | None = None
    transcript: str | None = None


class FunctionPart(msgspec.Struct):
    """The arguments are text in OpenAI's API, and an object in some servers."""

    name: str | None = None
    arguments: Any = None


class ToolCallPart(msgspec.Struct):
    """A tool call or a part of one. Where a server omits the `index`, another `id` begins another call."""

    index: int | None = None
    id: str | None = None
    function: FunctionPart | None = None


class ContentPart(msgspec.Struct):
    """A part of a content that is a list; in Mistral's API, `thinking` are those of a reasoning."""

    text: str | None = None
    thinking: list[ContentPart] | None = None


class Delta(msgspec.Struct):
    """`reasoning` is vLLM's name for the reasoning before the answer, `reasoning_content` its earlier one;
    `function_call` is OpenAI's earlier name for a tool call, of which there was one."""

    content: str | list[ContentPart] | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    refusal: str | None = None
    tool_calls: list[ToolCallPart | None] | None = None
    function_call: FunctionPart | None = None
    audio: SpokenDelta | None = None


class ChoiceDelta(msgspec.Struct):
    index: int | None = None
    delta: Delta | None = None
    finish_reason: str | None = None


@dataclass
class AnswerChoice:
    """One choice of a chat, put together from its deltas, or from its message. The words of speech are `content`.

    Of a stream, `at` and `sizes` are the times of the chunks that have output other than sound, and their characters.
    """

    at: list[float] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    content: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    refusal: list[str] = field(default_factory=list)
    tool_calls: dict[int, ToolCall] = field(default_factory=dict)
    finish_reason: str | None = None

    def add(self, delta: Delta) -> int:
        """Add a delta, or a whole message; return its number of characters."""
        size = 0  # for each chunk of hundreds of streams at once: no loops
        if isinstance(delta.content, list):
            delta.reasoning = "".join(item.text or "" for part in delta.content for item in part.thinking or ()) or None
            delta.content = "".join(part.text or "" for part in delta.content)
        if content := delta.content or (delta.audio is not None and delta.audio.transcript):
            self.content.append(content)
            size = len(content)
        if reasoning := delta.reasoning or delta.reasoning_content:
            self.reasoning.append(reasoning)
            size += len(reasoning)
        if delta.refusal:
            self.refusal.append(delta.refusal)
            size += len(delta.refusal)
        if delta.function_call is not None:
            size += self._add_call(ToolCallPart(_EARLIER_CALL, function=delta.function_call))
        for call in delta.tool_calls or ():
            size += 0 if call is None else self._add_call(call)
        return size

    def _add_call(self, part: ToolCallPart) -> int:
        last = max(self.tool_calls, default=0)
        begins = part.index is None and last in self.tool_calls and part.id not in (None, self.tool_calls[last].id)
        index = last + begins if part.index is None else part.index
        call, function = self.tool_calls.get(index) or ToolCall(part.id or "", "", ""), part.function or FunctionPart()
        given = function.arguments
        arguments = given if isinstance(given, str) else "" if given is None else json.dumps(given)
        self.tool_calls[index] = ToolCall(call.id, call.name + (function.name or ""), call.arguments + arguments)
        return len(function.name or "") + len(arguments)

    @property
    def text(self) -> str:
        """The content, with the reasoning before it."""
        return "".join([*self.reasoning, *self.content])

    @property
    def comparison_text(self) -> str:
        """All parts as one text, equal only if each of them is: the content alone where there is nothing else."""
        calls = [f"\0tool call\0{call.name}\0{call.arguments}" for _, call in sorted(self.tool_calls.items())]
        reasoning, refusal = "".join(self.reasoning), "".join(self.refusal)
        before, after = f"{reasoning}\0reasoning\0" if reasoning else "", f"\0refusal\0{refusal}" if refusal else ""
        return "".join([before, *self.content, after, *calls])


class _Details(msgspec.Struct):
    audio_tokens: int | None = None
    reasoning_tokens: int | None = None


class TokenCounts(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    completion_tokens_details: _Details | None = None

    @property
    def audio_tokens(self) -> int:
        details = self.completion_tokens_details
        return (details and details.audio_tokens) or 0

    @property
    def reasoning_tokens(self) -> int:
        details = self.completion_tokens_details
        return (details and details.reasoning_tokens) or 0

    @property
    def text_tokens(self) -> int | None:
        return None if self.completion_tokens is None else self.completion_tokens - self.audio_tokens
