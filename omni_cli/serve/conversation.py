"""A chat's messages for the engine, and the reply to it in OpenAI's shape, whole or in chunks."""

from __future__ import annotations

import base64
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import numpy as np

from omni_cli.openai_api.replies import (
    ChatCompletion,
    ChatCompletionChunk,
    Choice,
    ChoiceLogprobs,
    ChunkChoice,
    FunctionCall,
    ReplyDelta,
    ReplyMessage,
    SpeechUsage,
    StageTime,
    TokenLogprob,
    ToolCallPiece,
    TopLogprob,
    Usage,
)
from omni_cli.requests.contents import Media, ToolCall, ToolCallDelta
from omni_cli.requests.encoding import encode_audio, encode_pcm16
from omni_cli.requests.events import TextDelta
from omni_cli.requests.outputs import AudioOutput, Message, Part, RequestResult, TextOutput, TokenLogprobs
from omni_cli.serve.errors import APIError
from omni_cli.serve.exchange import new_id, unix_now
from omni_cli.serve.media import MediaDecoder
from omni_cli.serve.schemas import chat
from omni_cli.serve.schemas.fields import ModelBody

T = TypeVar("T")
_MAX_TRANSCRIPTS = 1024
# Speech is sent in pieces of this length, so that playback can start early.
PIECE_S = 1.0


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


class TextReply:
    """Builds the documents of one reply: the whole, or its chunks."""

    def __init__(self, prefix: str, body: ModelBody, profile: str, seed: int) -> None:
        self.id, self.created, self.seed = new_id(prefix), unix_now(), seed
        self.model = profile if body.model is None else body.model

    def document(self, kind: str, choices: Sequence[object], **more: object) -> Any:
        """Return a document with these choices."""
        begin = {"id": self.id, "object": kind, "created": self.created, "model": self.model}
        return {**begin, "choices": choices, **more, "seed": self.seed}


