"""The official client, unmodified: its results equal those of the engine without a server."""

from __future__ import annotations

import base64
import io
import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import soundfile
from support.omni_server import CHAT, OmniServer
from support.request_fields import with_fields

from omni_cli.requests.encoding import encode_pcm16, encode_wav
from omni_cli.requests.media.audio import decode_audio
from omni_cli.requests.outputs import (
    AudioOutput,
    GenerateRequest,
    ImageOutput,
    Message,
    Part,
    RequestResult,
    TextOutput,
)

MODEL = "tiny-omni"
BOTH: Any = ["text", "audio"]


def user(content: Any) -> list[Any]:
    return [{"role": "user", "content": content}]


def text_of(result: RequestResult) -> TextOutput:
    return next(output for output in result.outputs if isinstance(output, TextOutput))


def audio_of(result: RequestResult) -> AudioOutput:
    return next(output for output in result.outputs if isinstance(output, AudioOutput))


def run(engine: Any, prompt: str, *modalities: Any, **fields: Any) -> RequestResult:
    result = engine.run(with_fields(GenerateRequest("r", prompt, modalities=frozenset(modalities)), **fields))
    assert result.error is None
    return result


def test_models(omni: OmniServer) -> None:
    (model,) = omni.client().models.list().data
    assert (model.id, model.owned_by) == (MODEL, "omni-cli")
    assert omni.client().models.retrieve(MODEL) == model


def test_chat(omni: OmniServer, omni_engine: Any) -> None:
    answer = omni.client().chat.completions.create(
        model=MODEL, messages=user("hello"), seed=3, extra_body={"return_token_ids": True, "cache_salt": "a"}
    )
    expected = run(omni_engine, "hello", "text", seed=3)
    (choice,) = answer.choices
    assert choice.message.content == text_of(expected).text != ""
    assert choice.token_ids == list(text_of(expected).token_ids)
    assert choice.finish_reason == text_of(expected).finish_reason
    assert choice.message.audio is None
    (trace,) = expected.stages
    assert answer.usage.prompt_tokens == trace.num_input_tokens
    assert answer.usage.completion_tokens == trace.num_output_tokens
    assert answer.usage.total_tokens == trace.num_input_tokens + trace.num_output_tokens


@pytest.mark.parametrize("stream", [False, True])
def test_several_answers_have_the_next_seeds(omni: OmniServer, stream: bool) -> None:
    asked: Any = {"model": MODEL, "messages": user("hello"), "seed": 3, "temperature": 1.5, "max_tokens": 12}
    one = [omni.client().chat.completions.create(**{**asked, "seed": seed}) for seed in (3, 4, 5)]
    if stream:
        texts, finished, counts = ["", "", ""], set(), []
        for chunk in omni.client().chat.completions.create(
            **asked, n=3, stream=True, stream_options={"include_usage": True}
        ):
            for choice in chunk.choices:
                texts[choice.index] += choice.delta.content or ""
                finished |= {choice.index} if choice.finish_reason else set()
            counts += [chunk.usage] if chunk.usage else []
        assert finished == {0, 1, 2}
        (usage,) = counts
    else:
        several = omni.client().chat.completions.create(**asked, n=3)
        assert [choice.index for choice in several.choices] == [0, 1, 2]
        texts, usage = [choice.message.content for choice in several.choices], several.usage
    assert texts == [answer.choices[0].message.content for answer in one]
    assert len(set(texts)) == 3
    assert usage.prompt_tokens == one[0].usage.prompt_tokens
    assert usage.completion_tokens == sum(answer.usage.completion_tokens for answer in one)


def test_special_tokens_in_a_text_act_as_such(omni: OmniServer) -> None:
    """As in vLLM and transformers: a text may contain other turns."""
    turns = [*user("hello"), {"role": "assistant", "content": "yes"}, *user("again")]
    one = "hello<|im_end|>\n<|im_start|>assistant\nyes<|im_end|>\n<|im_start|>user\nagain"
    answers = [
        omni.client().chat.completions.create(model=MODEL, messages=messages, extra_body={"return_token_ids": True})
        for messages in (turns, user(one))
    ]
    assert answers[0].usage.prompt_tokens == answers[1].usage.prompt_tokens
    assert answers[0].choices[0].token_ids == answers[1].choices[0].token_ids


