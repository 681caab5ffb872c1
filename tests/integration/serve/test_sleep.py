"""`/sleep`, `/wake_up` and `/is_sleeping`, as vLLM's server has them: for a chain, and for a pipeline of diffusers."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from support.omni_server import CHAT, IMAGES, Caller, OmniServer

TALK: Any = {"messages": [{"role": "user", "content": "hello"}], "seed": 1, "modalities": ["text", "audio"]}
DRAW: Any = {"prompt": "a red cube", "seed": 1, "response_format": "b64_json"}


def call(server: OmniServer, method: str, path: str) -> dict[str, Any]:
    answer = server.request(method, path)
    assert answer.status == 200, answer.body
    found: dict[str, Any] = json.loads(answer.body)
    return found


def core(server: OmniServer, path: str, body: Any) -> Any:
    answer = server.request("POST", path, body)
    assert answer.status == 200, answer.body
    document = json.loads(answer.body)
    if path == IMAGES:
        return document["data"]
    message = document["choices"][0]["message"]
    return message["content"], message["audio"]["data"]


@pytest.fixture(params=[("omni", CHAT, TALK), ("image_server", IMAGES, DRAW)], ids=["chain", "pipeline"])
def served(request: pytest.FixtureRequest) -> Iterator[tuple[OmniServer, str, Any]]:
    name, path, body = request.param
    server: OmniServer = request.getfixturevalue(name)
    yield server, path, body
    call(server, "POST", "/wake_up")


def test_the_answer_after_it_is_the_one_before(served: tuple[OmniServer, str, Any]) -> None:
    server, path, body = served
    before = core(server, path, body)
    assert call(server, "GET", "/is_sleeping") == {"is_sleeping": False}
    for _ in range(2):
        assert call(server, "POST", "/sleep?level=1") == {"status": "sleeping", "level": 1}
    assert call(server, "GET", "/is_sleeping") == {"is_sleeping": True}
    refused = server.request("POST", path, body)
    assert refused.status == 503 and b"asleep" in refused.body and "retry-after" in refused.headers
    ready = server.request("GET", "/ready")
    assert ready.status == 503 and ready.document["status"] == "asleep"
    assert set(ready.document["stages"].values()) == {"asleep"}
    assert call(server, "POST", "/wake_up") == {"status": "awake", "tags": None}
    assert server.request("GET", "/ready").status == 200
    assert core(server, path, body) == before


@pytest.mark.parametrize("mode", ["abort", "wait"])
def test_requests_that_run_are_ended_or_finished_first(omni: OmniServer, mode: str) -> None:
    caller = Caller(omni, CHAT, {**TALK, "modalities": ["text"], "max_tokens": 1000, "ignore_eos": True})
    omni.wait_until(lambda: omni.metric("omni_requests_in_flight") == 1)
    time.sleep(0.5)  # a request is in flight before a stage has it
    try:
        call(omni, "POST", f"/sleep?mode={mode}")
        caller.join()
    finally:
        call(omni, "POST", "/wake_up")
    if mode == "wait":
        assert caller.result.document["choices"][0]["finish_reason"] == "length"
    else:
        assert caller.result.status == 503 and "POST /wake_up" in caller.result.error["message"]
    core(omni, CHAT, TALK)


def test_a_pipeline_reads_its_weights_again_after_level_2(image_server: OmniServer) -> None:
    before = core(image_server, IMAGES, DRAW)
    call(image_server, "POST", "/sleep?level=2")
    assert call(image_server, "POST", "/wake_up?tags=kv_cache") == {"status": "sleeping", "tags": ["kv_cache"]}
    assert call(image_server, "POST", "/wake_up?tags=weights&tags=kv_cache")["status"] == "awake"
    assert core(image_server, IMAGES, DRAW) == before


@pytest.mark.parametrize(
    ("query", "says"), [("level=2", "use level 1"), ("level=3", "level"), ("mode=keep", "mode"), ("level=x", "level")]
)
def test_what_cannot_be_done_is_refused_and_nothing_sleeps(omni: OmniServer, query: str, says: str) -> None:
    refused = omni.request("POST", f"/sleep?{query}")
    assert refused.status == 400 and says in json.loads(refused.body)["error"]["message"]
    assert call(omni, "GET", "/is_sleeping") == {"is_sleeping": False}
    assert omni.request("GET", "/ready").status == 200
