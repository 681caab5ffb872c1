"""The bodies of replies, with OpenAI's field names."""

from __future__ import annotations

from typing import Any, Literal, NotRequired, Required

from typing_extensions import TypedDict


class ErrorFields(TypedDict):
    """`type` and `code` are for programs, `message` for people; `param` names the field that is wrong."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorReply(TypedDict):
    error: ErrorFields


class CompletionTokensDetails(TypedDict):
    text_tokens: int
    audio_tokens: int
    reasoning_tokens: int


class Usage(TypedDict):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    completion_tokens_details: CompletionTokensDetails


class SpokenReply(TypedDict):
    """Speech in base64, in the format of the request, and its words."""

    id: str
    data: str
    expires_at: int
    transcript: str


class FunctionCall(TypedDict, total=False):
    name: str
    arguments: str


class ReplyToolCall(TypedDict):
    id: str
    type: Literal["function"]
    function: FunctionCall


class ToolCallPiece(TypedDict, total=False):
    """A piece of the call at `index`: its id and name first, then pieces of its arguments."""

    index: Required[int]
    id: str
    type: Literal["function"]
    function: Required[FunctionCall]


class ReplyMessage(TypedDict):
    role: Literal["assistant"]
    content: str | None
    refusal: None
    reasoning: NotRequired[str]
    reasoning_content: NotRequired[str]
    tool_calls: NotRequired[list[ReplyToolCall]]
    audio: NotRequired[SpokenReply]


class SpeechDelta(TypedDict, total=False):
    """A piece of speech: base64 of PCM with its rate, or some of its words."""

    id: str
    data: str
    sample_rate: int
    transcript: str
    expires_at: int


class ReplyDelta(TypedDict, total=False):
    role: Literal["assistant"]
    content: str | None
    reasoning: str
    reasoning_content: str
    tool_calls: list[ToolCallPiece]
    audio: SpeechDelta


class TopLogprob(TypedDict):
    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(TopLogprob):
    top_logprobs: list[TopLogprob]


class ChoiceLogprobs(TypedDict):
    content: list[TokenLogprob]
    refusal: None


class _AnyChoice(TypedDict):
    index: int
    logprobs: ChoiceLogprobs | None
    finish_reason: str | None
    token_ids: NotRequired[list[int]]
    audio_token_ids: NotRequired[list[int]]


class Choice(_AnyChoice):
    message: ReplyMessage


class ChunkChoice(_AnyChoice):
    delta: ReplyDelta


class StageTime(TypedDict):
    """A stage's part of a request: seconds since the request's arrival, its duration, and its output tokens."""

    name: str
    began_s: float
    latency_s: float
    output_tokens: int | None


class _AnyCompletion(TypedDict):
    id: str
    created: int
    model: str
    seed: int


class ChatCompletion(_AnyCompletion):
    object: Literal["chat.completion"]
    choices: list[Choice]
    usage: Usage
    stages: NotRequired[list[StageTime]]


class ChatCompletionChunk(_AnyCompletion):
    object: Literal["chat.completion.chunk"]
    choices: list[ChunkChoice]
    usage: NotRequired[Usage]
    stages: NotRequired[list[StageTime]]


class ResponseDocument(TypedDict):
    """A response, with the settings that its request had; `output` has OpenAI's items."""

    id: str
    object: Literal["response"]
    created_at: int
    status: Literal["completed", "incomplete"]
    model: str
    output: list[dict[str, Any]]
    usage: dict[str, Any]
    seed: int


class CompletionLogprobs(TypedDict):
    """Of each token; the first one of an echoed prompt follows nothing and has none."""

    text_offset: list[int]
    token_logprobs: list[float | None]
    tokens: list[str]
    top_logprobs: list[dict[str, float] | None]


class CompletionChoice(TypedDict):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: str | None
    prompt_token_ids: NotRequired[list[int]]
    token_ids: NotRequired[list[int]]


class Completion(_AnyCompletion):
    object: Literal["text_completion"]
    choices: list[CompletionChoice]
    usage: NotRequired[Usage]


class Tokens(TypedDict):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class DetokenizedText(TypedDict):
    prompt: str


class SpeechUsage(TypedDict):
    input_tokens: int
    output_tokens: int
    total_tokens: int


class VoiceItem(TypedDict):
    id: str
    name: str
    speaker: str