def test_sampling_reaches_the_engine(omni: OmniServer, omni_engine: Any) -> None:
    sampling = {"temperature": 1.5, "max_tokens": 7, "top_p": 0.9, "ignore_eos": True}
    expected = text_of(run(omni_engine, "hello", "text", seed=5, sampling=sampling)).text
    assert expected != text_of(run(omni_engine, "hello", "text", seed=6, sampling=sampling)).text
    answer = omni.client().chat.completions.create(
        model=MODEL,
        messages=user("hello"),
        seed=5,
        temperature=1.5,
        max_completion_tokens=7,
        top_p=0.9,
        extra_body={"ignore_eos": True},
    )
    assert answer.choices[0].message.content == expected
    assert answer.choices[0].finish_reason == "length"


def test_streamed_chat(omni: OmniServer, omni_engine: Any) -> None:
    chunks = list(
        omni.client().chat.completions.create(
            model=MODEL, messages=user("hello"), stream=True, stream_options={"include_usage": True}
        )
    )
    expected = run(omni_engine, "hello", "text")
    *deltas, last, usage = chunks
    texts = [chunk.choices[0].delta.content for chunk in deltas]
    assert "".join(texts) == text_of(expected).text
    assert len([text for text in texts if text]) > 2
    assert deltas[0].choices[0].delta.role == "assistant"
    assert last.choices[0].finish_reason == text_of(expected).finish_reason
    assert usage.choices == [] and usage.usage.completion_tokens == expected.stages[0].num_output_tokens
    assert len({chunk.id for chunk in chunks}) == 1


@pytest.mark.parametrize("audio_format", ["wav", "flac", "pcm16"])
def test_spoken_chat(omni: OmniServer, omni_engine: Any, audio_format: Any) -> None:
    answer = omni.client().chat.completions.create(
        model=MODEL,
        messages=user("hello"),
        modalities=BOTH,
        audio={"voice": "Ethan", "format": audio_format},
        seed=0,
        extra_body={"return_token_ids": True},
    )
    expected = run(omni_engine, "hello", "text", "audio", speaker="Ethan")
    (choice,) = answer.choices
    assert choice.audio_token_ids == list(expected.stages[1].output_token_ids)
    assert choice.message.audio.transcript == choice.message.content == text_of(expected).text
    data = base64.b64decode(choice.message.audio.data)
    audio = audio_of(expected)
    if audio_format == "wav":
        assert data == encode_wav(audio.samples, audio.sample_rate)
    elif audio_format == "pcm16":
        assert data == encode_pcm16(audio.samples)
    else:
        samples, sample_rate = soundfile.read(io.BytesIO(data), dtype="int16")
        assert sample_rate == audio.sample_rate
        assert samples.tobytes() == encode_pcm16(audio.samples)
    tokens = [trace.num_output_tokens for trace in expected.stages[:2]]
    assert answer.usage.completion_tokens == sum(tokens)
    assert answer.usage.completion_tokens_details.audio_tokens == tokens[1]


def test_streamed_spoken_chat(omni: OmniServer, omni_engine: Any) -> None:
    chunks = list(
        omni.client().chat.completions.create(
            model=MODEL,
            messages=user("hello"),
            modalities=BOTH,
            audio={"voice": "Chelsie", "format": "pcm16"},
            seed=0,
            stream=True,
        )
    )
    expected = run(omni_engine, "hello", "text", "audio", stream_audio=True)
    deltas = [chunk.choices[0].delta for chunk in chunks]
    pieces = [delta.audio for delta in deltas if delta.audio is not None]
    assert "".join(delta.content or "" for delta in deltas) == text_of(expected).text
    assert "".join(piece.transcript or "" for piece in pieces) == text_of(expected).text
    pcm = b"".join(base64.b64decode(piece.data or "") for piece in pieces)
    assert pcm == encode_pcm16(audio_of(expected).samples)
    assert len({piece.id for piece in pieces}) == 1


def test_speech_alone_has_no_content(omni: OmniServer) -> None:
    answer = omni.client().chat.completions.create(
        model=MODEL, messages=user("hello"), modalities=["audio"], audio={"voice": "Chelsie", "format": "wav"}
    )
    message = answer.choices[0].message
    assert message.content is None
    assert message.audio.transcript and message.audio.data


