"""A window of requests: the endpoint, the prompts and the load, equal for all compared servers."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import aiohttp
import msgspec

from omni_cli.bench.prompts import Prompts
from omni_cli.config.bounds import MAX_NUMPY_SEED
from omni_cli.encoding import encode_wav
from omni_cli.inputs.media.audio import read_speech
from omni_cli.loadtest.dataset import Dataset
from omni_cli.loadtest.endpoints import Endpoint
from omni_cli.loadtest.slo import SLO
from omni_cli.openai_api.media import sound_form
from omni_cli.openai_api.reading import ChatReader, Reader
from omni_cli.openai_api.servers import Target
from omni_cli.record import workload_fingerprint


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
