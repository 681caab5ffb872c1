"""Higgs Audio v2 over HTTP: the speech is the reference's."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
import soundfile
from support.omni_server import CHAT, SPEECH, OmniServer
from support.references import family_reference

from omni_cli.checkpoints.resolve import resolve_model
from omni_cli.models.higgs_audio.reference import HiggsAudioReference
from omni_cli.requests.contents import SpeechOptions
from omni_cli.requests.outputs import GenerateRequest, Message, Part

LIMITS = ("backbone.sampling.max_tokens=40",)
# Units of 16 bits.
ROUNDING = 4


@pytest.fixture(scope="module")
def server(start_server: Any) -> OmniServer:
    return start_server("--profile", "tiny-higgs-audio", *(word for key in LIMITS for word in ("--set", key)))


@pytest.fixture(scope="module")
def reference() -> HiggsAudioReference:
    return family_reference("tiny-higgs-audio", resolve_model("builtin:tiny-higgs-audio"), *LIMITS)


def units(waveform: np.ndarray) -> np.ndarray:
    return np.round(waveform * 32767).astype(np.int64)


@pytest.mark.parametrize(("voice", "speaker"), [("2", "2"), ("alloy", "0")])
def test_speech_is_that_of_the_reference(server: OmniServer, reference: HiggsAudioReference, voice, speaker) -> None:
    expected = units(
        reference.speak(GenerateRequest("0", "Good evening.", speech=SpeechOptions(speaker=speaker))).waveform
    )
    body = {"input": "Good evening.", "voice": voice, "response_format": "wav"}
    whole = server.request("POST", SPEECH, body)
    assert whole.status == 200 and whole.headers["content-type"] == "audio/wav"
    samples, rate = soundfile.read(io.BytesIO(whole.body), dtype="int16")
    assert rate == 24_000 and samples.shape == expected.shape and samples.any()
    assert np.abs(samples - expected).max() <= ROUNDING
    streamed = server.request("POST", SPEECH, {**body, "response_format": "pcm", "stream_format": "audio"})
    pieces = np.frombuffer(streamed.body, "<i2").astype(np.int64)
    assert pieces.shape == expected.shape
    assert np.abs(pieces - expected).max() <= ROUNDING


def test_instructions_are_the_scene(server: OmniServer, reference: HiggsAudioReference) -> None:
    scene = Message("system", (Part("text", "A windy street."),))
    said = Message("user", (Part("text", "Good evening."),))
    request = GenerateRequest("0", messages=(scene, said), speech=SpeechOptions(speaker="1"))
    body = {"input": "Good evening.", "voice": "1", "instructions": "A windy street.", "response_format": "wav"}
    samples, _ = soundfile.read(io.BytesIO(server.request("POST", SPEECH, body).body), dtype="int16")
    expected = units(reference.speak(request).waveform)
    assert samples.shape == expected.shape and np.abs(samples - expected).max() <= ROUNDING
    plain = units(reference.speak(GenerateRequest("0", "Good evening.", speech=SpeechOptions(speaker="1"))).waveform)
    assert plain.shape != expected.shape or (plain != expected).any()


def test_it_has_speech_and_no_chat(server: OmniServer) -> None:
    refused = server.request("POST", CHAT, {"messages": [{"role": "user", "content": "hello"}]})
    assert refused.status == 404, refused.body
    refused = server.request("POST", SPEECH, {"input": "hello", "voice": "Ethan"})
    assert refused.status == 400 and "unknown speaker `Ethan`" in refused.body.decode()
