"""Readers of a server's answers, fed with bytes as they arrive: lenient, and blind to what nobody looks at."""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from omni_cli.core.errors import AnswerError
from omni_cli.openai_api.choices import AnswerChoice, ChoiceDelta, Delta, TokenCounts
from omni_cli.openai_api.events import EventParser
from omni_cli.openai_api.sound import SpokenAnswer

T = TypeVar("T")

_END_OF_STREAM = b"[DONE]"
_MAX_REST = 200


class _Event(msgspec.Struct):
    """A reply or a part of one. `type`, `audio` and `finish_reason` are of events of speech."""

    type: str = ""
    audio: str | None = None
    finish_reason: str | None = None
    usage: TokenCounts | None = None
    error: Any = None
    message: Any = None  # of an event that is an error itself


E = TypeVar("E", bound=_Event)


class _Chunk(_Event):
    """A chunk of a chat, or an event of speech, without log-probabilities."""

    choices: list[ChoiceDelta | None] | None = None


class LikelyToken(msgspec.Struct):
    token: str
    logprob: float


class ScoredToken(LikelyToken):
    """`id` is the token's, which some servers send."""

    top_logprobs: list[LikelyToken] = []
    id: int | None = None


class _Logprobs(msgspec.Struct):
    """A chat has `content`, a completion the others."""

    content: list[ScoredToken] | None = None
    tokens: list[str] = []
    token_logprobs: list[float | None] = []
    top_logprobs: list[dict[str, float] | None] | None = None


class _WholeChoice(ChoiceDelta):
    """A chat has a `message`, each of its chunks a `delta`, a completion `text`. `token_ids` are vLLM's."""

    message: Delta | None = None
    text: str | None = None
    logprobs: _Logprobs | None = None
    token_ids: tuple[int, ...] | None = None

    @property
    def whole_delta(self) -> Delta:
        return Delta(content=self.text) if self.text is not None else self.message or self.delta or Delta()

    @property
    def scores(self) -> tuple[ScoredToken, ...] | None:
        """The tokens with their log-probabilities, in the format of chats; None without any."""
        found = self.logprobs
        if found is None:
            return None
        if found.content is not None:
            return tuple(found.content)
        tops = found.top_logprobs or [None] * len(found.tokens)
        tokens = []
        for token, logprob, top in zip(found.tokens, found.token_logprobs, tops, strict=True):
            likely = [LikelyToken(*item) for item in (top or {}).items()]
            tokens.append(ScoredToken(token, math.nan if logprob is None else logprob, likely))
        return tuple(tokens) or None


class _Segment(msgspec.Struct):
    start: float | None = None
    end: float | None = None
    text: str | None = None


class Reply(_Event):
    """The reply of a chat, a completion or a transcription, or an event of one; a transcript has `text` or `delta`."""

    choices: list[_WholeChoice | None] | None = None
    text: str | None = None
    delta: str | None = None
    segments: list[_Segment] | None = None