def test_image_and_audio_go_in(
    omni: OmniServer, omni_engine: Any, image: np.ndarray, image_url: str, sound: bytes
) -> None:
    parts = [
        {"type": "input_audio", "input_audio": {"data": base64.b64encode(sound).decode(), "format": "wav"}},
        {"type": "image_url", "image_url": {"url": image_url}},
        {"type": "text", "text": "what is it?"},
    ]
    answer = omni.client().chat.completions.create(
        model=MODEL, messages=user(parts), extra_body={"return_token_ids": True}
    )
    audio = decode_audio(io.BytesIO(sound), "sound")
    heard = (audio.samples, audio.sample_rate)
    expected = run(omni_engine, "what is it?", "text", audio=(heard,), images=(image,))
    assert answer.choices[0].token_ids == list(text_of(expected).token_ids)
    assert answer.usage.prompt_tokens == expected.stages[0].num_input_tokens
    without = run(omni_engine, "what is it?", "text")
    assert answer.usage.prompt_tokens > without.stages[0].num_input_tokens


@pytest.mark.parametrize("response_format", ["wav", "flac", "pcm"])
def test_speech(omni: OmniServer, response_format: Any) -> None:
    """The three formats have the same samples, and another voice has others."""
    client = omni.client()

    def speak(voice: str, **options: Any) -> bytes:
        options["extra_body"] = {"seed": 0}
        return client.audio.speech.create(model=MODEL, input="Good morning.", voice=voice, **options).content

    pcm = speak("Chelsie", response_format="pcm")
    data = speak("Chelsie", response_format=response_format)
    assert len(pcm) > 1000
    if response_format == "pcm":
        assert data != speak("Ethan", response_format="pcm")
    else:
        samples, sample_rate = soundfile.read(io.BytesIO(data), dtype="int16")
        assert sample_rate == 24_000
        assert samples.tobytes() == pcm


def test_streamed_speech(omni: OmniServer) -> None:
    client = omni.client()
    request: Any = {"model": MODEL, "input": "Good morning.", "voice": "Chelsie", "response_format": "pcm"}
    request["extra_body"] = {"seed": 0}
    whole = client.audio.speech.create(**request).content
    with client.audio.speech.with_streaming_response.create(**request, stream_format="audio") as response:
        streamed = b"".join(response.iter_bytes())
    difference = np.frombuffer(streamed, np.int16).astype(int) - np.frombuffer(whole, np.int16)
    assert np.abs(difference).max() <= 33, "a thousandth of full scale"
    with client.audio.speech.with_streaming_response.create(**request, stream_format="sse") as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = [json.loads(line.removeprefix("data: ")) for line in response.iter_lines() if line]
    *deltas, done = lines
    assert b"".join(base64.b64decode(delta["audio"]) for delta in deltas) == streamed
    assert done["type"] == "speech.audio.done" and done["usage"]["output_tokens"] > 0


def test_images(image_server: OmniServer, image_engine: Any, read_image: Any) -> None:
    """Several images have consecutive seeds, and equal the engine's bit for bit."""
    answer = image_server.client().images.generate(
        model="tiny-image", prompt="a red cube", n=3, size="64x48", extra_body={"seed": 7, "num_inference_steps": 3}
    )
    diffusion = {"width": 64, "height": 48, "num_inference_steps": 3}
    for number, item in enumerate(answer.data):
        result = image_engine.run(GenerateRequest("r", "a red cube", seed=7 + number, diffusion=diffusion))
        (expected,) = result.outputs
        assert isinstance(expected, ImageOutput)
        assert np.array_equal(read_image(item.b64_json), expected.pixels)
    assert len({item.b64_json for item in answer.data}) == 3


