"""A window of requests: the endpoint, the prompts and the load, equal for all compared servers."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Literal

import aiohttp
import msgspec

from omni_cli.config.bounds import MAX_NUMPY_SEED
from omni_cli.measure.bench.prompts import Prompts
from omni_cli.measure.bench.slo import OF_AUDIO, OF_TEXT
from omni_cli.measure.loadtest.dataset import Dataset
from omni_cli.measure.loadtest.observations import NUM_CANARIES, has_prompt
from omni_cli.openai_api.client import Target
from omni_cli.openai_api.media import sound_form
from omni_cli.openai_api.reading import ChatReader, ImagesReader, Reader, SpeechReader, TranscriptReader
from omni_cli.openai_api.routes import NAMED_ROUTES
from omni_cli.records.metrics import SENTENCE
from omni_cli.records.record import workload_fingerprint
from omni_cli.requests.encoding import encode_wav
from omni_cli.requests.media.audio import SPEECH_TEXTS, read_speech

DEFINITIONS = 2
"""The number of the definitions in docs/metrics.md that a record's figures follow. 1: tokens of the first chunk count
as later ones, and rates are over the time to the last answer."""

EndpointName = Literal["chat", "speech", "images", "transcriptions"]


# By endpoint: the reader of its answers, and the metrics that an SLO may limit.
_ANSWERS: Mapping[EndpointName, tuple[Callable[[], Reader], tuple[str, ...]]] = {
    "chat": (ChatReader, ("e2e", *OF_TEXT)),
    "speech": (SpeechReader, ("e2e", *OF_AUDIO)),
    "images": (ImagesReader, ("e2e",)),
    "transcriptions": (TranscriptReader, ("e2e", "rtf")),
}


class Endpoint(msgspec.Struct, frozen=True):
    """The called endpoint: streamed chats or speech, an image per request, or transcripts of the package's sentences.

    Chats have one message, and answers of `modalities` with `output_len` tokens of text, exactly that many with
    `ignore_eos`.
    """

    name: EndpointName
    modalities: tuple[str, ...] = ("text",)
    output_len: int = 0
    ignore_eos: bool = False

    @property
    def path(self) -> str:
        return NAMED_ROUTES[self.name]

    @property
    def reader(self) -> Callable[[], Reader]:
        return _ANSWERS[self.name][0]

    @property
    def metrics(self) -> tuple[str, ...]:
        return _ANSWERS[self.name][1] + (OF_AUDIO if "audio" in self.modalities else ())

    @property
    def has_words(self) -> bool:
        """True if answers have words that are known in advance: those of speech and of transcripts."""
        return self.name in ("speech", "transcriptions") or "audio" in self.modalities

    @property
    def sends_speech(self) -> bool:
        """True if a request is a form with a sound as its file."""
        return self.name == "transcriptions"

    def body(self, model: str, prompt: str, seed: int) -> dict[str, object]:
        """Return one request."""
        match self.name:
            case "speech":
                form = {"response_format": "pcm", "stream_format": "audio"}
                return {"model": model, "input": prompt, "seed": seed, **form}
            case "images":
                return {"model": model, "prompt": prompt, "n": 1, "seed": seed, "response_format": "b64_json"}
            case "transcriptions":
                return {"model": model, "language": "en", "response_format": "verbose_json"}
        sound = {"modalities": list(self.modalities), "audio": {"format": "pcm16"}}
        return {
            "model": model,
            "messages": [{"role": "user", "content": prompt}],
            "max_completion_tokens": self.output_len,
            "temperature": 0.0,
            "seed": seed,
            "stream": True,
            "stream_options": {"include_usage": True},
            # A field of vLLM, which OpenAI's own servers do not know.
            **({"ignore_eos": True} if self.ignore_eos else {}),
            **(sound if "audio" in self.modalities else {}),
        }


class ServerWorkload(msgspec.Struct, frozen=True):
    """`num_requests` requests per window; None for the default number of each load. A prompt has `input_len` tokens of
    the tokenizer in the folder `tokenizer`, or, if that is None, as many words. `load` describes how they are sent; it
    is empty if the variants differ in it. `extra_body` sets fields in every request. The requests of `dataset` are sent
    window by window, and again from the first one at its end; a trace is one window. `sample_rate` is that of a sound
    that states none. `recogniser` is the folder of the model that hears the words of answers, "" for answers of text.
    """

    endpoint: Endpoint
    num_requests: int | None
    input_len: int
    output_len: int | None
    seed: int
    load: Mapping[str, object]
    slos: Mapping[str, float] = msgspec.field(default_factory=dict)
    tokenizer: str | None = None
    extra_body: Mapping[str, object] = msgspec.field(default_factory=dict)
    dataset: Dataset | None = None
    sample_rate: int | None = None
    recogniser: str | None = None

    def describe(self) -> dict[str, object]:
        """Return the record's `workload`: everything that has to be equal for two measurements to be comparable."""
        described: dict[str, object] = {
            "kind": "server",
            "definitions": DEFINITIONS,
            "endpoint": self.endpoint.name,
            # A request without its prompt.
            "request": {**self.endpoint.body("", "", 0), **self.extra_body},
            "num_requests": self.num_requests,
            **self._prompts(),
            "output_len": self.output_len,
            "seed": self.seed,
            "load": dict(self.load),
            "slo": dict(self.slos),
            **({} if self.recogniser is None else {"recogniser": Path(self.recogniser).name}),
        }
        return {**described, "fingerprint": workload_fingerprint(described)}

    def _prompts(self) -> dict[str, object]:
        unit = "words" if self.tokenizer is None else "tokens"
        if self.dataset is None:
            if self.endpoint.sends_speech:
                return {"input": "speech"}
            return {"input_len": self.input_len, "input_unit": unit}
        return {"requests_sha256": self.dataset.sha256, "input_unit": unit}


