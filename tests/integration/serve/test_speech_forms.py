"""The same speech in every form: each says if it is cut, and has the rate that was asked for."""

from __future__ import annotations

import base64
import json
import socket
import struct
from typing import Any

import numpy as np
import pytest
from support.omni_server import SPEECH, OmniServer

BODY = {"input": "Good morning.", "voice": "Chelsie"}


def exchange(server: OmniServer, body: dict[str, Any], version: str = "1.1") -> tuple[dict[str, str], bytes]:
    """Return the headers and everything after them, as sent."""
    content = json.dumps(body).encode()
    head = f"POST {SPEECH} HTTP/{version}\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n"
    with socket.create_connection((server.ready["host"], server.ready["port"])) as connection:
        connection.sendall(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
        received = b"".join(iter(lambda: connection.recv(65536), b""))
    first, _, rest = received.partition(b"\r\n\r\n")
    status, *lines = first.decode().split("\r\n")
    assert status.endswith("200 OK"), received
    return {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}, rest


@pytest.mark.parametrize("audio_format", ["wav", "mp3"])
def test_a_raw_stream_that_is_cut_has_its_reason_in_a_trailer(omni: OmniServer, audio_format: str) -> None:
    body = {**BODY, "seed": 1, "stream_format": "audio", "response_format": audio_format, "max_audio_tokens": 20}
    headers, rest = exchange(omni, body)
    assert headers["trailer"] == "X-Finish-Reason" and headers["transfer-encoding"] == "chunked"
    assert rest.endswith(b"\r\n0\r\nX-Finish-Reason: length\r\n\r\n")


def test_every_form_has_the_same_reason(omni: OmniServer) -> None:
    reasons = set()
    for seed in range(6):
        body = {**BODY, "seed": seed, "response_format": "pcm"}
        whole = omni.request("POST", SPEECH, body).headers["x-finish-reason"]
        raw = exchange(omni, {**body, "stream_format": "audio"})[1]
        *_, done = omni.request("POST", SPEECH, {**body, "stream_format": "sse"}).body.decode().split("\n\n")[:-1]
        assert raw.endswith(f"\r\n0\r\nX-Finish-Reason: {whole}\r\n\r\n".encode())
        assert json.loads(done.removeprefix("data: "))["finish_reason"] == whole
        reasons.add(whole)
    assert "length" in reasons


def test_a_client_of_http_1_0_gets_no_trailer(omni: OmniServer) -> None:
    _, rest = exchange(omni, {**BODY, "seed": 1, "stream_format": "audio", "response_format": "wav"}, version="1.0")
    assert rest.startswith(b"RIFF") and b"finish" not in rest.lower()


def test_the_sample_rate_is_that_of_the_request(omni: OmniServer) -> None:
    body = {**BODY, "seed": 1, "response_format": "wav"}
    own, wanted = (omni.request("POST", SPEECH, {**body, **more}).body for more in ({}, {"sample_rate": 8000}))
    assert struct.unpack("<I", own[24:28]) == (24_000,) and struct.unpack("<I", wanted[24:28]) == (8000,)
    assert len(wanted) - 44 == pytest.approx((len(own) - 44) / 3, abs=2)
    pcm = {**body, "response_format": "pcm", "sample_rate": 8000}
    answer = omni.request("POST", SPEECH, {**pcm, "stream_format": "audio"})
    raw, whole = answer.body, omni.request("POST", SPEECH, {**body, "response_format": "pcm"})
    assert answer.headers["content-type"] == "audio/pcm;rate=8000;channels=1"
    assert whole.headers["content-type"] == "audio/pcm;rate=24000;channels=1"
    lines = omni.request("POST", SPEECH, {**pcm, "stream_format": "sse"}).body.decode().split("\n\n")
    events = [json.loads(line.removeprefix("data: ")) for line in lines if line]
    assert b"".join(base64.b64decode(event["audio"]) for event in events[:-1]) == raw
    difference = np.frombuffer(raw, np.int16).astype(int) - np.frombuffer(wanted[44:], np.int16)
    assert np.abs(difference).max() <= 33, "that of the model's own streamed speech"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"sample_rate": 44_100, "response_format": "opus"}, "Opus has no 44100 Hz; it has 8000, 12000"),
        ({"sample_rate": 7000}, "8000"),
        ({"sample_rate": "16000"}, "sample_rate"),
        ({"speed": 1.5}, "`speed` is not supported; only 1 or 1.0 is"),
    ],
)
def test_what_has_no_effect_is_refused_by_name(omni: OmniServer, fields: dict[str, Any], message: str) -> None:
    answer = omni.request("POST", SPEECH, {**BODY, **fields})
    assert answer.status == 400 and answer.error["param"] == next(iter(fields)) and message in answer.error["message"]
