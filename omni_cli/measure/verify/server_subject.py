"""A running OpenAI-compatible server as the subject of `omni verify`."""

from __future__ import annotations

import io
import json
import math
import time
import wave
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np

from omni_cli.core.errors import OmniError
from omni_cli.measure.verify.reference import Reference
from omni_cli.measure.verify.run_comparison import STREAMED_AUDIO_BOUND, Answer, different_row, text_row
from omni_cli.measure.verify.subject import Subject
from omni_cli.measure.verify.tokens import TokenIds, make_tokens
from omni_cli.measure.verify.verdicts import replace_values
from omni_cli.models.scores import EngineOutput
from omni_cli.openai_api.choices import TokenCounts
from omni_cli.openai_api.client import Client, RequestFailure
from omni_cli.openai_api.media import data_url, image_part, sound_form, sound_part
from omni_cli.openai_api.reading import ImagesReader, ReplyReader, ScoredToken, SpeechReader
from omni_cli.openai_api.routes import NAMED_ROUTES, Route
from omni_cli.records.verify_record import Check, Row
from omni_cli.requests.capabilities import Capabilities
from omni_cli.requests.encoding import encode_png, encode_wav
from omni_cli.requests.outputs import GenerateRequest
from omni_cli.stats.output_quality import read_wav

NUM_CANDIDATES = 5
TEXT, MEDIA = "text", "media"
"""The stages that a server's answers are ascribed to."""
REFERENCE_ROUTES = ("chat", "completions", "transcriptions")
_ROUNDING = {"speech": STREAMED_AUDIO_BOUND, "images": 1.0}
"""Differences that batching may make: of a sample, and one of a pixel's 256 values."""
_TEXT_ROUTES = ("chat", "completions")
# Fields that a server may refuse or not know, and the checks that it then lacks.
_OPTIONAL = ("seed", "logprobs", "top_logprobs", "return_token_ids")


@dataclass(frozen=True, kw_only=True)
class RouteAnswer(Answer):
    """`texts` are those of all choices with their tool calls and refusals, each as one text to compare; a streamed
    transcript has that of its parts and that of its last event.

    `tokens` is None if the server gave no log-probabilities. `token_ids` are those that vLLM returns beside the text.
    `ignored_stream`: it is a document although a stream was asked for.
    """

    texts: tuple[str, ...] = ()
    tokens: tuple[ScoredToken, ...] | None = None
    token_ids: tuple[int, ...] | None = None
    ignored_stream: bool = False


