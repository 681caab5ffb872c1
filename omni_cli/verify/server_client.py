"""Requests to an OpenAI-compatible server, and its answers as the tokens and media that checks compare."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import time
import wave
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from omni_cli.encoding import encode_png, encode_wav
from omni_cli.loadtest.multipart import CONTENT_TYPE, with_sound
from omni_cli.models.scores import EngineOutput, EngineTokens
from omni_cli.openai_api.client import Client, RequestFailure
from omni_cli.openai_api.reading import AnswerError, EventParser, ServerAnswer
from omni_cli.openai_api.routes import Route
from omni_cli.outputs import GenerateRequest

NUM_CANDIDATES = 5
TEXT = "text"
"""The stage that a server's text is ascribed to; its media are those of `MEDIA`."""
MEDIA = "media"
_PATHS = {
    "chat": Route.CHAT,
    "completions": Route.COMPLETIONS,
    "speech": Route.SPEECH,
    "images": Route.IMAGES,
    "transcriptions": Route.TRANSCRIPTIONS,
}
_TRANSLATIONS = Route.TRANSLATIONS


@dataclass(frozen=True)
class ServerToken:
    """A token as a server reports it, with the most likely ones in its place; `token_id` is None if it has none."""

    text: str
    logprob: float
    top: tuple[tuple[str, float], ...] = ()
    token_id: int | None = None


@dataclass(frozen=True)
class ServerRun:
    """One answer. `tokens` is None if the server gave no log-probabilities; `texts` are those of all `n` choices.

    A streamed transcript has two `texts`, of its parts and of its last event. `token_ids` are those that vLLM returns
    beside the text.
    """

    request: GenerateRequest
    text: str = ""
    texts: tuple[str, ...] = ()
    finish_reason: str | None = None
    tokens: tuple[ServerToken, ...] | None = None
    token_ids: tuple[int, ...] | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    arrays: Mapping[str, np.ndarray] = field(default_factory=dict)
    sample_rates: Mapping[str, int] = field(default_factory=dict)
    failure: RequestFailure | None = None


class Vocabulary:
    """Numbers for the texts of tokens, where a server gives no ids."""

    def __init__(self) -> None:
        self._ids: dict[str, int] = {}
        self._texts: list[str] = []

    def __call__(self, text: str) -> int:
        if text not in self._ids:
            self._ids[text] = len(self._texts)
            self._texts.append(text)
        return self._ids[text]

    def decode(self, _stage: str, token_ids: Sequence[int]) -> str | None:
        """Return the text of numbers."""
        return "".join(self._texts[number] for number in token_ids)


class VerifyClient:
    """Sends requests to one route of a server. `without` are the fields that it has refused, with its message."""

    def __init__(self, client: Client, route: str, model: str) -> None:
        self._client = client
        self.route = route
        self._model = model
        self.without: dict[str, str] = {}

    async def alone(self, requests: Sequence[GenerateRequest], **fields: Any) -> list[ServerRun]:
        """Send requests one after another."""
        return [await self.send(request, **fields) for request in requests]

    async def at_once(self, requests: Sequence[GenerateRequest], **fields: Any) -> list[ServerRun]:
        """Send requests concurrently, in this order."""
        return list(await asyncio.gather(*(self.send(request, **fields) for request in requests)))

    async def send(self, request: GenerateRequest, **fields: Any) -> ServerRun:
        """Send a request; `fields` are further ones of its body, None removes one."""
        body = self._body(request) | fields
        body = {name: value for name, value in body.items() if value is not None and name not in self.without}
        reader = _Reader(streams=bool(body.get("stream")))
        content, content_type = _encoded(body, request, self.route)
        path = _TRANSLATIONS if request.task == "translate" else _PATHS[self.route]
        outcome = await self._client.post(path, content, reader, time.perf_counter(), content_type=content_type)
        if outcome.failure is not None:
            return ServerRun(request, failure=outcome.failure)
        try:
            return _parsed(self.route, request, reader)
        except (KeyError, TypeError, ValueError, IndexError, EOFError, wave.Error) as error:
            failure = RequestFailure("invalid answer", f"not a response of this route: {type(error).__name__}: {error}")
            return ServerRun(request, failure=failure)

    def _body(self, request: GenerateRequest) -> dict[str, Any]:
        shared: dict[str, Any] = {"model": self._model}
        limit = request.sampling.get("max_tokens", 24)
        sampled = {"max_tokens": limit, "temperature": request.sampling.get("temperature", 0.0), "seed": request.seed}
        match self.route:
            case "chat":
                message = {"role": "user", "content": _content(request)}
                probabilities = {"logprobs": True, "top_logprobs": NUM_CANDIDATES, "return_token_ids": True}
                return {**shared, "messages": [message], **sampled, **probabilities}
            case "completions":
                probabilities = {"logprobs": NUM_CANDIDATES, "return_token_ids": True}
                return {**shared, "prompt": request.prompt, **sampled, **probabilities}
            case "speech":
                spoken = {"input": request.prompt, "response_format": "wav", "seed": request.seed}
                return {**shared, **spoken, **_voice(request)}
            case "images":
                image = {"n": 1, "response_format": "b64_json", "seed": request.seed}
                return {**shared, "prompt": request.prompt, **image, **request.diffusion}
        heard = {"language": request.language, "prompt": request.prompt}
        return {**shared, **heard, "response_format": "json", "temperature": 0.0}


