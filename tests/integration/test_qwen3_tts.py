"""Qwen3-TTS's chain: requests alone, at once and streamed are equal, and each kind of checkpoint speaks its own way."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.request_fields import with_fields

from omni_cli.requests.contents import ReferenceVoice, SpeechOptions, TranscriptionOptions
from omni_cli.requests.events import AudioChunk
from omni_cli.requests.outputs import AudioOutput, GenerateRequest, Message, Part, RequestResult

pytestmark = pytest.mark.usefixtures("one_thread")
MAX_TOKENS = 30
LIMIT = f"talker.sampling.max_tokens={MAX_TOKENS}"
SAMPLED = {"temperature": 0.9, "top_k": 50}


def spoken(
    name: str, text: str, *, speaker: str | None = None, language: str | None = None, how: str | None = None
) -> GenerateRequest:
    messages = () if how is None else (Message("system", (Part("text", how),)), Message("user", (Part("text", text),)))
    return GenerateRequest(
        name,
        text,
        messages,
        seed=len(text),
        speech=SpeechOptions(speaker=speaker),
        transcription=TranscriptionOptions(language=language),
    )


REQUESTS = [
    spoken("plain", "Hello there, this is a test."),
    spoken("dialect", "Good morning.", speaker="Dylan"),
    spoken("language", "Good morning.", speaker="dylan", language="en"),
    spoken("instructed", "12, 13, 14", speaker="serena", how="Very slowly."),
    spoken("long", "Tell me a story about the rain on a tin roof, and then another one. " * 3, language="Chinese"),
]


@pytest.fixture(scope="module")
def engine(start_engine):
    return start_engine("tiny-qwen3-tts", LIMIT)


@pytest.fixture(scope="module")
def alone(engine):
    return [engine.run(request) for request in REQUESTS]


def heard(result: RequestResult) -> np.ndarray:
    assert result.error is None, result.error
    (audio,) = [output for output in result.outputs if isinstance(output, AudioOutput)]
    assert audio.sample_rate == 24_000 and audio.finish_reason == result.stages[0].finish_reason
    return audio.samples


def codes_of(result: RequestResult) -> tuple[tuple[int, ...], ...]:
    assert result.error is None, result.error
    return tuple(map(tuple, result.stages[0].output_codes))


def assert_equal(result: RequestResult, expected: RequestResult) -> None:
    assert codes_of(result) == codes_of(expected)
    peak = np.abs(heard(expected)).max()
    assert peak > 0.01
    np.testing.assert_allclose(heard(result), heard(expected), atol=1e-4 * peak, rtol=0)


def test_a_limit_of_tokens_gives_one_frame_less(alone):
    for result in alone:
        talker = result.stages[0]
        num_tokens = len(talker.output_token_ids)
        assert len(talker.output_codes) == num_tokens - 1 and {len(frame) for frame in talker.output_codes} == {16}
        assert talker.finish_reason == ("length" if num_tokens == MAX_TOKENS else "stop")
        assert len(heard(result)) == 1920 * (num_tokens - 1)
        assert talker.effective["text_first"] is True
    assert len(set(map(codes_of, alone))) == len(REQUESTS)


def test_requests_at_once_equal_those_alone(engine, alone):
    for result, expected in zip(engine.run_all(REQUESTS), alone, strict=True):
        assert_equal(result, expected)


def streamed(request: GenerateRequest) -> GenerateRequest:
    return replace(request, speech=replace(request.speech, stream_audio=True))


def test_streamed_speech_equals_the_whole(engine, alone):
    for events, expected in zip(engine.events(list(map(streamed, REQUESTS))), alone, strict=True):
        assert_equal(events[-1], expected)
        chunks = [event.samples for event in events if isinstance(event, AudioChunk)]
        sizes = [len(samples) // 1920 for samples in chunks]
        assert sizes[:4] == [1, 2, 4, 12] and sum(sizes) == len(codes_of(expected))


def test_streamed_speech_that_is_cut_anywhere_equals_the_whole(engine):
    """A frame is sent before the next one is known, but not that of the last token."""
    limits = (2, 3, 4, 5, 8, 9, 20)
    cut = [replace(REQUESTS[0], request_id=str(limit), sampling={"max_tokens": limit}) for limit in limits]
    expected = engine.run_all(cut)
    for limit, events, whole in zip(limits, engine.events(list(map(streamed, cut))), expected, strict=True):
        assert_equal(events[-1], whole)
        sizes = [len(event.samples) // 1920 for event in events if isinstance(event, AudioChunk)]
        assert sum(sizes) == limit - 1 and sizes == [1, 2, 4, 12][: len(sizes) - 1] + sizes[-1:]


def test_sampled_requests_depend_on_their_seed_alone(engine):
    requests = [replace(request, sampling=SAMPLED) for request in REQUESTS]
    expected = [codes_of(engine.run(request)) for request in requests]
    assert [codes_of(result) for result in engine.run_all(requests)] == expected
    others = engine.run_all([replace(request, seed=request.seed + 100) for request in requests])
    assert all(codes_of(other) != codes for other, codes in zip(others, expected, strict=True))


# A block of the KV cache: keys and values, layers, key-value heads, head size, float32, tokens.
BLOCK_BYTES = 2 * 2 * 2 * 32 * 4 * 32
PRESSURE = (
    "talker.max_num_batched_tokens=16",
    "talker.block_size=32",
    "talker.max_model_len=256",
    f"talker.kv_cache_memory_bytes={9 * BLOCK_BYTES}",
)


def test_equal_under_pressure_greedy_and_sampled(engine, alone, start_brief_engine):
    """Prompts split over steps, and a KV cache that holds a few of the requests."""
    pressed = start_brief_engine("tiny-qwen3-tts", LIMIT, *PRESSURE)
    twice = [*REQUESTS, *(replace(request, request_id=f"{request.request_id} again") for request in REQUESTS)]
    for result, expected in zip(pressed.run_all(twice), [*alone, *alone], strict=True):
        assert_equal(result, expected)
    sampled = [replace(request, sampling=SAMPLED) for request in REQUESTS]
    assert list(map(codes_of, pressed.run_all(sampled))) == list(map(codes_of, engine.run_all(sampled)))
    assert pressed.execution_counters("talker")["preemptions"] > 0


def test_speech_of_a_given_length_does_not_end_early(engine):
    request = replace(REQUESTS[0], sampling={"ignore_eos": True, "max_tokens": 60})
    assert len(codes_of(engine.run(request))) == 59


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"speaker": "Bob"}, "unknown speaker `Bob`"),
        ({"prompt": " "}, "the prompt is empty"),
        ({"max_audio_tokens": 1}, "stage `talker` said nothing: it ended, or was cut, at once"),
        ({"raw": True}, "a raw prompt is a text in the model's own marks"),
        ({"prompt": "word " * 4000}, "the prompt is longer than stage `talker` takes"),
        ({"voices": (ReferenceVoice(np.ones(24_000, np.float32), 24_000),)}, "this checkpoint does not clone voices"),
    ],
)
def test_a_request_that_cannot_be_spoken_fails_alone(engine, alone, wrong, message):
    failed, good = engine.run_all([with_fields(REQUESTS[0], request_id="wrong", **wrong), REQUESTS[0]])
    assert failed.error is not None and message in str(failed.error)
    assert_equal(good, alone[0])


def voice(text: str | None) -> ReferenceVoice:
    times = np.arange(24_000, dtype=np.float32) / 24_000
    return ReferenceVoice(0.3 * np.sin(times * 1400) * np.sin(times * 20), 24_000, text)


def test_a_recording_is_cloned_by_itself_or_with_its_words(start_brief_engine):
    base = start_brief_engine("tiny-qwen3-tts", LIMIT, model="builtin:tiny-qwen3-tts-base")
    requests = [
        with_fields(spoken(name, "Good morning."), voices=(voice(text),))
        for name, text in (("embedding", None), ("context", "Some words."))
    ]
    by_itself, with_words = expected = [base.run(request) for request in requests]
    assert codes_of(by_itself) != codes_of(with_words)
    for events, whole in zip(base.events(list(map(streamed, requests))), expected, strict=True):
        assert_equal(events[-1], whole)
        # What was recorded is not heard, also of the first frame's chunk.
        assert [len(event.samples) for event in events if isinstance(event, AudioChunk)][:2] == [1920, 2 * 1920]
        assert len(heard(whole)) == 1920 * len(codes_of(whole))
        assert whole.stages[0].effective["text_first"] is False
    failed = base.run(spoken("none", "Good morning."))
    assert "this checkpoint speaks with cloned voices alone" in str(failed.error)


def test_a_voice_is_designed_by_instructions(start_brief_engine):
    design = start_brief_engine("tiny-qwen3-tts", LIMIT, model="builtin:tiny-qwen3-tts-design")
    texts = [spoken(str(number), "Good morning.", how=how) for number, how in enumerate(("Low.", "High.", None))]
    assert len(set(map(codes_of, design.run_all(texts)))) == len(texts)
    failed = design.run(spoken("named", "Good morning.", speaker="vivian"))
    assert "unknown speaker `vivian`" in str(failed.error)