class ServerSubject(Subject):
    """One route of a server; without `reference`, its weights are not known."""

    count_names = ("usage.completion_tokens", "usage.prompt_tokens")
    media = ("images", "audio")

    def __init__(self, client: Client, route: str, model: str, reference: Reference | None = None) -> None:
        self._client, self._route, self._model = client, route, model
        self.reference = reference
        self._ids: dict[str, int] = {}  # numbers for the texts of tokens, where the server gives none
        self.decode = lambda _stage, token_ids: "".join(map([*self._ids].__getitem__, token_ids))
        self._without: dict[str, str] = {}  # fields that the server has refused, with its message
        self.unchecked: dict[Check, str] = {}
        if reference is None:
            self.unchecked["reference"] = "no weights: add `--model DIR`"
        if route == "transcriptions":
            self.unchecked["seed"] = "transcription has no seed"
            self.unchecked["limits"] = "transcription has no stop strings and no maximum of tokens"
        self.media_bound = _ROUNDING.get(route, 0.0)
        self.may_ignore_seeds = route == "speech"
        self.can_omit_media = route == "chat"
        self.checks = ("alone = batched", "repeat", "seed", "modalities")
        self.stage = self.last = MEDIA if route in _ROUNDING else TEXT
        if self.stage == TEXT:
            self.sampling_stage = TEXT
            self.checks = ("alone = batched", "repeat", "seed", "streamed = whole", "limits", "modalities")
        else:
            self.denoising_stage = MEDIA

    async def __aenter__(self) -> Self:
        await self._client.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.__aexit__(None, None, None)

    async def prepare(
        self, requests: Sequence[GenerateRequest], *, are_defaults: bool
    ) -> tuple[tuple[GenerateRequest, ...], list[Row]]:
        """Find the fields that the server refuses, and drop our own requests with media that it refuses."""
        first = requests[0]
        answer = await self.ask(first)
        if answer.is_refused:
            self._without = dict.fromkeys(_OPTIONAL, _message(answer))
            answer = await self.ask(first)
            for name in _OPTIONAL if answer.failure is None else ():
                refused = self._without
                self._without = {other: why for other, why in refused.items() if other != name}
                tried = await self.ask(first)
                if tried.failure is not None:
                    self._without = {**refused, name: _message(tried)}
        if answer.error is not None:
            raise OmniError(f"the server's answer: {answer.failure}", hint=answer.error.hint)
        if "seed" in self._without:
            self.unchecked.setdefault("seed", self._without["seed"])
        usable, rows = [first], list[Row]()
        for request in requests[1:]:
            if are_defaults and (request.media.images or request.media.audio or request.media.videos):
                answer = await self.ask(request)
                if answer.is_refused:
                    medium = "images" if request.media.images else "audio"
                    row = Row(check="modalities", stage=TEXT, verdict="not checked", mode=medium, why=answer.failure)
                    rows += [] if any(item.name == row.name for item in rows) else [row]
                    continue
            usable.append(request)
        return tuple(usable), rows

    async def ask(self, request: GenerateRequest, **fields: object) -> RouteAnswer:
        """Send a request; `fields` are further ones of its body."""
        body = self._body(request) | fields
        body = {name: value for name, value in body.items() if value is not None and name not in self._without}
        is_form = self._route == "transcriptions"
        content = sound_form(body, encode_wav(*request.media.audio[0])) if is_form else json.dumps(body).encode()
        reader: SpeechReader | ImagesReader | ReplyReader = ReplyReader(streams=bool(body.get("stream")))
        if self._route in _ROUNDING:
            reader = SpeechReader() if self._route == "speech" else ImagesReader()
        path = Route.TRANSLATIONS if request.transcription.task == "translate" else NAMED_ROUTES[self._route]
        outcome = await self._client.post(path, content, reader, time.perf_counter())
        if outcome.failure is not None:
            return _answer_failure(request, outcome.failure)
        try:
            if isinstance(reader, ReplyReader):
                return self._read_text(request, reader)
            return _read_media(request, reader)
        except (ValueError, IndexError, EOFError, wave.Error) as error:
            message = f"not a response of this route: {type(error).__name__}: {error}"
            return _answer_failure(request, RequestFailure("invalid answer", message))

    def _body(self, request: GenerateRequest) -> dict[str, Any]:
        shared: dict[str, Any] = {"model": self._model}
        sampling = request.sampling
        sampled = {
            "max_tokens": sampling.get("max_tokens", 24),
            "temperature": sampling.get("temperature", 0.0),
            "seed": request.seed,
            "stop": sampling.get("stop"),
        }
        match self._route:
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
        heard = {"language": request.transcription.language, "prompt": request.prompt}
        form = "verbose_json" if request.transcription.timestamps else "json"
        return {**shared, **heard, "response_format": form, "temperature": 0.0}

    def _read_text(self, request: GenerateRequest, reader: ReplyReader) -> RouteAnswer:
        """Return the answer of a document, or of the events of a stream, whose texts are joined."""
        replies, answer = reader.replies, reader.answer
        choices = [choice for reply in replies for choice in reply.choices or () if choice is not None]
        if self._route in _TEXT_ROUTES and not choices:
            raise ValueError("it has no choices")
        for position, choice in enumerate(choices):
            answer.choice(choice.index if reader.streams else position).add(choice.whole_delta)
        texts = [answer.choices[index].comparison_text for index in sorted(answer.choices)]
        tokens = choices[0].scores if choices else None
        finish_reason, ids = (choices[0].finish_reason, choices[0].token_ids or None) if choices else (None, None)
        if reader.streams:
            texts = ["".join([*texts, *(reply.delta or "" for reply in replies)])]
            tokens = tuple(token for choice in choices for token in choice.scores or ()) or None
            finish_reason, ids = next((item.finish_reason for item in choices[::-1] if item.finish_reason), None), None
        texts += [reply.text for reply in replies if reply.text is not None]
        parts = next((reply.segments for reply in replies if reply.segments is not None), None)
        usage = next((reply.usage for reply in replies[::-1] if reply.usage is not None), TokenCounts())
        allowed: tuple[int, ...] = () if ids is None else (len(ids),)
        if ids is None and tokens is not None:
            # An end token counts, and has no log-probability in some servers.
            allowed = (len(tokens), len(tokens) + 1)
        rows = [(token, *token.top_logprobs) for token in tokens or [ScoredToken(char, math.nan) for char in texts[0]]]
        ids_of = self._ids
        known = make_tokens(
            [[(ids_of.setdefault(item.token, len(ids_of)), item.logprob) for item in row] for row in rows]
        )
        return RouteAnswer(
            request=request,
            result=EngineOutput(request, {TEXT: known}, num_input_tokens=usage.prompt_tokens),
            text=answer.choices[min(answer.choices)].text if choices else texts[0],
            texts=tuple(texts),
            finish_reason=finish_reason,
            num_output_tokens=usage.completion_tokens,
            num_input_tokens=usage.prompt_tokens,
            allowed_counts=allowed,
            has_logprobs=tokens is not None,
            tokens=tokens,
            token_ids=ids,
            ignored_stream=reader.ignored_stream,
            spans=None if parts is None else tuple((part.start or 0.0, part.end or 0.0) for part in parts if part.text),
        )

    async def stream_rows(self, alone: Sequence[Answer]) -> list[Row]:
        """Judge streams, one after another, by their texts and their ends."""
        rows: list[Row] = [Row(check="streamed = whole", stage=TEXT, verdict="equal")]
        streamed = [whole for whole in alone if whole.request.transcription.task != "translate"]
        if not streamed:
            rows = [replace_values(rows[0], verdict="not checked", why="the route of translations has no streams")]
        for whole in streamed:
            assert isinstance(whole, RouteAnswer)
            answer = await self.ask(whole.request, stream=True, stream_options={"include_usage": True})
            if (answer.failure or "").startswith("HTTP 4"):
                answer = await self.ask(whole.request, stream=True)
            if answer.ignored_stream and self._route == "transcriptions":
                # As OpenAI documents for whisper-1.
                return [replace_values(rows[0], verdict="not checked", why="the server ignores `stream`")]
            name, expected = whole.request.request_id, next(iter(whole.texts), "")
            why: str | None = "the server ignores `stream`" if answer.ignored_stream else answer.failure
            if why is None and (wrong := [text for text in answer.texts if text != expected]):
                rows.append(text_row("streamed = whole", TEXT, name, expected, wrong[0], "the streamed text differs"))
                continue
            if why is None and self._route in _TEXT_ROUTES:  # a whole transcript has neither
                if answer.finish_reason != whole.finish_reason:
                    why = f"streamed, finish_reason is `{answer.finish_reason}`; whole, it is `{whole.finish_reason}`"
                elif answer.num_output_tokens not in (None, whole.num_output_tokens):
                    counts = answer.num_output_tokens, whole.num_output_tokens
                    why = f"streamed, usage counts {counts[0]} tokens; whole, {counts[1]}"
            if why is not None:
                rows.append(different_row("streamed = whole", TEXT, name, why))
        return rows

    async def choice_rows(self, request: GenerateRequest) -> list[Row]:
        """Check that a server that accepts `n` returns as many choices."""
        answer = await self.ask(replace(request, sampling={**request.sampling, "temperature": 1.0}), n=2)
        if answer.failure is not None:
            return [Row(check="limits", stage=TEXT, verdict="not checked", mode="n=2", why=answer.failure)]
        if len(answer.texts) != 2:
            why = f"the server returned {len(answer.texts)} of 2 choices"
            return [different_row("limits", TEXT, request.request_id, why, mode="n=2")]
        return [Row(check="limits", stage=TEXT, verdict="equal", mode="n=2")]

    def to_reference(self, alone: Sequence[Answer]) -> tuple[list[EngineOutput], list[Row]]:
        """Return outputs with the reference's ids of tokens; a transcript's text is for the reference to tokenize."""
        reference = self.reference
        assert reference is not None
        stage, transcribes = reference.config.stages[0], Capabilities.of(reference.config).transcribes
        is_known = reference.family.reference is not None and stage.kind == "ar"
        if not is_known or transcribes != (self._route == "transcriptions"):
            why = "this model's reference does not take a server's answers"
            return [], [Row(check="reference", stage=TEXT, verdict="not checked", why=why)]
        if transcribes:
            return [EngineOutput(answer.request, {}, text=answer.text) for answer in alone], []
        ids = TokenIds(Path(reference.folder))
        outputs: list[EngineOutput] = []
        rows: list[Row] = []
        for answer in alone:
            assert isinstance(answer, RouteAnswer)
            if answer.tokens is None:
                tokens = ids.find_in_text(answer.text or "", answer.num_output_tokens)
            else:
                tokens = ids.find(answer.tokens, answer.token_ids)
            if isinstance(tokens, str):
                name = answer.request.request_id
                rows.append(Row(check="reference", stage=TEXT, verdict="not checked", request=name, why=tokens))
                continue
            request = replace(answer.request, text=replace(answer.request.text, raw=self._route == "completions"))
            outputs.append(EngineOutput(request, {stage.name: tokens}, num_input_tokens=answer.num_input_tokens))
        return outputs, rows