def to_output(run: ServerRun, vocabulary: Vocabulary) -> EngineOutput:
    """Return an answer as what checks compare: tokens if the server reports them, else characters."""
    if not run.text and run.tokens is None and run.arrays:
        return EngineOutput(run.request, {}, run.arrays, run.sample_rates)
    tokens = run.tokens or tuple(ServerToken(letter, np.nan) for letter in run.text)
    width = 1 + max((len(token.top) for token in tokens), default=0)
    candidates = np.full((len(tokens), width), -1, np.int64)
    logprobs = np.full((len(tokens), width), np.nan)
    for position, token in enumerate(tokens):
        for column, (text, logprob) in enumerate(((token.text, token.logprob), *token.top)):
            candidates[position, column], logprobs[position, column] = vocabulary(text), logprob
    ids = tuple(int(number) for number in candidates[:, 0])
    return EngineOutput(
        run.request, {TEXT: EngineTokens(ids, candidates, logprobs)}, run.arrays, run.sample_rates, run.prompt_tokens
    )


class _Reader:
    """Keeps the whole answer: one document, or the events of a stream."""

    def __init__(self, *, streams: bool) -> None:
        self.answer = ServerAnswer()
        self.body = bytearray()
        self.events: list[dict[str, Any]] = []
        self.streams = streams
        self._parser = EventParser()

    def feed(self, chunk: bytes, at_s: float) -> None:
        self.body += chunk
        if self.streams:
            for data in self._parser.feed(chunk):
                if data != b"[DONE]":
                    self._take(data)

    def _take(self, data: bytes) -> None:
        try:
            event = json.loads(data)
        except ValueError as error:
            raise AnswerError("invalid answer", f"an event is not JSON: {error}") from error
        if isinstance(event, dict) and event.get("error"):
            raise AnswerError("error in the stream", str(event["error"]))
        self.events.append(event)

    def finish(self) -> None:
        if self.streams and not self.events:
            raise AnswerError("incomplete answer", "the stream has no events")


def _content(request: GenerateRequest) -> object:
    """Return a chat message's content, with media as data URLs."""
    parts: list[dict[str, Any]] = []
    for image in request.images:
        url = f"data:image/png;base64,{base64.b64encode(encode_png(image)).decode()}"
        parts.append({"type": "image_url", "image_url": {"url": url}})
    for samples, rate in request.audio:
        data = base64.b64encode(encode_wav(samples, rate)).decode()
        parts.append({"type": "input_audio", "input_audio": {"data": data, "format": "wav"}})
    return [*parts, {"type": "text", "text": request.prompt}] if parts else request.prompt


def _voice(request: GenerateRequest) -> dict[str, Any]:
    """Return the fields of a speech request's speaker, or of the recordings of its voices."""
    if not request.voices:
        return {} if request.speaker is None else {"voice": request.speaker}
    files = (encode_wav(voice.samples, voice.sample_rate) for voice in request.voices)
    recordings = [f"data:audio/wav;base64,{base64.b64encode(file).decode()}" for file in files]
    texts = [voice.text for voice in request.voices if voice.text is not None]
    fields = {"ref_audio": recordings, "ref_text": texts}
    return {name: values[0] if len(values) == 1 else values for name, values in fields.items() if values}


