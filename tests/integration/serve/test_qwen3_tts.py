"""Qwen3-TTS over HTTP: voices, languages and instructions, and a text that is cut."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.omni_server import CHAT, SPEECH, OmniServer

BODY = {"input": "Good evening.", "voice": "serena", "response_format": "pcm", "seed": 1}
CUT = {"max_audio_tokens": 6}


@pytest.fixture(scope="module")
def server(start_server: Any) -> OmniServer:
    return start_server("--profile", "tiny-qwen3-tts", "--set", "talker.sampling.max_tokens=20")


def said(server: OmniServer, **fields: Any) -> bytes:
    reply = server.request("POST", SPEECH, {**BODY, **fields})
    assert reply.status == 200, reply.body
    return reply.body


def test_voice_language_and_instructions_change_the_speech(server: OmniServer) -> None:
    plain = said(server)
    assert plain == said(server, voice="Serena") == said(server, language="auto") and np.frombuffer(plain, "<i2").any()
    english = said(server, language="English")
    assert english == said(server, language="en")
    others = [english, said(server, voice="vivian"), said(server, instructions="Whisper."), plain]
    assert len(set(others)) == len(others)


def test_speech_that_is_cut_says_so_in_each_form(server: OmniServer) -> None:
    whole = server.request("POST", SPEECH, {**BODY, **CUT})
    assert whole.headers["x-finish-reason"] == "length" and len(whole.body) == 2 * 5 * 1920
    events = server.request("POST", SPEECH, {**BODY, **CUT, "stream_format": "sse"})
    assert '"finish_reason":"length"' in events.body.decode().replace(" ", "")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"voice": "Ethan"}, "unknown speaker `Ethan`"),
        ({"language": "klingon"}, "unknown language `klingon`"),
    ],
)
def test_what_the_model_lacks_is_refused_with_what_it_has(server: OmniServer, wrong: Any, message: str) -> None:
    refused = server.request("POST", SPEECH, {**BODY, **wrong})
    assert refused.status == 400 and message in refused.error["message"]
    assert "this model has" in refused.error["message"]


def test_it_lists_its_speakers_and_has_no_chat(server: OmniServer) -> None:
    listed = server.request("GET", "/v1/audio/voices").document["voices"]
    assert [voice["id"] for voice in listed][:4] == ["vivian", "serena", "dylan", "eric"]
    assert server.request("POST", CHAT, {"messages": [{"role": "user", "content": "hello"}]}).status == 404
