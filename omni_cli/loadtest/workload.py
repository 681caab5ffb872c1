"""A window of requests: the endpoint, the prompts, the load; the same for every server that is compared."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from omni_cli.bench.prompts import Prompts
from omni_cli.loadtest.endpoints import Endpoint
from omni_cli.loadtest.slo import SLO
from omni_cli.record import workload_fingerprint

_MAX_SEED = 2**32


@dataclass(frozen=True)
class ServerWorkload:
    """`num_requests` requests per window. A prompt has `input_len` tokens of the tokenizer in the folder `tokenizer`,
    or as many words where that is None. `load` is how they are sent, empty where the variants differ in that.
    `extra_body` sets fields in every request.
    """

    endpoint: Endpoint
    num_requests: int
    input_len: int
    output_len: int | None
    seed: int
    load: Mapping[str, object]
    slos: tuple[SLO, ...] = ()
    tokenizer: str | None = None
    extra_body: Mapping[str, object] = field(default_factory=dict)

    def describe(self) -> dict[str, object]:
        """The record's `workload`: everything that has to be equal for two measurements to be comparable."""
        described: dict[str, object] = {
            "kind": "server",
            "endpoint": self.endpoint.name,
            # The request without its words.
            "request": {**self.endpoint.body("", "", 0), **self.extra_body},
            "num_requests": self.num_requests,
            "input_len": self.input_len,
            "input_unit": "words" if self.tokenizer is None else "tokens",
            "output_len": self.output_len,
            "seed": self.seed,
            "load": dict(self.load),
            "slo": {slo.metric: slo.limit for slo in self.slos},
        }
        return {**described, "fingerprint": workload_fingerprint(described)}


class RequestMaker:
    """Makes the requests of each iteration; equal numbers mean equal prompts and seeds."""

    def __init__(self, workload: ServerWorkload, model: str, *, salts_caches: bool) -> None:
        self._workload = workload
        self._model = model
        self._prompts = Prompts(workload.tokenizer, workload.input_len, seed=workload.seed)
        # Prompts are the same for every server, and in every run: without this, a server that remembers prompts
        # would be measured on its memory. It changes no answer.
        self._salt = {"cache_salt": uuid.uuid4().hex} if salts_caches and workload.endpoint.name == "chat" else {}

    def bodies(self, number: int) -> list[bytes]:
        """The window's requests as JSON."""
        workload = self._workload
        bodies = []
        for index in range(workload.num_requests):
            seed = (workload.seed + number * workload.num_requests + index) % _MAX_SEED
            body = workload.endpoint.body(self._model, self._prompts.draw(number, index), seed)
            bodies.append(msgspec.json.encode({**body, **self._salt, **workload.extra_body}))
        return bodies