def test_many_at_once_get_their_own(omni: OmniServer) -> None:
    """Concurrent answers equal those of the same requests alone, and none is mixed up."""

    def ask(number: int) -> tuple[str, list[int], list[int]]:
        answer = omni.client().chat.completions.create(
            model=MODEL,
            messages=user(f"Tell me about number {number}."),
            modalities=BOTH,
            audio={"voice": ("Chelsie", "Ethan")[number % 2], "format": "wav"},
            seed=number,
            extra_body={"return_token_ids": True, "temperature": 0.8},
        )
        (choice,) = answer.choices
        return choice.message.content, choice.token_ids, choice.audio_token_ids

    alone = [ask(number) for number in range(6)]
    assert len({str(answer) for answer in alone}) == 6
    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(ask, range(6))) == alone


def test_concurrent_image_requests_get_their_own(image_server: OmniServer) -> None:
    def draw(number: int) -> str:
        client = image_server.client()
        answer = client.images.generate(model="tiny-image", prompt=f"image {number}", extra_body={"seed": number})
        return answer.data[0].b64_json

    alone = [draw(number) for number in range(5)]
    assert len(set(alone)) == 5
    with ThreadPoolExecutor(5) as pool:
        assert list(pool.map(draw, range(5))) == alone


def test_request_ids_come_back_and_are_in_the_log(omni: OmniServer) -> None:
    body = {"model": MODEL, "messages": user("hello")}
    answer = omni.request("POST", CHAT, body, x_request_id="my-own-id")
    assert answer.status == 200 and answer.headers["x-request-id"] == "my-own-id"
    # A request is logged once its last byte is sent.
    (line,) = omni.wait_until(lambda: [line for line in omni.log("request") if line["request_id"] == "my-own-id"])
    assert line["status"] == 200 and line["path"] == CHAT and line["output_tokens"] > 0
    assert line["sent_bytes"] == len(answer.body)
    without = omni.request("POST", CHAT, body)
    assert len(without.headers["x-request-id"]) == 32


def test_a_conversation_continues(omni: OmniServer, omni_engine: Any) -> None:
    """The client's own answer objects can be sent back, spoken ones included."""
    client = omni.client()
    first = client.chat.completions.create(
        model=MODEL, messages=user("hello"), modalities=BOTH, audio={"voice": "Ethan", "format": "wav"}
    )
    reply = first.choices[0].message
    messages: list[Any] = [{"role": "developer", "content": "Be brief."}, *user("hello"), reply, *user("bye")]
    answer = client.chat.completions.create(model=MODEL, messages=messages, extra_body={"return_token_ids": True})
    turns: list[tuple[Any, str]] = [
        ("system", "Be brief."),
        ("user", "hello"),
        ("assistant", reply.content),
        ("user", "bye"),
    ]
    expected = omni_engine.run(
        GenerateRequest(
            "r",
            messages=tuple(Message(role, (Part("text", text),)) for role, text in turns),
            modalities=frozenset({"text"}),
        )
    )
    assert answer.choices[0].token_ids == list(text_of(expected).token_ids)


def test_speech_is_that_of_the_text_as_a_reply(omni: OmniServer, omni_engine: Any) -> None:
    """Compare with the engine, which gets the text as its answer."""
    request: Any = {"model": MODEL, "input": "Good morning.", "voice": "Ethan", "response_format": "wav"}
    data = omni.client().audio.speech.create(**request, extra_body={"seed": 0}).content
    instruction = "Read the following text aloud, word for word, and say nothing else:\n\nGood morning."
    expected = run(omni_engine, instruction, "audio", reply="Good morning.", speaker="Ethan")
    audio = audio_of(expected)
    assert data == encode_wav(audio.samples, audio.sample_rate)


@pytest.mark.parametrize("kind", ["mp3", "flac", "pcm"])
def test_events_of_speech_carry_the_file_that_is_streamed(omni: OmniServer, kind: str) -> None:
    request: Any = {
        "input": "hello",
        "voice": "Ethan",
        "model": MODEL,
        "response_format": kind,
        "extra_body": {"seed": 1},
    }
    speech = omni.client().audio.speech.with_streaming_response
    with speech.create(**request, stream_format="audio") as response:
        expected = response.read()
    with speech.create(**request, stream_format="sse") as response:
        lines = [line for line in response.read().decode().splitlines() if line]
    events = [json.loads(line.removeprefix("data: ")) for line in lines]
    assert b"".join(base64.b64decode(event.get("audio", "")) for event in events) == expected
    assert [event["type"] for event in events].count("speech.audio.done") == 1