class OutgoingRequest(msgspec.Struct, frozen=True):
    """`asked` are the lengths that it asks for, by the names of values of a request in records; the one of the prompt
    is in the workload's unit. `sound_s` are the seconds of the sound that it sends, `expected` are the words that its
    answer should have."""

    body: bytes | aiohttp.FormData
    asked: Mapping[str, float | None]
    sound_s: float | None = None
    expected: str | None = None


class RequestMaker:
    """Makes the `count` requests of each iteration; equal numbers mean equal prompts and seeds."""

    def __init__(self, workload: ServerWorkload, count: int, target: Target) -> None:
        self._workload = workload
        self._count = count
        self._model = target.model
        self._prompts = Prompts(workload.tokenizer, workload.input_len, seed=workload.seed)
        # Prompts are the same for every server and in every run, so a server that caches prompts would be measured with
        # warm caches. A salt changes no answer.
        name, is_omni = workload.endpoint.name, target.description.get("owned_by") == "omni-cli"
        self._salt = {"cache_salt": uuid.uuid4().hex} if target.salts_caches and name == "chat" else {}
        # The same speech, as events, which say if it is cut, of a WAV file, which has the sample rate.
        speech_form = {"stream_format": "sse", "response_format": "wav"}
        self.form: dict[str, object] = {**speech_form} if is_omni and name == "speech" else {}
        # Tells the tokens of each chunk.
        if name == "chat" and target.counts_chunks:
            self.form = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
        example = {**workload.endpoint.body("", "", 0), **self.form, **workload.extra_body}
        is_events = example.get("stream_format") == "sse"
        self._reader: Callable[[], Reader] = ChatReader if is_events else workload.endpoint.reader
        self._asked_format = str(example["response_format"]) if name == "speech" else None

    def reader(self) -> Reader:
        """Return a reader of one answer."""
        reader = self._reader()
        reader.answer.asked_format, reader.answer.sample_rate = self._asked_format, self._workload.sample_rate
        return reader

    def requests(self, number: int) -> list[OutgoingRequest]:
        """Return the window's requests as JSON, or as forms."""
        return [self._encode_request(number, index) for index in range(self._count)]

    def canaries(self) -> list[dict[str, object]]:
        """Return the first chats of the first window, which warms up; empty if salts keep prompts out of caches."""
        bodies = [] if self._salt else [self._body(0, index)[0] for index in range(min(NUM_CANARIES, self._count))]
        return bodies if all(map(has_prompt, bodies)) else []

    def extra_request(self, index: int) -> OutgoingRequest:
        """Return a request that is in no window: a prompt that no window has, or of a file, from its end."""
        return self._encode_request(-1 - index // self._count, self._count - 1 - index % self._count)

    def _encode_request(self, number: int, index: int) -> OutgoingRequest:
        dataset, position = self._workload.dataset, number * self._count + index
        sentence: dict[str, float] = {}
        if self._workload.endpoint.has_words:
            sentence = {SENTENCE: position if dataset is None else position % len(dataset.requests)}
        if self._workload.endpoint.sends_speech:
            return self._encode_sound(position, sentence)
        body, input_len = self._body(number, index)
        output_len = body.get("max_completion_tokens") or body.get("max_tokens")
        n = body.get("n")
        whole = output_len * (n if type(n) is int else 1) if type(output_len) is int else None
        asked = {"asked_input_len": input_len, "asked_output_len": whole}
        expected = body.get("input")
        text = expected if isinstance(expected, str) else None
        return OutgoingRequest(msgspec.json.encode(body), {**asked, **sentence}, expected=text)

    def _encode_sound(self, position: int, sentence: Mapping[str, float]) -> OutgoingRequest:
        workload = self._workload
        body = {**workload.endpoint.body(self._model, "", 0), **self.form, **workload.extra_body}
        if workload.dataset is not None:
            sound, sound_s, words = workload.dataset.requests[position % len(workload.dataset.requests)].sound
            return OutgoingRequest(sound_form(body, sound), sentence, sound_s, words)
        place = position % len(_read_speech())
        samples, rate = _read_speech()[place]
        form = sound_form(body, encode_wav(samples, rate))
        return OutgoingRequest(form, {SENTENCE: place}, len(samples) / rate, SPEECH_TEXTS[place])

    def _body(self, number: int, index: int) -> tuple[dict[str, object], int | None]:
        """Return a request's fields, and the length that its prompt is meant to have, if any is."""
        workload = self._workload
        position = number * self._count + index
        seed = (workload.seed + position) % (MAX_NUMPY_SEED + 1)
        salt = self._salt
        if workload.dataset is None:
            input_len: int | None = workload.input_len
            body = workload.endpoint.body(self._model, self._prompts.draw(number, index), seed)
        else:
            requests = workload.dataset.requests
            entry = requests[position % len(requests)]
            input_len, prompt, blocks = entry.input_len, entry.prompt, workload.dataset.block_len
            if prompt is None:
                prompt = self._prompts.draw(number, index, input_len, entry.hash_ids, blocks)
            body = {**workload.endpoint.body(self._model, prompt, seed), **entry.fields}
            body = {name: value for name, value in body.items() if value is not None}
            if entry.parts:
                content = [{"type": "text", "text": prompt}, *entry.parts]
                body["messages"] = [{"role": "user", "content": content}]
            # The same requests come again: what an earlier window left in a cache must not count.
            salt = {name: f"{value}/{number}" for name, value in salt.items()}
        body |= {**self.form, **salt, **workload.extra_body}
        if body.get("max_tokens") is not None and "max_completion_tokens" not in workload.extra_body:
            body.pop("max_completion_tokens", None)  # of a line's `extra` or `--extra-body`: servers prefer this name
        return body, input_len


_read_speech = cache(read_speech)
