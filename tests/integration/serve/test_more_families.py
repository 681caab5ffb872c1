"""Qwen3-Omni, CSM and GLM-Image over HTTP: one server each, and the results of its endpoints."""

from __future__ import annotations

import base64
import io
import json
from typing import Any

import numpy as np
import openai
import pytest
import soundfile
from support.omni_server import CHAT, SPEECH, OmniServer

from omni_cli.requests.encoding import encode_wav

NUM_FRAMES = 40
FRAME_SAMPLES = 1920
# A unit of 16 bits: streamed and whole samples differ by less than 1e-4 of the peak, and may round differently.
ROUNDING = 4


@pytest.fixture(scope="module")
def omni(start_server: Any) -> OmniServer:
    limits = ("thinker.sampling.max_tokens=16", f"talker.sampling.max_tokens={NUM_FRAMES}")
    return start_server("--profile", "tiny-qwen3-omni", *(word for key in limits for word in ("--set", key)))


@pytest.fixture(scope="module")
def csm(start_server: Any) -> OmniServer:
    return start_server("--profile", "tiny-csm", "--set", f"backbone.sampling.max_tokens={NUM_FRAMES}")


@pytest.fixture(scope="module")
def glm_image(start_server: Any) -> OmniServer:
    return start_server("--profile", "tiny-glm-image", "--set", "decoder.num_inference_steps=2")


@pytest.fixture(scope="module")
def content(image_url: str) -> list[dict[str, Any]]:
    """An image, a second of audio, and a question."""
    sound = encode_wav(np.sin(np.arange(16_000) / 6).astype(np.float32) / 2, 16_000)
    return [
        {"type": "image_url", "image_url": {"url": image_url}},
        {"type": "input_audio", "input_audio": {"data": base64.b64encode(sound).decode(), "format": "wav"}},
        {"type": "text", "text": "what is it?"},
    ]


def chat(content: Any, **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content}], "return_token_ids": True, **fields}


def spoken(content: Any, audio_format: str, voice: str = "Chelsie", **fields: Any) -> dict[str, Any]:
    audio = {"voice": voice, "format": audio_format}
    return chat(content, modalities=["text", "audio"], audio=audio, **fields)


def answer(server: OmniServer, body: dict[str, Any]) -> dict[str, Any]:
    replied = server.request("POST", CHAT, body)
    assert replied.status == 200, replied.body
    return replied.document


def samples_of(pcm: bytes) -> np.ndarray:
    return np.frombuffer(pcm, np.int16).astype(int)


def assert_same_sound(streamed: bytes, whole: bytes) -> None:
    assert len(streamed) == len(whole) > 2 * FRAME_SAMPLES
    assert np.abs(samples_of(whole)).max() > 300
    assert np.abs(samples_of(streamed) - samples_of(whole)).max() <= ROUNDING


def test_a_streamed_spoken_chat_about_media_is_the_whole_one(omni: OmniServer, content: Any) -> None:
    whole = answer(omni, spoken(content, "pcm16"))
    (choice,) = whole["choices"]
    message, usage = choice["message"], whole["usage"]
    assert message["audio"]["transcript"] == message["content"] != ""
    assert usage["completion_tokens_details"]["audio_tokens"] == len(choice["audio_token_ids"]) > 2
    without = answer(omni, chat("what is it?"))
    assert usage["prompt_tokens"] > without["usage"]["prompt_tokens"] + 10
    assert choice["token_ids"] != without["choices"][0]["token_ids"]
    replied = omni.request("POST", CHAT, spoken(content, "pcm16", stream=True))
    lines = [line.removeprefix("data: ") for line in replied.body.decode().splitlines() if line]
    assert lines[-1] == "[DONE]"
    deltas = [part["delta"] for line in lines[:-1] for part in json.loads(line)["choices"]]
    assert "".join(delta.get("content") or "" for delta in deltas) == message["content"]
    pieces = [delta["audio"]["data"] for delta in deltas if "data" in delta.get("audio", {})]
    assert len(pieces) > 2, "chunks, as they are made"
    assert_same_sound(b"".join(map(base64.b64decode, pieces)), base64.b64decode(message["audio"]["data"]))


def test_a_model_without_times_tells_which_stretch_it_heard(omni: OmniServer) -> None:
    """Some clients ask for `verbose_json` whatever their user asks for."""
    sound = encode_wav(np.sin(np.arange(16_000) / 6).astype(np.float32) / 2, 16_000)
    transcribe = omni.client().audio.transcriptions.create
    fields: dict[str, Any] = {"model": "tiny-qwen3-omni", "file": ("a.wav", sound), "language": "de"}
    verbose = transcribe(response_format="verbose_json", **fields)
    openai.types.audio.TranscriptionVerbose.model_validate(verbose.model_dump(), strict=True)
    assert (verbose.text, verbose.language, verbose.duration) == (transcribe(**fields).text, "german", 1.0)
    assert [(part.start, part.end, part.text) for part in verbose.segments] == [(0.0, 1.0, verbose.text.strip())]
    with pytest.raises(openai.BadRequestError, match="this model tells no times"):
        transcribe(response_format="srt", **fields)


