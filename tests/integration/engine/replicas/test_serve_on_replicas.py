"""`omni serve --replicas` on a Ray of its own: the same answers, also while a replica is killed and replaced."""

from __future__ import annotations

import base64
import hashlib
import io
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from support.media_samples import image_of, tone
from support.omni_server import CHAT, IMAGES, OmniServer

from omni_cli.requests.contents import Media, SpeechOptions, TextOptions
from omni_cli.requests.encoding import encode_pcm16, encode_png, encode_wav
from omni_cli.requests.media.audio import decode_audio
from omni_cli.requests.outputs import GenerateRequest, Message, Part

NUM_REQUESTS = 12
STEPS = "image.num_inference_steps=12"
PROFILE = ("--profile", "tiny-image", "--set", STEPS)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OmniServer]:
    server = OmniServer(tmp_path_factory.mktemp("server"), *PROFILE, "--replicas", "2")
    yield server
    server.process.popen.send_signal(signal.SIGTERM)
    ended = server.process.end()
    assert ended.code == 0, server.raw_log
    assert ended.leftovers == ()
    assert [line["event"] for line in server.log("stopped")] == ["stopped"], "and every line of the log is JSON"


@pytest.fixture(scope="module")
def alone(start_engine: Any) -> list[str]:
    """Return the digests of the images of a single process."""
    requests = [GenerateRequest(str(number), f"image {number}", seed=number) for number in range(NUM_REQUESTS)]
    results = start_engine("tiny-image", STEPS).run_all(requests)
    return [digest(encode_png(result.outputs[0].pixels)) for result in results]


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def image_from(server: OmniServer, number: int) -> str:
    answer = server.request("POST", IMAGES, {"prompt": f"image {number}", "seed": number})
    assert answer.status == 200, answer.body
    return digest(base64.b64decode(answer.document["data"][0]["b64_json"]))


def replicas(server: OmniServer) -> list[psutil.Process]:
    children = psutil.Process(server.process.pid).children(recursive=True)
    return [child for child in children if any("ServeReplica" in word for word in child.cmdline()[:1])]


def test_the_answers_are_those_of_one_process_and_both_replicas_work(server: OmniServer, alone: list[str]) -> None:
    with ThreadPoolExecutor(NUM_REQUESTS) as pool:
        assert list(pool.map(lambda number: image_from(server, number), range(NUM_REQUESTS))) == alone
    assert len(replicas(server)) == 2
    assert server.metric("omni_engine_ready") == 1
    assert server.metric("omni_stage_peak_memory_bytes", where="host") > 0


@pytest.mark.nightly
def test_a_replica_that_is_killed_loses_nothing_and_is_replaced(server: OmniServer, alone: list[str]) -> None:
    killed = replicas(server)[0]
    with ThreadPoolExecutor(NUM_REQUESTS) as pool:
        answers = [pool.submit(image_from, server, number) for number in range(NUM_REQUESTS)]
        time.sleep(0.3)
        killed.kill()
        assert [answer.result() for answer in answers] == alone
    server.wait_until(lambda: server.log("replicas"))
    assert server.log("replicas")[0]["up"] == 1
    assert server.request("GET", "/ready").status == 200, "one is enough"
    server.wait_until(lambda: server.log("replicas")[-1]["up"] == 2)
    assert killed.pid not in [process.pid for process in replicas(server)]
    assert image_from(server, 3) == alone[3]


@pytest.mark.nightly
def test_a_stage_that_is_killed_loses_nothing(server: OmniServer, alone: list[str]) -> None:
    server.wait_until(lambda: len(server.stage_processes()) == 2)
    known = len(server.log("replicas"))
    with ThreadPoolExecutor(NUM_REQUESTS) as pool:
        answers = [pool.submit(image_from, server, number) for number in range(NUM_REQUESTS)]
        time.sleep(0.3)
        server.stage_processes()[0].kill()
        assert [answer.result() for answer in answers] == alone
    server.wait_until(lambda: server.log("replicas")[known:] and server.log("replicas")[-1]["up"] == 2)


def test_refusals_are_the_same(server: OmniServer) -> None:
    assert server.request("POST", CHAT, {"messages": [{"role": "user", "content": "x"}]}).status == 404
    assert server.request("POST", IMAGES, {"prompt": "x", "size": "1x1"}).status == 400