@dataclass
class ServerAnswer(SpokenAnswer):
    """Times are of `time.perf_counter`. Token counts are the server's, None if it reports none.

    `first_at` and `last_at` are the times of a stream's first and last output of any kind: text, reasoning, a tool
    call, a refusal or sound. `choices` are by index; a transcript is one. `first_tokens` is the number of tokens up to
    the first chunk, if its `usage` tells it. `text` has the pieces of text of all choices in the order in which they
    came. `output_tokens` counts all that the model generated, `audio_tokens` those that became sound, and
    `reasoning_tokens` those of its reasoning, which some servers do not send. `sent_sound_s` are the seconds of the
    sound to transcribe, `expected` the words that the answer should have, and `word_errors` those that are wrong, as
    far as the caller looked.
    """

    first_at: float | None = None
    last_at: float | None = None
    first_tokens: int | None = None
    text: list[str] = field(default_factory=list)
    choices: dict[int, AnswerChoice] = field(default_factory=dict)
    images: list[bytes] = field(default_factory=list)
    input_tokens: int | None = None
    output_tokens: int | None = None
    audio_tokens: int = 0
    reasoning_tokens: int = 0
    finish_reason: str | None = None
    sent_sound_s: float | None = None
    expected: str | None = None
    word_errors: Mapping[str, float] = field(default_factory=dict)

    def choice(self, index: int | None) -> AnswerChoice:
        """Return a choice, which its first part begins."""
        return self.choices.get(index or 0) or self.choices.setdefault(index or 0, AnswerChoice())

    @property
    def content(self) -> list[str]:
        """The text of the first choice, without the reasoning before it."""
        return self.choices[0].content if 0 in self.choices else []

    @property
    def audio_s(self) -> float | None:
        """Seconds of the sound that was made, or that was transcribed."""
        if self.sent_sound_s is not None:
            return self.sent_sound_s
        return None if self.sound is None else self.sound.seconds

    @property
    def streams(self) -> list[AnswerChoice]:
        """The choices that have chunks of output."""
        return [choice for choice in self.choices.values() if choice.at]

    @property
    def num_chunks(self) -> int:
        return sum(len(choice.at) for choice in self.streams)

    @property
    def hidden_tokens(self) -> int:
        """The tokens of reasoning that the server counts and does not send."""
        sent = (self.output_tokens or 0) - self.audio_tokens - self.reasoning_tokens
        is_hidden = self.num_chunks <= sent and not any(choice.reasoning for choice in self.choices.values())
        return self.reasoning_tokens if is_hidden else 0

    @property
    def later_tokens(self) -> float | None:
        """The tokens after the first chunk of each choice: by the `usage` of that chunk; else all but one where each
        token has a chunk of its own; else by the share of the characters."""
        streams = self.streams
        if self.output_tokens is None or not streams:
            return None
        tokens = self.output_tokens - self.audio_tokens
        if self.pcm and not self.audio_tokens and self.num_chunks < tokens:
            return None  # which of them are text is not known
        if self.first_tokens is not None:
            return tokens - self.first_tokens
        tokens -= self.hidden_tokens
        if self.num_chunks >= tokens:
            return tokens - len(streams)
        return tokens * sum(sum(item.sizes[1:]) for item in streams) / sum(sum(item.sizes) for item in streams)


class Reader(Protocol):
    answer: ServerAnswer

    def feed(self, chunk: bytes, at_s: float) -> None:
        """Process received data. Raises `AnswerError`."""

    def finish(self) -> None:
        """Check that the answer is complete. Raises `AnswerError`."""


class _EventReader(Generic[E]):
    """Reader of a stream of events, each a document for `decoder`."""

    def __init__(self, decoder: msgspec.json.Decoder[E]) -> None:
        self.answer = ServerAnswer()
        self._decoder = decoder
        self._events = EventParser()

    def feed(self, chunk: bytes, at_s: float) -> None:
        for data in self._events.feed(chunk):
            if data != _END_OF_STREAM:
                event = _decode(data, self._decoder)
                if (error := event.message if event.error is None else event.error) is not None:
                    raise AnswerError("error in the stream", error_message(error))
                self._take(event, at_s)

    def _take(self, event: E, at_s: float) -> None:
        raise NotImplementedError


class ChatReader(_EventReader[_Chunk]):
    """Reader of a streamed chat: chunks of text and audio, then usage; or of the events of speech."""

    def __init__(self) -> None:
        super().__init__(_CHUNK)
        self._sound_type = ""
        self._has_chunks = False

    def finish(self) -> None:
        reasons = [choice.finish_reason for choice in self.answer.choices.values()]
        if self.answer.finish_reason is None or None in reasons:
            rest = bytes(self._events.rest[:_MAX_REST]).decode(errors="replace")
            raise AnswerError("incomplete answer", "the stream ended without a finish_reason" + (rest and f": {rest}"))
        self.answer.content_type = self._sound_type  # not that of the events
        self.answer.check_format()

    def _take(self, event: _Chunk, at_s: float) -> None:
        answer = self.answer
        for choice in event.choices or ():
            if choice is not None:
                self._take_choice(choice, event.usage, at_s)
        if event.audio:
            answer.add_audio(event.audio, at_s)
            answer.last_at = at_s
        if event.type == "speech.audio.done":
            answer.finish_reason = event.finish_reason or "stop"
        if answer.last_at is None and answer.finish_reason is not None:
            answer.last_at = at_s  # an empty answer
        if event.usage is not None:
            answer.input_tokens = event.usage.prompt_tokens
            answer.output_tokens = event.usage.completion_tokens
            answer.audio_tokens = event.usage.audio_tokens
            answer.reasoning_tokens = event.usage.reasoning_tokens

    def _take_choice(self, choice: ChoiceDelta, usage: TokenCounts | None, at_s: float) -> None:
        answer, delta, parts = self.answer, choice.delta, self.answer.choice(choice.index)
        if choice.finish_reason:
            answer.finish_reason = parts.finish_reason = choice.finish_reason
        if delta is None:
            return
        size, audio = parts.add(delta), delta.audio
        content = parts.content[-1] if delta.content or (audio and audio.transcript) else None
        answer.text += filter(None, (delta.reasoning or delta.reasoning_content, content, delta.refusal))
        if audio is not None and audio.sample_rate is not None:
            self._sound_type = f"audio/pcm;rate={audio.sample_rate}"
        if audio is not None and audio.data:
            if choice.index:
                raise AnswerError("invalid answer", "several choices have sound: ask for one (`n`)")
            answer.add_audio(audio.data, at_s)
        elif not size:
            return
        answer.first_at = at_s if answer.first_at is None else answer.first_at
        answer.last_at = at_s
        if size:
            self._count(answer, usage)
            parts.at.append(at_s)
            parts.sizes.append(size)

    def _count(self, answer: ServerAnswer, usage: TokenCounts | None) -> None:
        """Note the tokens of the first chunk: not for several choices, of which servers count one or all, and not by a
        count that does not grow."""
        if not self._has_chunks:
            self._has_chunks = True
            answer.first_tokens = None if usage is None else usage.text_tokens or None
        elif len(answer.choices) > 1 or (usage is not None and usage.text_tokens == answer.first_tokens):
            answer.first_tokens = None