def test_the_official_client_gets_the_voice_it_asks_for(omni: OmniServer) -> None:
    def speak(voice: str) -> np.ndarray:
        reply = omni.client().chat.completions.create(
            model="tiny-qwen3-omni",
            messages=[{"role": "user", "content": "hello"}],
            modalities=["text", "audio"],
            audio={"voice": voice, "format": "wav"},
        )
        samples, sample_rate = soundfile.read(io.BytesIO(base64.b64decode(reply.choices[0].message.audio.data)))
        assert sample_rate == 24_000
        return samples

    ethan, aiden = speak("Ethan"), speak("Aiden")
    assert ethan.shape != aiden.shape or np.abs(ethan - aiden).max() > 0.01
    with pytest.raises(openai.BadRequestError, match=r"unknown speaker `nobody`.*aiden, chelsie, ethan"):
        speak("nobody")


@pytest.mark.parametrize(("family", "voices"), [("omni", ("Ethan", "Chelsie")), ("csm", ("0", "1"))])
def test_speech(family: str, voices: tuple[str, str], request: pytest.FixtureRequest) -> None:
    """Whole and both streamed forms are equal; another voice differs."""
    server: OmniServer = request.getfixturevalue(family)

    def speak(voice: str = voices[0], **fields: Any) -> bytes:
        body = {"input": "Good morning.", "voice": voice, "response_format": "pcm", **fields}
        replied = server.request("POST", SPEECH, body)
        assert replied.status == 200, replied.body
        return replied.body

    whole = speak()
    assert_same_sound(speak(stream_format="audio"), whole)
    lines = [line.removeprefix("data: ") for line in speak(stream_format="sse").decode().splitlines() if line]
    *deltas, done = map(json.loads, lines)
    assert_same_sound(b"".join(base64.b64decode(delta["audio"]) for delta in deltas), whole)
    assert done["type"] == "speech.audio.done" and done["usage"]["output_tokens"] >= NUM_FRAMES
    assert speak(voices[1]) != whole


@pytest.mark.parametrize(("family", "speakers"), [("omni", ["aiden", "chelsie", "ethan"]), ("csm", ["0", "1"])])
def test_voices(family: str, speakers: list[str], request: pytest.FixtureRequest) -> None:
    """The speakers, and OpenAI's voices with the speaker that the log names, too."""
    server: OmniServer = request.getfixturevalue(family)
    voices = server.request("GET", "/v1/audio/voices").document["voices"]
    own = [voice["id"] for voice in voices if voice["id"] == voice["speaker"]]
    assert sorted(own) == sorted(speakers)
    alloy = next(voice for voice in voices if voice["id"] == "alloy")
    assert alloy["speaker"] in own and alloy["name"] == f"alloy ({alloy['speaker']})"
    assert server.request("POST", SPEECH, {"input": "hello", "voice": "alloy"}).status == 200
    note = f"the voice `alloy` is OpenAI's; this model's `{alloy['speaker']}` speaks"
    # The line comes after the answer.
    server.wait_until(lambda: any(note in line.get("notes", ()) for line in server.log("request")))


def test_csm_has_speech_and_no_chat(csm: OmniServer) -> None:
    refused = csm.request("POST", CHAT, chat("hello"))
    assert refused.status == 404 and "makes audio, not text" in refused.error["message"]
    refused = csm.request("POST", SPEECH, {"input": "hello", "voice": "Ethan"})
    assert refused.status == 400 and "speakers are numbers" in refused.error["message"]


@pytest.mark.parametrize("family", ["omni", "csm"])
def test_instructions_need_a_model_that_follows_them(family: str, request: pytest.FixtureRequest) -> None:
    """Qwen3-Omni's talker gets nothing of the system prompt, and CSM has none."""
    server: OmniServer = request.getfixturevalue(family)
    refused = server.request("POST", SPEECH, {"input": "hello", "instructions": "Whisper."})
    assert refused.status == 400 and refused.error["param"] == "instructions"
    refused = server.request("POST", SPEECH, {"input": "hello", "language": "en"})
    assert refused.status == 400 and refused.error["param"] == "language"
    assert server.request("POST", SPEECH, {"input": "hello", "instructions": "", "speed": 1.0}).status == 200


def test_metrics_have_a_line_per_stage(omni: OmniServer, csm: OmniServer) -> None:
    for server, stages in ((omni, ("thinker", "talker", "code2wav")), (csm, ("backbone", "codec"))):
        for stage in stages:
            assert server.metric("omni_stage_latency_seconds_count", stage=stage) > 0
        assert server.metric("omni_time_to_first_audio_seconds_count") > 0
        assert server.metric("omni_generation_tokens_total") > NUM_FRAMES


@pytest.mark.nightly
def test_glm_image_depends_on_the_seed(glm_image: OmniServer, read_image: Any) -> None:
    def draw(**fields: Any) -> list[np.ndarray]:
        reply = glm_image.client().images.generate(model="tiny-glm-image", prompt="a lighthouse", **fields)
        return [read_image(item.b64_json) for item in reply.data]

    two = draw(size="64x96", n=2, extra_body={"seed": 3})
    assert [image.shape for image in two] == [(96, 64, 3)] * 2 and not np.array_equal(two[0], two[1])
    (second,) = draw(size="64x96", extra_body={"seed": 4})
    assert np.array_equal(second, two[1]), "seeds of several images follow each other, also of their tokens"
    with pytest.raises(openai.BadRequestError, match="`height` must be a multiple of 32"):
        draw(size="64x50")
