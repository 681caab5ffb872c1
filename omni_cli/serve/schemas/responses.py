"""`POST /v1/responses`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from omni_cli.config.stage_keys import Fraction, Temperature, Tokens
from omni_cli.serve.schemas import chat
from omni_cli.serve.schemas.completions import JsonObjectFormat, JsonSchema, TextFormat
from omni_cli.serve.schemas.fields import ForOpenAI, IgnoredField, Items, ModelBody, Only, Seed, Strict

LOGPROBS = "message.output_text.logprobs"


class InputText(Strict):
    type: Literal["input_text", "output_text"]
    text: str
    annotations: IgnoredField
    logprobs: IgnoredField


class InputImage(Strict):
    type: Literal["input_image"]
    image_url: str = Field(description="`data:image/png;base64,...`.")
    file_id: Annotated[object, Only()] = None
    detail: IgnoredField


class InputAudioPart(Strict):
    type: Literal["input_audio"]
    input_audio: chat.InputAudio


class Refusal(Strict):
    type: Literal["refusal"]
    refusal: str


InputPart = Annotated[InputText | InputImage | InputAudioPart | Refusal, Field(discriminator="type")]


class InputMessage(Strict):
    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: str | Items[InputPart]
    id: IgnoredField
    status: IgnoredField
    phase: IgnoredField


class InputCall(Strict):
    """A call in an earlier answer."""

    type: Literal["function_call"]
    call_id: Annotated[str, Field(min_length=1)]
    name: Annotated[str, Field(min_length=1)]
    arguments: str
    id: IgnoredField
    status: IgnoredField


class InputCallOutput(Strict):
    """The result of a call."""

    type: Literal["function_call_output"]
    call_id: Annotated[str, Field(min_length=1)]
    output: str | Items[InputText]
    id: IgnoredField
    status: IgnoredField


class ReasoningText(Strict):
    type: Literal["reasoning_text", "summary_text"]
    text: str


class InputReasoning(Strict):
    """Reasoning of an earlier answer."""

    type: Literal["reasoning"]
    summary: Items[ReasoningText] | None = None
    content: Items[ReasoningText] | None = None
    encrypted_content: Annotated[object, Only()] = None
    id: IgnoredField
    status: IgnoredField


def _item_type(item: Any) -> str:
    """Return the type of an item; a message's may be left out."""
    return str(item.get("type", "message") if isinstance(item, dict) else getattr(item, "type", None))


InputItem = Annotated[
    Annotated[InputMessage, Tag("message")]
    | Annotated[InputCall, Tag("function_call")]
    | Annotated[InputCallOutput, Tag("function_call_output")]
    | Annotated[InputReasoning, Tag("reasoning")],
    Discriminator(_item_type),
]


class FlatTool(chat.Function):
    type: Literal["function"]


class FlatNamedTool(chat.FunctionName):
    type: Literal["function"]


class FlatJsonSchemaFormat(JsonSchema):
    type: Literal["json_schema"]


class TextSettings(Strict):
    format: Annotated[TextFormat | JsonObjectFormat | FlatJsonSchemaFormat, Field(discriminator="type")] | None = None
    verbosity: Annotated[object, Only("medium")] = None


class ReasoningSettings(Strict):
    effort: chat.ReasoningEffort | None = None
    summary: IgnoredField
    generate_summary: IgnoredField


class ResponseStreamOptions(Strict):
    include_obfuscation: Annotated[object, Only(False)] = None


