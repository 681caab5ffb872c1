"""Convert a chat's messages for the engine."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

from omni_cli.requests.contents import Media, ToolCall
from omni_cli.requests.outputs import Message, Part
from omni_cli.serve.errors import APIError
from omni_cli.serve.media import MediaDecoder
from omni_cli.serve.schemas import chat

_MAX_TRANSCRIPTS = 1024


def read_conversation(messages: list[chat.Message], decoder: MediaDecoder, transcripts: Transcripts) -> dict[str, Any]:
    """Return `messages`, `media` and `notes` of a `GenerateRequest`.

    `transcripts` are those of earlier speech. For use in a thread if there is media. Raises `APIError` (400).
    """
    media: dict[str, list[Any]] = {"audio": [], "images": [], "videos": []}
    turns = []
    for number, message in enumerate(messages):
        param = f"messages[{number}]"
        parts = _parts(_with_words(message, param, transcripts), f"{param}.content", decoder, media)
        turns.append(_turn(message, tuple(parts)))
    return {
        "messages": tuple(turns),
        "media": Media(tuple(media["audio"]), tuple(media["images"]), videos=tuple(media["videos"])),
        "notes": tuple(decoder.notes),
    }


def _turn(message: chat.Message, parts: tuple[Part, ...]) -> Message:
    match message:
        case chat.AssistantMessage():
            calls = ((call.id, call.function) for call in message.tool_calls or ())
            return Message(
                message.role,
                parts,
                reasoning=message.reasoning or message.reasoning_content,
                tool_calls=tuple(ToolCall(id_, function.name, function.arguments) for id_, function in calls),
            )
        case chat.ToolMessage():
            return Message(message.role, parts, tool_call_id=message.tool_call_id)
        case chat.InstructionMessage():
            return Message("system", parts)
    return Message(message.role, parts)


class Transcripts:
    """The words of speech in recent answers, by its id; the oldest are forgotten."""

    def __init__(self) -> None:
        self._texts: OrderedDict[str, str] = OrderedDict()

    def add(self, audio_id: str, text: str) -> None:
        self._texts[audio_id] = text
        if len(self._texts) > _MAX_TRANSCRIPTS:
            self._texts.popitem(last=False)

    def get(self, audio_id: str) -> str | None:
        return self._texts.get(audio_id)


def _with_words(message: chat.Message, param: str, transcripts: Transcripts) -> chat.Message:
    """Give an earlier answer that was spoken its words, and one without content no words."""
    if not isinstance(message, chat.AssistantMessage) or message.content is not None:
        return message
    text, audio = message.refusal or "", message.audio
    if audio is not None:
        text = _transcript(audio, param, transcripts)
    return message.model_copy(update={"content": text})


def _transcript(audio: chat.GivenAudio, param: str, transcripts: Transcripts) -> str:
    if audio.transcript is not None:
        return audio.transcript
    if audio.id is None:
        what = "an earlier answer's `audio` needs its `id` or its `transcript`"
        raise APIError(400, what, code="missing_field", param=f"{param}.audio")
    text = transcripts.get(audio.id)
    if text is None:
        what = f"the speech `{audio.id}` is not known here, or was forgotten: send its `transcript`"
        raise APIError(400, what, code="unknown_audio", param=f"{param}.audio.id")
    return text


def _parts(message: chat.Message, param: str, decoder: MediaDecoder, media: dict[str, list[Any]]) -> Iterator[Part]:
    content = message.content
    if not isinstance(content, list):
        yield Part("text", content or "")
        return
    for number, part in enumerate(content):
        match part:
            case chat.TextPart():
                yield Part("text", part.text)
            case chat.ImagePart():
                media["images"].append(decoder.image(part.image_url.url, f"{param}[{number}].image_url.url"))
                yield Part("image")
            case chat.VideoPart():
                media["videos"].append(decoder.video(part.video_url.url, f"{param}[{number}].video_url.url"))
                yield Part("video")
            case chat.AudioPart():
                media["audio"].append(decoder.audio(part.input_audio.data, f"{param}[{number}].input_audio.data"))
                yield Part("audio")