def _encoded(body: Mapping[str, Any], request: GenerateRequest, route: str) -> tuple[bytes, str]:
    if route != "transcriptions":
        return json.dumps(body).encode(), "application/json"
    return with_sound(body, *request.audio[0]), CONTENT_TYPE


def _parsed(route: str, request: GenerateRequest, reader: _Reader) -> ServerRun:
    if route == "speech":
        samples, rate = _read_wav(bytes(reader.body))
        return ServerRun(request, arrays={"0.audio.0": samples}, sample_rates={"0.audio.0": rate})
    if reader.streams:
        return _from_events(request, reader.events)
    document = json.loads(reader.body)
    if route == "images":
        images = [_read_image(base64.b64decode(item["b64_json"])) for item in document["data"]]
        return ServerRun(request, arrays={f"0.image.{number}": image for number, image in enumerate(images)})
    if route == "transcriptions":
        return ServerRun(request, text=document["text"], texts=(document["text"],))
    choices = document["choices"]
    usage = document.get("usage") or {}
    texts = tuple(_text(choice) for choice in choices)
    first = choices[0]
    return ServerRun(
        request,
        text=texts[0],
        texts=texts,
        finish_reason=first.get("finish_reason"),
        tokens=_tokens(first),
        token_ids=tuple(first["token_ids"]) if first.get("token_ids") else None,
        prompt_tokens=usage.get("prompt_tokens"),
        completion_tokens=usage.get("completion_tokens"),
    )


def _from_events(request: GenerateRequest, events: Sequence[Mapping[str, Any]]) -> ServerRun:
    """Join the events of a stream."""
    run = ServerRun(request)
    text: list[str] = []
    tokens: list[ServerToken] = []
    last: tuple[str, ...] = ()
    for event in events:
        for choice in event.get("choices") or ():
            text.append(_text(choice))
            tokens += _tokens(choice) or ()
            run = replace(run, finish_reason=choice.get("finish_reason") or run.finish_reason)
        if event.get("type") == "transcript.text.delta":
            text.append(str(event["delta"]))
        elif event.get("type") == "transcript.text.done":
            last = (str(event["text"]),)
        usage = event.get("usage")
        if usage:
            counts = {name: usage.get(name) for name in ("prompt_tokens", "completion_tokens")}
            run = replace(run, **counts)
    joined = "".join(text)
    return replace(run, text=joined, texts=(joined, *last), tokens=tuple(tokens) or None)


def _text(choice: Mapping[str, Any]) -> str:
    """Return a choice's text, with the reasoning before it."""
    if "text" in choice:
        return str(choice["text"] or "")
    message = choice.get("message") or choice.get("delta") or {}
    reasoning = message.get("reasoning_content") or message.get("reasoning") or ""
    return f"{reasoning}{message.get('content') or ''}"


def _tokens(choice: Mapping[str, Any]) -> tuple[ServerToken, ...] | None:
    """Return the tokens of a choice, in the format of chats or of completions; None without log-probabilities."""
    logprobs = choice.get("logprobs")
    if not logprobs:
        return None
    if logprobs.get("content") is not None:
        return tuple(
            ServerToken(
                item["token"],
                float(item["logprob"]),
                tuple((top["token"], float(top["logprob"])) for top in item.get("top_logprobs") or ()),
                item.get("id"),
            )
            for item in logprobs["content"]
        )
    if not logprobs.get("tokens"):
        return None
    tops = logprobs.get("top_logprobs") or [{}] * len(logprobs["tokens"])
    return tuple(
        ServerToken(token, float("nan") if logprob is None else float(logprob), tuple((top or {}).items()))
        for token, logprob, top in zip(logprobs["tokens"], logprobs["token_logprobs"], tops, strict=True)
    )


def _read_wav(data: bytes) -> tuple[np.ndarray, int]:
    with wave.open(io.BytesIO(data)) as file:
        if file.getsampwidth() != 2:
            raise ValueError(f"the sound has samples of {8 * file.getsampwidth()} bits, not 16")
        samples = np.frombuffer(file.readframes(file.getnframes()), "<i2").astype(np.float32) / 32768
        channels, rate = file.getnchannels(), file.getframerate()
    return (samples if channels == 1 else samples.reshape(-1, channels)), rate


def _read_image(data: bytes) -> np.ndarray:
    from PIL import Image

    with Image.open(io.BytesIO(data)) as image:
        return np.asarray(image.convert("RGB"))