class ReplyReader(_EventReader["Reply"]):
    """Reader that keeps all of a text's reply: a document, also of a server that `ignored_stream`, or events."""

    def __init__(self, *, streams: bool) -> None:
        super().__init__(_REPLY)
        self.streams = streams
        self.ignored_stream = False
        self.replies: list[Reply] = []
        self._body = bytearray()
        self._has_begun = False

    def feed(self, chunk: bytes, at_s: float) -> None:
        if self.streams and not self._has_begun and chunk.lstrip().startswith(b"{"):
            self.streams, self.ignored_stream = False, True
        self._has_begun = True
        if self.streams:
            super().feed(chunk, at_s)
        else:
            self._body += chunk

    def finish(self) -> None:
        if not self.streams:
            self.replies = [_decode(bytes(self._body), _REPLY)]
        if not self.replies:
            raise AnswerError("incomplete answer", "the stream has no events")

    def _take(self, event: Reply, at_s: float) -> None:
        self.replies.append(event)


class SpeechReader:
    """Reader of a streamed sound."""

    def __init__(self) -> None:
        self.answer = ServerAnswer()

    def feed(self, chunk: bytes, at_s: float) -> None:
        self.answer.last_at = at_s
        self.answer.add_bytes(chunk, at_s)

    def finish(self) -> None:
        if not self.answer.pcm:
            raise AnswerError("incomplete answer", "it contains no audio")
        self.answer.check_format()


class _DocumentReader:
    """Reader of one JSON document."""

    def __init__(self) -> None:
        self.answer = ServerAnswer()
        self._body = bytearray()

    def feed(self, chunk: bytes, at_s: float) -> None:
        self._body += chunk


class ImagesReader(_DocumentReader):
    """Reader of all images."""

    def finish(self) -> None:
        document = _decode(bytes(self._body), _IMAGES)
        try:
            self.answer.images = [base64.b64decode(item.b64_json, validate=True) for item in document.data]
        except binascii.Error as error:
            raise AnswerError("invalid answer", f"an image is not base64: {error}") from error
        if not self.answer.images:
            raise AnswerError("incomplete answer", "it contains no image")


class TranscriptReader(_DocumentReader):
    """Reader of a transcript. The client knows how long its sound is; a `duration` may be that of a padded window."""

    def finish(self) -> None:
        is_text = self.answer.content_type.lower().startswith("text/plain")
        text = self._body.decode(errors="replace") if is_text else _decode(bytes(self._body), _TRANSCRIPT).text
        self.answer.choice(0).content.append(text)


def error_message(error: object) -> str:
    """Return the message of OpenAI's `error`, or of whatever a server puts there."""
    return str(error.get("message", error)) if isinstance(error, dict) else str(error)


class _Image(msgspec.Struct):
    b64_json: str


class _Images(msgspec.Struct):
    data: list[_Image]


class _Transcript(msgspec.Struct):
    text: str


_TRANSCRIPT = msgspec.json.Decoder(_Transcript)
# Not strict: some servers write counts as 10.0.
_REPLY = msgspec.json.Decoder(Reply, strict=False)
_CHUNK = msgspec.json.Decoder(_Chunk, strict=False)
_IMAGES = msgspec.json.Decoder(_Images)


def _decode(data: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    try:
        return decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise AnswerError("invalid answer", f"not a valid response of this endpoint: {error}") from error