def test_a_client_that_leaves_frees_its_place(server: OmniServer) -> None:
    server.send_and_hang_up(IMAGES, {"prompt": "x"}, after_s=0.1)
    server.wait_until(lambda: server.metric("omni_requests_in_flight") == 0)
    assert image_from(server, 0)


SPEAKING = {
    "tiny-qwen3-omni": ("thinker.sampling.max_tokens=16", "talker.sampling.max_tokens=40"),
    "tiny-csm": ("backbone.sampling.max_tokens=40",),
}


@pytest.mark.nightly
@pytest.mark.parametrize("profile", SPEAKING)
def test_speech_is_that_of_one_process(profile: str, tmp_path: Path, start_engine: Any) -> None:
    """A chat with audio and image of a chain of three stages, streamed too; speech of a chain of two."""
    engine = start_engine(profile, *SPEAKING[profile])
    server = OmniServer(
        tmp_path, "--profile", profile, *(w for key in SPEAKING[profile] for w in ("--set", key)), "--replicas", "2"
    )
    if profile == "tiny-csm":
        check_speech(server, engine)
    else:
        check_spoken_chats(server, engine)
    ended = server.stop()
    assert (ended.code, ended.leftovers) == (0, ()), server.raw_log


def check_spoken_chats(server: OmniServer, engine: Any) -> None:
    sound, rate = tone(0)
    content = [
        {"type": "image_url", "image_url": {"url": data_url(encode_png(image_of(0)))}},
        {"type": "input_audio", "input_audio": {"data": base64_of(encode_wav(sound, rate)), "format": "wav"}},
        {"type": "text", "text": "what is it?"},
    ]
    samples = decode_audio(io.BytesIO(encode_wav(sound, rate)), "sound").samples
    parts = (Part("image"), Part("audio"), Part("text", "what is it?"))
    expected = engine.run(
        GenerateRequest(
            "0",
            messages=(Message("user", parts),),
            media=Media(images=(image_of(0),), audio=((samples, rate),)),
            speech=SpeechOptions(speaker="Chelsie", stream_audio=False),
        )
    )
    assert expected.error is None
    text, audio = expected.outputs

    def ask(number: int) -> Any:
        return server.client().chat.completions.create(
            model="tiny-qwen3-omni",
            messages=[{"role": "user", "content": content}],
            modalities=["text", "audio"],
            audio={"voice": "Chelsie", "format": "pcm16"},
            stream=number % 2 == 1,
        )

    samples_alone = pcm16_samples(encode_pcm16(audio.samples))
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(ask, (0, 2, 4)))
    # Requests that share a batch may differ from one alone by float32's rounding, a step of 16 bits.
    for reply, tolerance in [*((reply, 1) for reply in together), (ask(0), 0)]:
        message = reply.choices[0].message
        assert message.content == text.text
        spoken = pcm16_samples(base64.b64decode(message.audio.data))
        np.testing.assert_allclose(spoken, samples_alone, rtol=0, atol=tolerance)
    deltas = [chunk.choices[0].delta for chunk in ask(1)]
    assert "".join(delta.content or "" for delta in deltas) == text.text
    pieces = [delta.audio.data for delta in deltas if delta.audio is not None and delta.audio.data]
    assert len(pieces) > 1 and sum(len(base64.b64decode(piece)) for piece in pieces) == 2 * len(audio.samples)


def check_speech(server: OmniServer, engine: Any) -> None:
    speech = server.client().audio.speech
    reply = speech.create(model="tiny-csm", input="Good morning.", voice="0", response_format="pcm")
    expected = engine.run(
        GenerateRequest(
            "0",
            "Read the following text aloud, word for word, and say nothing else:\n\nGood morning.",
            text=TextOptions(reply="Good morning."),
            speech=SpeechOptions(speaker="0", stream_audio=False),
        )
    )
    assert expected.error is None
    (audio,) = expected.outputs
    assert reply.content == encode_pcm16(audio.samples)


def pcm16_samples(content: bytes) -> np.ndarray:
    return np.frombuffer(content, "<i2").astype(int)


def base64_of(content: bytes) -> str:
    return base64.b64encode(content).decode()


def data_url(png: bytes) -> str:
    return f"data:image/png;base64,{base64_of(png)}"