class SavedVoiceItem(TypedDict):
    """`seconds` is the length of the recording."""

    id: str
    object: Literal["audio.voice"]
    name: str
    created_at: int
    consent: str
    ref_text: str | None
    seconds: float


class Deleted(TypedDict):
    id: str
    object: Literal["audio.voice.deleted", "video.deleted"]
    deleted: Literal[True]


class VoiceList(TypedDict):
    """`speaker` is the model's own that speaks for one of OpenAI's voices."""

    voices: list[VoiceItem | SavedVoiceItem]


class SpeechEvent(TypedDict):
    """`speech.audio.delta` has `audio`, base64 of PCM; `speech.audio.done` has `usage` and `finish_reason`."""

    type: Literal["speech.audio.delta", "speech.audio.done"]
    audio: NotRequired[str]
    usage: NotRequired[SpeechUsage]
    finish_reason: NotRequired[str]


class TranscriptUsage(TypedDict, total=False):
    """Seconds of sound, or in events tokens."""

    type: Literal["duration", "tokens"]
    seconds: int
    input_tokens: int
    output_tokens: int
    total_tokens: int


class TranscriptSegment(TypedDict):
    """`seek` and the last three are 0 if the model does not tell them."""

    id: int
    seek: int
    start: float
    end: float
    text: str
    tokens: list[int]
    temperature: float
    avg_logprob: float
    compression_ratio: float
    no_speech_prob: float


class SpeakerSegment(TypedDict):
    """`speaker` is the model's own name, such as `S01`."""

    type: Literal["transcript.text.segment"]
    id: str
    start: float
    end: float
    text: str
    speaker: str


class TranscriptWord(TypedDict):
    word: str
    start: float
    end: float


class TranscriptReply(TypedDict):
    """The other fields are those of `verbose_json` and `diarized_json`; `language` is a name, such as `english`."""

    text: str
    usage: TranscriptUsage
    task: NotRequired[Literal["transcribe", "translate"]]
    language: NotRequired[str]
    duration: NotRequired[float]
    segments: NotRequired[list[TranscriptSegment | SpeakerSegment]]
    words: NotRequired[list[TranscriptWord]]


class TranscriptEvent(TypedDict):
    """`transcript.text.delta` has `delta`; `transcript.text.done` has the whole `text` and `usage`."""

    type: Literal["transcript.text.delta", "transcript.text.done"]
    delta: NotRequired[str]
    text: NotRequired[str]
    usage: NotRequired[TranscriptUsage]


class ImageItem(TypedDict, total=False):
    """One of them; `url` is a data URL."""

    b64_json: str
    url: str


class ImagesReply(TypedDict):
    created: int
    output_format: str
    data: list[ImageItem]
    seed: int
    stages: NotRequired[list[StageTime]]


class SleepStatus(TypedDict):
    status: Literal["sleeping"]
    level: int


class WakeStatus(TypedDict):
    status: Literal["awake", "sleeping"]
    tags: list[str] | None


class Sleeping(TypedDict):
    is_sleeping: bool


class VideoError(TypedDict):
    code: str
    message: str


class VideoReply(TypedDict):
    """The state of a video; times are seconds since the epoch, `progress` is a percentage."""

    id: str
    object: Literal["video"]
    model: str
    prompt: str
    status: Literal["queued", "in_progress", "completed", "failed"]
    progress: int
    seconds: str
    size: str
    created_at: int
    completed_at: int | None
    expires_at: int | None
    error: VideoError | None
    remixed_from_video_id: None


class VideoList(TypedDict):
    object: Literal["list"]
    data: list[VideoReply]
    first_id: str | None
    last_id: str | None
    has_more: bool


class Model(TypedDict):
    """`root` is the checkpoint, or the folder of a LoRA adapter, a model of its `parent`; `sampling` is by default."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    parent: str | None
    modalities: list[str]
    input_modalities: list[str]
    sampling: NotRequired[dict[str, dict[str, Any]]]
    random_weights: NotRequired[bool]


class ModelList(TypedDict):
    object: Literal["list"]
    data: list[Model]


class Health(TypedDict):
    status: Literal["ok"]


class Readiness(TypedDict):
    """`stages` maps each loaded stage to `ready`, `asleep` or `failed`."""

    status: str
    stages: dict[str, str]
