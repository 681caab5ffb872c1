"""`POST /v1/chat/completions`, and `/tokenize` and `/detokenize` as vLLM has them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from omni_cli.config.stage_keys import TokenId, Tokens
from omni_cli.requests.contents import ToolUse
from omni_cli.serve.schemas.completions import SampledText
from omni_cli.serve.schemas.fields import (
    ForOpenAI,
    IgnoredField,
    Items,
    ModelBody,
    Only,
    Strict,
    Voice,
    VoiceId,
    with_fields_of,
)

_NAME = Annotated[str, Field(min_length=1, max_length=256)]
MAX_LOGPROBS = 20
"""vLLM's default maximum, and OpenAI's."""
ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh"]
TemplateVariables = Annotated[
    dict[str, Any], Field(max_length=64, description="Variables of the model's chat template.")
]
MediaIO = Annotated[
    dict[Literal["video"], dict[str, float]], Field(description="Frames that the model sees, as in vLLM.")
]


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
    index: IgnoredField


Tools = Annotated[Items[Tool], Field(max_length=1000)]
ToolChoice = Literal["none", "auto", "required"] | NamedTool


class TextPart(Strict):
    type: Literal["text"]
    text: str


class ImageURL(Strict):
    url: str = Field(description="`data:image/png;base64,...`, or a URL that the server may fetch.")
    detail: IgnoredField


class ImagePart(Strict):
    type: Literal["image_url"]
    image_url: ImageURL


class InputAudio(Strict):
    data: str = Field(description="The file, in base64 or by such a URL.")
    format: str = Field(description="Such as `wav`, `mp3` or `m4a`; the file's actual format decides.")


class AudioPart(Strict):
    type: Literal["input_audio"]
    input_audio: InputAudio


class VideoURL(Strict):
    url: str = Field(description="`data:video/mp4;base64,...`, or a URL that the server may fetch.")


class VideoPart(Strict):
    """An extension of vLLM. The sound is not read."""

    type: Literal["video_url"]
    video_url: VideoURL


Part = Annotated[TextPart | ImagePart | AudioPart | VideoPart, Field(discriminator="type")]


class GivenAudio(Strict):
    """Speech of an earlier answer, of which only the transcript is used: given, or remembered by its id for a while."""

    id: str | None = None
    transcript: str | None = None
    data: IgnoredField
    expires_at: IgnoredField


class InstructionMessage(Strict):
    role: Literal["system", "developer"]
    content: str | Items[TextPart]
    name: IgnoredField


class UserMessage(Strict):
    role: Literal["user"]
    content: str | Items[Part]
    name: IgnoredField


class AssistantMessage(Strict):
    role: Literal["assistant"]
    content: str | Items[TextPart] | None = None
    audio: GivenAudio | None = None
    name: IgnoredField
    refusal: str | None = None
    annotations: IgnoredField
    reasoning: str | None = None
    reasoning_content: str | None = None
    function_call: Annotated[object, Only()] = None
    tool_calls: Items[GivenToolCall] | None = None


class ToolMessage(Strict):
    """The result of a call."""

    role: Literal["tool"]
    content: str | Items[TextPart]
    tool_call_id: Annotated[str, Field(min_length=1)]
    name: IgnoredField


Message = Annotated[InstructionMessage | UserMessage | AssistantMessage | ToolMessage, Field(discriminator="role")]


class AudioSettings(Strict):
    voice: Voice | VoiceId | None = Field(None, description="A speaker of the model. Default: its first one.")
    format: Literal["wav", "mp3", "flac", "opus", "aac", "pcm16"] = "wav"


@with_fields_of("chat")
class ChatCompletionRequest(SampledText, ForOpenAI):
    messages: Annotated[Items[Message], Field(min_length=1, max_length=1000)]
    modalities: Annotated[Items[Literal["text", "audio"]], Field(min_length=1)] | None = None
    audio: AudioSettings | None = None
    max_completion_tokens: Tokens | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    reasoning_effort: ReasoningEffort | None = Field(None, description="Where the model's chat template has it.")
    tools: Tools | None = None
    tool_choice: ToolChoice | None = Field(None, description="Default: `auto` with `tools`, else `none`.")
    parallel_tool_calls: bool | None = Field(None, description="Several calls in one answer. Default: true.")
    chat_template_kwargs: TemplateVariables | None = None
    media_io_kwargs: MediaIO | None = None
    add_generation_prompt: bool | None = Field(None, description="Begin an answer to the messages. Default: true.")
    continue_final_message: bool | None = Field(None, description="Continue the last message: no answer is begun.")
    echo: bool | None = Field(None, description="Return an earlier answer that is continued, too, before the new text.")
    return_stage_times: bool | None = Field(
        None, description="Also return when each stage worked for the first answer."
    )

    functions: Annotated[object, Only([])] = None
    function_call: Annotated[object, Only("none", "auto")] = None
    prediction: Annotated[object, Only()] = None
    verbosity: Annotated[object, Only("medium")] = None
    web_search_options: Annotated[object, Only()] = None

    metadata: IgnoredField

    def tool_use(self) -> ToolUse | None:
        """The functions that the answer may call; None without any."""
        if not self.tools:
            return None
        choice = self.tool_choice
        return ToolUse(
            tools=tuple(tool.model_dump(exclude_none=True) for tool in self.tools),
            choice=choice.model_dump() if isinstance(choice, NamedTool) else choice or "auto",
            parallel=self.parallel_tool_calls is not False,
        )

    def sampling(self) -> dict[str, object]:
        """The given vLLM sampling parameters of the first stage."""
        values = super().sampling()
        if self.max_completion_tokens is not None:
            values["max_tokens"] = self.max_completion_tokens
        if self.logprobs:
            values["logprobs"] = self.top_logprobs or 0
        return values


class TokenizeRequest(ModelBody):
    """Has `prompt` or `messages`."""

    prompt: str | None = None
    messages: Annotated[Items[Message], Field(min_length=1, max_length=1000)] | None = None
    add_special_tokens: bool | None = Field(None, description="Default: true for a prompt, false for messages.")
    return_token_strs: bool | None = None

    add_generation_prompt: bool | None = Field(None, description="Begin the answer to the messages. Default: true.")
    chat_template_kwargs: TemplateVariables | None = None
    media_io_kwargs: MediaIO | None = None
    tools: Tools | None = None
    continue_final_message: bool | None = Field(None, description="End with the last message, which stays open.")
    chat_template: Annotated[object, Only()] = None
    mm_processor_kwargs: Annotated[object, Only({})] = None

    def as_chat(self) -> ChatCompletionRequest:
        """Return the chat whose prompt is tokenized."""
        names = self.model_fields.keys() & ChatCompletionRequest.model_fields.keys()
        return ChatCompletionRequest(**{name: getattr(self, name) for name in names})


class DetokenizeRequest(ModelBody):
    tokens: Items[TokenId]
