"""`POST /v1/chat/completions`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from omni_cli.inputs.fields import MAX_TEMPERATURE, MAX_TOKENS
from omni_cli.serve.schemas.fields import Ignored, Items, Only, Seed, Strict, Voice, VoiceId

Tokens = Annotated[int, Field(ge=1, le=MAX_TOKENS)]
# OpenAI's field -> vLLM's sampling parameter, if the names differ.
_RENAMED = {"max_completion_tokens": "max_tokens"}
_SAMPLING = (
    "max_tokens",
    "max_completion_tokens",
    "temperature",
    "top_p",
    "presence_penalty",
    "frequency_penalty",
    "stop",
    "top_k",
    "min_p",
    "repetition_penalty",
    "min_tokens",
    "stop_token_ids",
    "ignore_eos",
)


class TextPart(Strict):
    type: Literal["text"]
    text: str


class ImageURL(Strict):
    url: str = Field(description="`data:image/png;base64,...`; URLs are not fetched.")
    detail: Annotated[object, Only("auto")] = None


class ImagePart(Strict):
    type: Literal["image_url"]
    image_url: ImageURL


class InputAudio(Strict):
    data: str = Field(description="The file, in base64.")
    format: str = Field(description="Such as `wav`, `mp3` or `m4a`; the file's actual format decides.")


class AudioPart(Strict):
    type: Literal["input_audio"]
    input_audio: InputAudio


class VideoURL(Strict):
    url: str = Field(description="`data:video/mp4;base64,...`; URLs are not fetched.")


class VideoPart(Strict):
    """An extension of vLLM. The sound is not read."""

    type: Literal["video_url"]
    video_url: VideoURL


Part = Annotated[TextPart | ImagePart | AudioPart | VideoPart, Field(discriminator="type")]


class GivenAudio(Strict):
    """Speech of an earlier answer, of which only the transcript is used."""

    id: str | None = None
    transcript: str
    data: Ignored
    expires_at: Ignored


class InstructionMessage(Strict):
    role: Literal["system", "developer"]
    content: str | Items[TextPart]
    name: Annotated[object, Only()] = None


class UserMessage(Strict):
    role: Literal["user"]
    content: str | Items[Part]
    name: Annotated[object, Only()] = None


class AssistantMessage(Strict):
    role: Literal["assistant"]
    content: str | Items[TextPart] | None = None
    audio: GivenAudio | None = None
    name: Annotated[object, Only()] = None
    refusal: Annotated[object, Only()] = None
    annotations: Annotated[object, Only([])] = None
    function_call: Annotated[object, Only()] = None
    tool_calls: Annotated[object, Only([])] = None

    @model_validator(mode="after")
    def _has_words(self) -> AssistantMessage:
        if self.content is None and self.audio is None:
            raise ValueError("a message needs content")
        return self


Message = Annotated[InstructionMessage | UserMessage | AssistantMessage, Field(discriminator="role")]


class AudioSettings(Strict):
    voice: Voice | VoiceId | None = Field(None, description="A speaker of the model. Default: its first one.")
    format: Literal["wav", "flac", "pcm16"] = "wav"


class StreamOptions(Strict):
    include_usage: bool = False
    include_obfuscation: Annotated[object, Only(False)] = None
    continuous_usage_stats: Annotated[object, Only(False)] = None


class TextFormat(Strict):
    type: Literal["text"]


class ChatCompletionRequest(Strict):
    model: str | None = Field(None, description="The model's name in `GET /v1/models`.")
    messages: Annotated[Items[Message], Field(min_length=1, max_length=1000)]
    modalities: Annotated[Items[Literal["text", "audio"]], Field(min_length=1)] | None = None
    audio: AudioSettings | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    seed: Seed | None = None
    max_tokens: Tokens | None = None
    max_completion_tokens: Tokens | None = None
    temperature: Annotated[float, Field(ge=0, le=MAX_TEMPERATURE)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    stop: (
        Annotated[str, Field(min_length=1)]
        | Annotated[Items[Annotated[str, Field(min_length=1)]], Field(max_length=16)]
        | None
    ) = None
    response_format: TextFormat | None = None

    # Extensions of vLLM.
    top_k: Annotated[int, Field(ge=-1, le=MAX_TOKENS)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=100)] | None = None
    min_tokens: Annotated[int, Field(ge=0, le=MAX_TOKENS)] | None = None
    stop_token_ids: Items[Annotated[int, Field(ge=0, lt=2**31)]] | None = None
    ignore_eos: bool | None = None
    return_token_ids: bool | None = None
    cache_salt: Annotated[str, Field(min_length=1, max_length=256)] | None = None

    n: Annotated[object, Only(1)] = None
    tools: Annotated[object, Only([])] = None
    tool_choice: Annotated[object, Only("none", "auto")] = None
    functions: Annotated[object, Only([])] = None
    function_call: Annotated[object, Only("none", "auto")] = None
    logprobs: Annotated[object, Only(False)] = None
    top_logprobs: Annotated[object, Only(0)] = None
    logit_bias: Annotated[object, Only({})] = None
    prediction: Annotated[object, Only()] = None
    reasoning_effort: Annotated[object, Only("none")] = None
    verbosity: Annotated[object, Only()] = None
    web_search_options: Annotated[object, Only()] = None
    moderation: Annotated[object, Only()] = None

    metadata: Ignored
    parallel_tool_calls: Ignored
    prompt_cache_key: Ignored
    prompt_cache_options: Ignored
    prompt_cache_retention: Ignored
    safety_identifier: Ignored
    service_tier: Ignored
    store: Ignored
    user: Ignored

    def sampling(self) -> dict[str, object]:
        """The given vLLM sampling parameters of the first stage."""
        values = {name: getattr(self, name) for name in _SAMPLING}
        return {_RENAMED.get(name, name): value for name, value in values.items() if value is not None}