class ChatReply(TextReply):
    """The reply to one chat, after the beginning of the answer that the request may have."""

    def __init__(self, body: chat.ChatCompletionRequest, profile: str, seed: int) -> None:
        super().__init__("chatcmpl", body, profile, seed)
        self._body = body
        self.audio_id = "audio_" + self.id.removeprefix("chatcmpl-")
        modalities = body.modalities or ["text"]
        self.wants_audio = "audio" in modalities
        self._wants_text = "text" in modalities
        self._audio_format = "wav" if body.audio is None else body.audio.format
        begun = body.messages[-1].content if body.echo and body.messages[-1].role == "assistant" else None
        self._echo = begun if isinstance(begun, str) else "".join(part.text for part in begun or ())

    def completion(self, results: Sequence[RequestResult]) -> ChatCompletion:
        """Build the whole reply, of one choice per result."""
        choices = [self._choice(index, result) for index, result in enumerate(results)]
        completion: ChatCompletion = self.document("chat.completion", choices, usage=usage(*results))
        if self._body.return_stage_times:
            completion["stages"] = stage_times(results[0])
        return completion

    def _choice(self, index: int, result: RequestResult) -> Choice:
        text, audio = get_output(TextOutput, result), get_audio(result)
        message: ReplyMessage = {
            "role": "assistant",
            # A call without words has none, as from OpenAI.
            "content": ((self._echo + text.text) or (None if text.tool_calls else "")) if self._wants_text else None,
            "refusal": None,
        }
        if text.reasoning:
            message["reasoning"] = message["reasoning_content"] = text.reasoning
        if text.tool_calls:
            message["tool_calls"] = [
                {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
                for call in text.tool_calls
            ]
        if audio is not None:
            audio_format = "pcm" if self._audio_format == "pcm16" else self._audio_format
            data = encode_audio(audio.samples, audio.sample_rate, audio_format)
            message["audio"] = {
                "id": self.audio_id,
                "data": base64.b64encode(data).decode(),
                "expires_at": self.created,
                "transcript": text.text,
            }
        logprobs, num_tokens = result.stages[0].output_logprobs, len(text.token_ids)
        choice: Choice = {
            "index": index,
            "message": message,
            "logprobs": None if logprobs is None else _logprobs(logprobs[:num_tokens], self._body.top_logprobs),
            "finish_reason": self._finish_reason(text, audio),
        }
        self._add_token_ids(choice, result)
        return choice

    def begin(self, index: int = 0) -> ChatCompletionChunk:
        """Build the first chunk of a choice: who speaks."""
        delta: ReplyDelta = {"role": "assistant", "content": self._echo if self._wants_text else None}
        if self.wants_audio:
            delta["audio"] = {"id": self.audio_id}
        return self._chunk(delta, index)

    def text(self, new: TextDelta, index: int = 0) -> ChatCompletionChunk:
        """Build a chunk with more text, reasoning and calls."""
        delta: ReplyDelta = {}
        if self._wants_text and (new.text or not (new.reasoning or new.tool_calls)):
            delta["content"] = new.text
        if new.reasoning:
            delta["reasoning"] = delta["reasoning_content"] = new.reasoning
        if new.tool_calls:
            delta["tool_calls"] = [_piece(call) for call in new.tool_calls]
        if self.wants_audio:
            delta["audio"] = {"id": self.audio_id, "transcript": new.text}
        return self._chunk(delta, index, logprobs=new.logprobs)

    def audio(self, samples: np.ndarray, sample_rate: int) -> Iterator[ChatCompletionChunk]:
        """Split speech, float32 (num_samples,), into chunks of PCM."""
        for piece in split_audio(samples, sample_rate):
            data = base64.b64encode(encode_pcm16(piece)).decode()
            yield self._chunk({"audio": {"id": self.audio_id, "data": data, "sample_rate": sample_rate}})

    def end(self, result: RequestResult, index: int = 0) -> ChatCompletionChunk:
        """Build the last chunk of a choice, with its finish reason."""
        text, audio = get_output(TextOutput, result), get_audio(result)
        delta: ReplyDelta = {"audio": {"id": self.audio_id, "expires_at": self.created}} if self.wants_audio else {}
        chunk = self._chunk(delta, index, finish_reason=self._finish_reason(text, audio))
        self._add_token_ids(chunk["choices"][0], result)
        if self._body.return_stage_times:
            chunk["stages"] = stage_times(result)
        return chunk

    def usage(self, results: Sequence[RequestResult]) -> ChatCompletionChunk:
        """Build the chunk after the last one that `stream_options.include_usage` asks for."""
        chunk: ChatCompletionChunk = self.document("chat.completion.chunk", [], usage=usage(*results))
        return chunk

    def _finish_reason(self, text: TextOutput, audio: AudioOutput | None) -> str:
        """Return `length` also for speech that is cut: its transcript is whole then."""
        reason = "length" if audio is not None and audio.finish_reason == "length" else text.finish_reason
        # As from OpenAI, a call that the request named ends with `stop`.
        return (
            "tool_calls"
            if text.tool_calls and reason == "stop" and not isinstance(self._body.tool_choice, chat.NamedTool)
            else reason
        )

    def _chunk(
        self,
        delta: ReplyDelta,
        index: int = 0,
        finish_reason: str | None = None,
        logprobs: Sequence[TokenLogprobs] = (),
    ) -> ChatCompletionChunk:
        choice: ChunkChoice = {
            "index": index,
            "delta": delta,
            "logprobs": _logprobs(logprobs, self._body.top_logprobs) if logprobs else None,
            "finish_reason": finish_reason,
        }
        chunk: ChatCompletionChunk = self.document("chat.completion.chunk", [choice])
        return chunk

    def _add_token_ids(self, choice: Choice | ChunkChoice, result: RequestResult) -> None:
        """Add the tokens of every stage that made some: the text's under vLLM's name, the speech's next to them."""
        if not self._body.return_token_ids:
            return
        _, *others = [trace.output_token_ids for trace in result.stages if trace.output_token_ids is not None]
        choice["token_ids"] = list(get_output(TextOutput, result).token_ids)
        if others:
            choice["audio_token_ids"] = list(others[0])


def stage_times(result: RequestResult) -> list[StageTime]:
    """Return when each stage worked for a request."""
    return [
        {
            "name": trace.name,
            "began_s": round(trace.began_s or 0.0, 6),
            "latency_s": round(trace.latency_s, 6),
            "output_tokens": trace.num_output_tokens,
        }
        for trace in result.stages
    ]


def split_audio(samples: np.ndarray, sample_rate: int) -> Iterator[np.ndarray]:
    """Split speech into pieces of `PIECE_S` seconds; the last one may be shorter."""
    length = int(PIECE_S * sample_rate)
    for start in range(0, len(samples), length):
        yield samples[start : start + length]


def usage(*results: RequestResult) -> Usage:
    """Count tokens in OpenAI's shape: the first stage's input, which the results share, and the output of all."""
    texts = [output for result in results for output in result.outputs if isinstance(output, TextOutput)]
    return token_usage(
        prompt=results[0].stages[0].num_input_tokens or 0,
        text=sum(result.stages[0].num_output_tokens or 0 for result in results),
        audio=sum(trace.num_output_tokens or 0 for result in results for trace in result.stages[1:]),
        reasoning=sum(text.num_reasoning_tokens for text in texts),
    )


def count_tokens(result: RequestResult) -> SpeechUsage:
    """Count tokens under the names of OpenAI's newer routes."""
    counts = usage(result)
    return {
        "input_tokens": counts["prompt_tokens"],
        "output_tokens": counts["completion_tokens"],
        "total_tokens": counts["total_tokens"],
    }


def token_usage(prompt: int, text: int, audio: int = 0, reasoning: int = 0) -> Usage:
    """Return counts of tokens in OpenAI's shape; those of the text include those of its reasoning."""
    return {
        "prompt_tokens": prompt,
        "completion_tokens": text + audio,
        "total_tokens": prompt + text + audio,
        "completion_tokens_details": {"text_tokens": text, "audio_tokens": audio, "reasoning_tokens": reasoning},
    }


def _piece(call: ToolCallDelta) -> ToolCallPiece:
    function: FunctionCall = {"arguments": call.arguments}
    if call.name is not None:
        function["name"] = call.name
    piece: ToolCallPiece = {"index": call.index, "function": function}
    return piece if call.id is None else {**piece, "id": call.id, "type": "function"}


def _logprobs(tokens: Sequence[TokenLogprobs], num_top: int | None) -> ChoiceLogprobs:
    return {"content": token_logprobs(tokens, num_top), "refusal": None}


def token_logprobs(tokens: Sequence[TokenLogprobs], num_top: int | None) -> list[TokenLogprob]:
    """Return log-probabilities in OpenAI's shape."""
    content: list[TokenLogprob] = []
    for candidates in tokens:  # the sampled token, then the most likely ones without it
        top = sorted(candidates, key=lambda item: -item[1])[: num_top or 0]
        content.append({**_token(candidates[0]), "top_logprobs": [_token(item) for item in top]})
    return content


def _token(item: tuple[int, float, str | None]) -> TopLogprob:
    text, logprob = get_text_and_logprob(item)
    return {"token": text, "logprob": logprob, "bytes": list(text.encode())}


def get_output(kind: type[T], result: RequestResult) -> T:
    """Return the first output of a kind that the request makes."""
    return next(output for output in result.outputs if isinstance(output, kind))


def get_audio(result: RequestResult) -> AudioOutput | None:
    """Return the speech of a request; None if it makes none."""
    return next((output for output in result.outputs if isinstance(output, AudioOutput)), None)


def get_text_and_logprob(item: tuple[int, float, str | None]) -> tuple[str, float]:
    """Return a token's text and its log-probability, as JSON can have it."""
    token_id, logprob, text = item
    # JSON has no infinity; OpenAI has this number in its place.
    return f"token_id:{token_id}" if text is None else text, max(logprob, -9999.0)