def _message(answer: Answer) -> str:
    """Return the server's words of a failure, without its kind."""
    return (answer.failure or "").partition(": ")[2]


def _answer_failure(request: GenerateRequest, failure: RequestFailure) -> RouteAnswer:
    why = f"{failure.kind}: {failure.message}"
    is_gone = failure.kind in ("connection refused", "connection lost", "timeout")
    hint = "the server has stopped or hangs: see its log" if is_gone else None
    error = OmniError(f"the server's answer to request `{request.request_id}`: {why}", hint=hint)
    is_refused = failure.kind.startswith(("HTTP 4", "HTTP 500", "HTTP 501"))
    return RouteAnswer(request=request, error=error, failure=why, is_refused=is_refused)


def _content(request: GenerateRequest) -> object:
    """Return a chat message's content, with media as data URLs."""
    parts = [image_part(encode_png(image), "png") for image in request.media.images]
    parts += [sound_part(encode_wav(*sound), "wav") for sound in request.media.audio]
    return [*parts, {"type": "text", "text": request.prompt}] if parts else request.prompt


def _voice(request: GenerateRequest) -> Mapping[str, Any]:
    """Return the fields of a speech request's speaker, or of the recordings of its voices."""
    if not request.speech.voices:
        return {} if request.speech.speaker is None else {"voice": request.speech.speaker}
    recordings = [
        data_url("audio/wav", encode_wav(voice.samples, voice.sample_rate)) for voice in request.speech.voices
    ]
    texts = [voice.text for voice in request.speech.voices if voice.text is not None]
    fields = {"ref_audio": recordings, "ref_text": texts}
    return {name: values[0] if len(values) == 1 else values for name, values in fields.items() if values}


def _read_media(request: GenerateRequest, reader: SpeechReader | ImagesReader) -> RouteAnswer:
    rates = {}
    if isinstance(reader, SpeechReader):
        samples, rate = read_wav(bytes(reader.answer.pcm), 32768)
        arrays, rates = {"0.audio.0": samples}, {"0.audio.0": rate}
    else:
        arrays = {f"0.image.{number}": _read_image(file) for number, file in enumerate(reader.answer.images)}
    return RouteAnswer(request=request, result=EngineOutput(request, {}, arrays, rates))


def _read_image(data: bytes) -> np.ndarray:
    from PIL import Image

    with Image.open(io.BytesIO(data)) as image:
        return np.asarray(image.convert("RGB"))