class ResponseRequest(ModelBody, ForOpenAI):
    input: str | Annotated[Items[InputItem], Field(min_length=1, max_length=1000)]
    instructions: str | None = None
    stream: bool | None = None
    max_output_tokens: Tokens | None = None
    temperature: Temperature | None = None
    top_p: Fraction | None = None
    tools: Annotated[Items[FlatTool], Field(max_length=1000)] | None = None
    tool_choice: Literal["none", "auto", "required"] | FlatNamedTool | None = None
    parallel_tool_calls: bool | None = None
    text: TextSettings | None = None
    reasoning: ReasoningSettings | None = None
    include: Items[Literal["message.output_text.logprobs", "reasoning.encrypted_content"]] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=chat.MAX_LOGPROBS)] | None = None
    metadata: dict[str, str] | None = None
    stream_options: ResponseStreamOptions | None = None
    seed: Seed | None = None
    chat_template_kwargs: chat.TemplateVariables | None = None
    media_io_kwargs: chat.MediaIO | None = None

    background: Annotated[object, Only(False)] = None
    conversation: Annotated[object, Only()] = None
    previous_response_id: Annotated[object, Only()] = None
    prompt: Annotated[object, Only()] = None
    truncation: Annotated[object, Only("disabled")] = None
    context_management: Annotated[object, Only([])] = None

    max_tool_calls: IgnoredField

    @property
    def wants_logprobs(self) -> bool:
        return LOGPROBS in (self.include or ())

    def as_chat(self) -> chat.ChatCompletionRequest:
        """Return the same request as a chat."""
        choice: Any = self.tool_choice
        if isinstance(choice, FlatNamedTool):
            choice = {"type": "function", "function": {"name": choice.name}}
        text = self.text or TextSettings()
        response_format: dict[str, Any] | None = None
        if isinstance(text.format, FlatJsonSchemaFormat):
            schema = text.format.model_dump(by_alias=True, exclude={"type"})
            response_format = {"type": "json_schema", "json_schema": schema}
        elif text.format is not None:
            response_format = text.format.model_dump()
        same = (
            "model", "temperature", "top_p", "seed", "parallel_tool_calls", "chat_template_kwargs", "media_io_kwargs",
        )  # fmt: skip
        fields = {
            **{name: getattr(self, name) for name in same},
            "messages": list(self._messages()),
            "max_completion_tokens": self.max_output_tokens,
            "tools": [{"type": "function", "function": tool.model_dump(exclude={"type"})} for tool in self.tools or ()],
            "tool_choice": choice,
            "response_format": response_format,
            "reasoning_effort": None if self.reasoning is None else self.reasoning.effort,
            "logprobs": self.wants_logprobs,
            "top_logprobs": self.top_logprobs if self.wants_logprobs else None,
        }
        return chat.ChatCompletionRequest.model_validate(fields)

    def _messages(self) -> Iterator[dict[str, Any]]:
        """Yield a chat's messages: an answer's reasoning, words and calls, items here, are one there."""
        if self.instructions is not None:
            yield {"role": "system", "content": self.instructions}
        if isinstance(self.input, str):
            yield {"role": "user", "content": self.input}
            return
        answer: dict[str, Any] = {}
        for item in self.input:
            more = _part_of_answer(item, answer)
            if answer and (more is None or more.keys() & answer.keys() - {"tool_calls"}):
                yield {"role": "assistant", **answer}
                answer = {}
            if more is not None:
                answer |= more
            elif isinstance(item, InputCallOutput):
                yield {"role": "tool", "tool_call_id": item.call_id, "content": _words(item.output)}
            elif isinstance(item, InputMessage):
                yield {"role": item.role, "content": _content(item)}
        if answer:
            yield {"role": "assistant", **answer}


def _part_of_answer(item: InputItem, answer: dict[str, Any]) -> dict[str, Any] | None:
    """Return what an item adds to an earlier answer; None for one that is not a part of an answer."""
    match item:
        case InputReasoning():
            return {"reasoning": "".join(part.text for part in item.content or item.summary or ())}
        case InputCall():
            call = {"id": item.call_id, "function": {"name": item.name, "arguments": item.arguments}}
            return {"tool_calls": [*answer.get("tool_calls", ()), call]}
        case InputMessage(role="assistant"):
            return {"content": _words(item.content)}
    return None


def _words(content: str | list[Any]) -> str:
    if isinstance(content, str):
        return content
    return "".join(part.refusal if isinstance(part, Refusal) else part.text for part in content)


def _content(message: InputMessage) -> str | list[dict[str, Any]]:
    if isinstance(message.content, str):
        return message.content
    parts: list[dict[str, Any]] = []
    for part in message.content:
        match part:
            case InputImage():
                parts.append({"type": "image_url", "image_url": {"url": part.image_url}})
            case InputAudioPart():
                parts.append({"type": "input_audio", "input_audio": part.input_audio.model_dump()})
            case _:
                parts.append({"type": "text", "text": _words([part])})
    return parts
