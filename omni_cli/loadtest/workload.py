"""A window of requests: the endpoint, the prompts and the load, equal for all compared servers."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import aiohttp
import msgspec

from omni_cli.bench.prompts import Prompts
from omni_cli.config.bounds import MAX_NUMPY_SEED
from omni_cli.encoding import encode_wav
from omni_cli.errors import UsageError
from omni_cli.inputs.media.audio import read_speech
from omni_cli.loadtest.dataset import Dataset
from omni_cli.loadtest.slo import OF_AUDIO, OF_TEXT, SLO
from omni_cli.openai_api.client import Target
from omni_cli.openai_api.media import sound_form
from omni_cli.openai_api.reading import ChatReader, ImagesReader, Reader, SpeechReader, TranscriptReader
from omni_cli.openai_api.routes import Route
from omni_cli.record import workload_fingerprint

EndpointName = Literal["chat", "speech", "images", "transcriptions"]


@dataclass(frozen=True)
class Endpoint:
    """`body(model, prompt, seed)` is one request; `metrics` are those that an SLO may limit.

    With `sends_speech`, a request is a form with a sentence of the package as its file.
    """

    name: EndpointName
    path: str
    body: Callable[[str, str, int], dict[str, object]]
    reader: Callable[[], Reader]
    metrics: tuple[str, ...]
    sends_speech: bool = False


def chat(modalities: tuple[str, ...], output_len: int, *, ignore_eos: bool) -> Endpoint:
    """Streamed chats of one message with `output_len` tokens of text, exactly that many with `ignore_eos`."""

    def body(model: str, prompt: str, seed: int) -> dict[str, object]:
        return {
            "model": model,
            "messages": [{"role": "user", "content": prompt}],
            "max_completion_tokens": output_len,
            "temperature": 0.0,
            "seed": seed,
            "stream": True,
            "stream_options": {"include_usage": True},
            # A field of vLLM, which OpenAI's own servers do not know.
            **({"ignore_eos": True} if ignore_eos else {}),
            **({"modalities": list(modalities), "audio": {"format": "pcm16"}} if "audio" in modalities else {}),
        }

    sound = OF_AUDIO if "audio" in modalities else ()
    return Endpoint("chat", Route.CHAT, body, ChatReader, ("e2e", *OF_TEXT, *sound))


def speech() -> Endpoint:
    """Texts to speak; the speech is streamed while it is generated."""

    def body(model: str, prompt: str, seed: int) -> dict[str, object]:
        return {
            "model": model, "input": prompt, "seed": seed, "response_format": "pcm", "stream_format": "audio",
        }  # fmt: skip

    return Endpoint("speech", Route.SPEECH, body, SpeechReader, ("e2e", *OF_AUDIO))


def images() -> Endpoint:
    """One image per request."""

    def body(model: str, prompt: str, seed: int) -> dict[str, object]:
        return {"model": model, "prompt": prompt, "n": 1, "seed": seed, "response_format": "b64_json"}

    return Endpoint("images", Route.IMAGES, body, ImagesReader, ("e2e",))


def transcriptions() -> Endpoint:
    """One sentence to transcribe per request; `verbose_json` also has the seconds that were heard."""

    def body(model: str, prompt: str, seed: int) -> dict[str, object]:
        return {"model": model, "language": "en", "response_format": "verbose_json"}

    metrics = ("e2e", "rtf")
    return Endpoint("transcriptions", Route.TRANSCRIPTIONS, body, TranscriptReader, metrics, sends_speech=True)


def parse_modalities(text: str) -> tuple[str, ...]:
    """Parse `text,audio` as ("text", "audio"). Raises `UsageError`."""
    names = tuple(name.strip() for name in text.split(","))
    if not set(names) <= {"text", "audio"} or "text" not in names or len(set(names)) < len(names):
        raise UsageError(f"invalid value for `--modalities`: `{text}`", hint="`text` or `text,audio`")
    return names


@dataclass(frozen=True)
class ServerWorkload:
    """`num_requests` requests per window; None for the default number of each load. A prompt has `input_len` tokens of
    the tokenizer in the folder `tokenizer`, or, if that is None, as many words. `load` describes how they are sent; it
    is empty if the variants differ in it. `extra_body` sets fields in every request. The requests of `dataset` are sent
    window by window, and again from the first one at its end; a trace is one window.
    """

    endpoint: Endpoint
    num_requests: int | None
    input_len: int
    output_len: int | None
    seed: int
    load: Mapping[str, object]
    slos: tuple[SLO, ...] = ()
    tokenizer: str | None = None
    extra_body: Mapping[str, object] = field(default_factory=dict)
    dataset: Dataset | None = None

    def describe(self) -> dict[str, object]:
        """Return the record's `workload`: everything that has to be equal for two measurements to be comparable."""
        described: dict[str, object] = {
            "kind": "server",
            "endpoint": self.endpoint.name,
            # A request without its prompt.
            "request": {**self.endpoint.body("", "", 0), **self.extra_body},
            "num_requests": self.num_requests,
            **self._prompts(),
            "output_len": self.output_len,
            "seed": self.seed,
            "load": dict(self.load),
            "slo": {slo.metric: slo.limit for slo in self.slos},
        }
        return {**described, "fingerprint": workload_fingerprint(described)}

    def _prompts(self) -> dict[str, object]:
        unit = "words" if self.tokenizer is None else "tokens"
        if self.endpoint.sends_speech:
            return {"input": "speech"}
        if self.dataset is None:
            return {"input_len": self.input_len, "input_unit": unit}
        return {"requests_sha256": self.dataset.sha256, "input_unit": unit}


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
        # The same speech, as events: only they say if it is cut.
        self._form = {"stream_format": "sse"} if is_omni and name == "speech" else {}
        is_events = {**self._form, **workload.extra_body}.get("stream_format") == "sse"
        self.reader: Callable[[], Reader] = ChatReader if is_events else workload.endpoint.reader

    def bodies(self, number: int) -> list[bytes | aiohttp.FormData]:
        """Return the window's requests as JSON, or as forms."""
        return [self._encoded(number, index) for index in range(self._count)]

    def _encoded(self, number: int, index: int) -> bytes | aiohttp.FormData:
        body = self._body(number, index)
        if not self._workload.endpoint.sends_speech:
            return msgspec.json.encode(body)
        speech = read_speech()
        return sound_form(body, encode_wav(*speech[(number * self._count + index) % len(speech)]))

    def _body(self, number: int, index: int) -> dict[str, object]:
        workload = self._workload
        position = number * self._count + index
        seed = (workload.seed + position) % (MAX_NUMPY_SEED + 1)
        salt = self._salt
        if workload.dataset is None:
            body = workload.endpoint.body(self._model, self._prompts.draw(number, index), seed)
        else:
            requests = workload.dataset.requests
            entry = requests[position % len(requests)]
            prompt = entry.prompt or self._prompts.draw(number, index, entry.input_len)
            body = {**workload.endpoint.body(self._model, prompt, seed), **entry.fields}
            if entry.parts:
                content = [{"type": "text", "text": prompt}, *entry.parts]
                body["messages"] = [{"role": "user", "content": content}]
            # The same requests come again: what an earlier window left in a cache must not count.
            salt = {name: f"{value}/{number}" for name, value in salt.items()}
        return {**body, **self._form, **salt, **workload.extra_body}
