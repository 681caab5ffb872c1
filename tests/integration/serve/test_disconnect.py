"""A client that disconnects: its work ends in every stage, and other clients are not affected."""

from __future__ import annotations

import contextlib
import http.client
import json
import time
import urllib.parse
from pathlib import Path
from typing import Any

import pytest
from support.omni_server import CHAT, IMAGES, SPEECH, OmniServer
from support.samples import sample

LONG_TEXT = {
    "messages": [{"role": "user", "content": "hello"}],
    "max_tokens": 1900,
    "ignore_eos": True,
}
LONG_SPEECH = {
    "messages": [{"role": "user", "content": "hello"}],
    "modalities": ["text", "audio"],
    "audio": {"format": "pcm16"},
    "max_tokens": 4,
}
LONG_PICTURE = {"prompt": "a cube", "num_inference_steps": 1000}


@pytest.fixture(scope="module")
def talkative(start_server: Any) -> OmniServer:
    """Speech that takes many seconds, streamed or not, because the talker does not end early."""
    sampling = (
        "token2wav.stream=true",
        "talker.sampling.max_tokens=1900",
        "talker.sampling.ignore_eos=true",
        "talker.sampling.min_tokens=1900",
    )
    return start_server(*(word for setting in sampling for word in ("--set", setting)))


def busy_s(server: OmniServer) -> float:
    """Return the processor time of all stages, without that of gloo's loops, which poll for messages."""
    busy_ns = 0
    for process in server.stage_processes():
        for task in Path(f"/proc/{process.pid}/task").iterdir():
            with contextlib.suppress(FileNotFoundError):  # a thread that has just ended
                if (task / "comm").read_text().strip() != "gloo_tcp_loop":
                    busy_ns += int((task / "schedstat").read_text().split()[0])
    return busy_ns / 1e9


def count_tokens(server: OmniServer) -> dict[tuple[str, str], float]:
    return {
        (kind, stage): server.metric(f"omni_{kind}_tokens_total", stage=stage)
        for kind in ("prompt", "generation")
        for stage in ("thinker", "talker")
    }


def is_idle(server: OmniServer) -> bool:
    """Return True after a second in which no stage worked."""
    before = busy_s(server)
    time.sleep(1.0)
    return busy_s(server) - before < 0.1


def check_idle(server: OmniServer) -> None:
    """The stages work for no longer than two cores do in a second; a busy machine may take more time for that."""
    before = busy_s(server)
    server.wait_until(lambda: server.metric("omni_requests_in_flight") == 0)
    server.wait_until(lambda: is_idle(server))
    assert busy_s(server) - before < 2.0


@pytest.mark.parametrize(
    ("stage", "stream"),
    sample(
        [("thinker", False), ("thinker", True), ("talker", False), ("talker", True)],
        [("thinker", False), ("talker", True)],
    ),
)
def test_the_stages_stop(talkative: OmniServer, stage: str, stream: bool) -> None:
    path, body = CHAT, LONG_TEXT if stage == "thinker" else LONG_SPEECH
    before = busy_s(talkative)
    tokens, hung_up = count_tokens(talkative), talkative.metric("omni_errors_total", kind="client_disconnected")
    talkative.send_and_hang_up(path, {**body, "stream": stream}, after_s=1.5)
    assert busy_s(talkative) - before > 0.1  # it was at work when the client left
    check_idle(talkative)
    *_, line = [line for line in talkative.log("request") if line["path"] == path]
    assert line["error"] == "client_disconnected"
    assert talkative.metric("omni_errors_total", kind="client_disconnected") == hung_up + 1
    added = {name: number - tokens[name] for name, number in count_tokens(talkative).items()}
    assert added["prompt", "thinker"] > 5 and 1900 > added["generation", stage] > 20
    assert line["output_tokens"] == added["generation", "thinker"] + added["generation", "talker"]
    if stage == "talker":
        assert added["generation", "thinker"] == 4, "it had finished"


def test_a_running_image_stops_and_the_others_in_its_batch_do_not(image_server: OmniServer, read_image: Any) -> None:
    steps = image_server.metric("omni_denoising_steps_total")
    image_server.send_and_hang_up(IMAGES, LONG_PICTURE, after_s=1.0)
    check_idle(image_server)
    assert 0 < image_server.metric("omni_denoising_steps_total") - steps < 1000
    assert image_server.request("POST", IMAGES, {"prompt": "a cube"}).status == 200


def test_a_client_that_leaves_a_stream_half_read(talkative: OmniServer) -> None:
    stream = talkative.client().chat.completions.create(
        model="tiny-omni", messages=LONG_TEXT["messages"], max_tokens=1900, stream=True, extra_body={"ignore_eos": True}
    )
    tokens = count_tokens(talkative)
    for _ in range(5):
        next(iter(stream))
    stream.close()
    check_idle(talkative)
    assert count_tokens(talkative)["generation", "thinker"] >= tokens["generation", "thinker"] + 4


def test_the_next_request_is_answered(talkative: OmniServer) -> None:
    answer = talkative.request("POST", CHAT, {"messages": LONG_TEXT["messages"], "max_tokens": 4})
    assert answer.status == 200
    assert talkative.request("POST", SPEECH, {"input": ""}).status == 400


def is_broken_speech(line: dict[str, Any]) -> bool:
    return line["path"] == SPEECH and line["status"] == 200


def test_raw_speech_that_fails_in_the_middle_ends_early_and_is_no_fault_of_the_server(talkative: OmniServer) -> None:
    """The status is sent, and raw samples cannot carry an error."""
    speech = {"input": "The sun sets.", "voice": "Chelsie", "response_format": "pcm", "stream_format": "audio"}
    address = urllib.parse.urlsplit(talkative.url)
    with contextlib.closing(http.client.HTTPConnection(address.hostname, address.port, timeout=60)) as connection:
        connection.request("POST", SPEECH, json.dumps(speech), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        assert answer.status == 200 and answer.read(1000)
        talkative.stage_processes()[2].kill()
        with pytest.raises(http.client.IncompleteRead):
            answer.read()
    (line,) = talkative.wait_until(lambda: [line for line in talkative.log("request") if is_broken_speech(line)])
    assert (line["status"], line["error"]) == (200, "engine_unavailable")
    assert "Traceback" not in talkative.raw_log
    # Killed while it loads, the new process could leave a library's half-made semaphore behind.
    talkative.wait_until(talkative.is_ready)
