"""VibeVoice against Hugging Face's own: every control token, and the same waveform."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.media_samples import tone
from support.references import family_reference
from support.request_fields import with_fields

from omni_cli.checkpoints.resolve import resolve_model
from omni_cli.models.reference import SpokenText
from omni_cli.requests.contents import ReferenceVoice, SpeechOptions, TextOptions
from omni_cli.requests.events import AudioChunk
from omni_cli.requests.outputs import AudioOutput, GenerateRequest, RequestResult

pytestmark = pytest.mark.usefixtures("one_thread")
LIMITS = ("speaker.sampling.max_tokens=20",)
# Of the peak: what rounding becomes in 20 steps that each feed the next.
TOLERANCE = 1e-3
# Of the peak: of sums that a batch takes in another order; 4e-6 is measured.
ROUNDING = 2e-5


def voice(seed: int, sample_rate: int = 16_000) -> ReferenceVoice:
    """A recording of another length for each seed."""
    samples, rate = tone(seed, sample_rate)
    return ReferenceVoice(samples[: len(samples) - 1000 * seed], rate)


REQUESTS = [
    GenerateRequest("hello", "hello", seed=1),
    GenerateRequest("question", "What is the capital of France?", seed=2, speech=SpeechOptions(speaker="1")),
    GenerateRequest("voice", "A day in May.", seed=3, speech=SpeechOptions(voices=(voice(0),))),
    GenerateRequest(
        "two", "Speaker 1: Hello!\nSpeaker 2: And you?", seed=4, speech=SpeechOptions(voices=(voice(1), voice(2)))
    ),
    GenerateRequest("raw", "Speech:\n<|vision_start|>", seed=5, text=TextOptions(raw=True)),
    GenerateRequest("long", "Tell me a story about the rain on a tin roof, and then another one. " * 4, seed=6),
]


@pytest.fixture(scope="module")
def references() -> dict[str, SpokenText]:
    reference = family_reference("tiny-vibevoice", resolve_model("builtin:tiny-vibevoice"), *LIMITS)
    return {request.request_id: reference.speak(request) for request in REQUESTS}


@pytest.fixture(scope="module")
def engine(start_engine):
    return start_engine("tiny-vibevoice", *LIMITS)


def assert_equal(result: RequestResult, reference: SpokenText) -> None:
    samples = audio_of(result)
    assert result.stages[0].output_token_ids == reference.tokens
    assert samples.shape == reference.waveform.shape
    peak = np.abs(reference.waveform).max()
    np.testing.assert_allclose(samples, reference.waveform, atol=TOLERANCE * peak, rtol=0)


def audio_of(result: RequestResult) -> np.ndarray:
    assert result.error is None, result.error
    (audio,) = [output for output in result.outputs if isinstance(output, AudioOutput)]
    return audio.samples


def test_the_references_are_worth_comparing(references):
    assert len({reference.tokens for reference in references.values()}) > 3
    assert all(np.abs(reference.waveform).max() > 0.01 for reference in references.values())


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda request: request.request_id)
def test_single_request_equals_the_reference(engine, references, request_):
    assert_equal(engine.run(request_), references[request_.request_id])


def test_requests_at_once_equal_the_reference(engine, references):
    for result in engine.run_all(REQUESTS):
        assert_equal(result, references[result.request_id])


def test_eight_at_once_are_what_each_is_alone(engine):
    """Of other lengths, with and without voices, one to four speakers: the same tokens, and samples within rounding."""
    two = "Speaker 1: Hello!\nSpeaker 2: And you?"
    four = "Speaker 0: Hello.\nSpeaker 1: Good morning.\nSpeaker 2: It rains.\nSpeaker 3: Yes."
    spoken = [
        ("hello", ()),
        ("What is the capital of France?", ()),
        ("A day in May.", (voice(0),)),
        ("one two three four five six seven", (voice(1, 24_000),)),
        ("Tell me a story about the rain on a tin roof. " * 3, (voice(2, 8000),)),
        (two, ()),
        (two, (voice(3), voice(1))),
        (four, tuple(map(voice, range(4)))),
    ]
    requests = [
        GenerateRequest(str(n), text, seed=n, speech=SpeechOptions(voices=voices), sampling={"max_tokens": 40 - 3 * n})
        for n, (text, voices) in enumerate(spoken)
    ]
    alone = [engine.run(request) for request in requests]
    together = engine.run_all(requests)
    assert len({result.stages[0].num_input_tokens for result in together}) == 8
    assert len({len(result.stages[0].output_token_ids) for result in together}) == 8
    for made, expected in zip(together, alone, strict=True):
        assert made.stages[0].output_token_ids == expected.stages[0].output_token_ids
        whole = audio_of(expected)
        np.testing.assert_allclose(audio_of(made), whole, atol=ROUNDING * np.abs(whole).max(), rtol=0)


def test_a_voice_of_another_rate_is_resampled_and_noted(engine):
    request = GenerateRequest("rate", "Hello.", speech=SpeechOptions(voices=(voice(0, 16_000),)))
    assert engine.run(request).notes == (
        "the recording of a voice was resampled from 16000 Hz to the model's 24000 Hz",
    )
    same = replace(request, request_id="same", speech=replace(request.speech, voices=(voice(0, 24_000),)))
    assert engine.run(same).notes == ()


def test_streamed_requests_equal_the_reference(engine, references):
    for events in engine.events(
        [replace(request, speech=replace(request.speech, stream_audio=True)) for request in REQUESTS]
    ):
        assert_equal(events[-1], references[events[-1].request_id])
        chunks = [event for event in events if isinstance(event, AudioChunk)]
        assert len(chunks) == events[-1].stages[0].num_chunks > 1


# A block of the KV cache: the request and two branches, keys and values, layers, key-value heads, head size, float32,
# tokens.
BLOCK_BYTES = 3 * 2 * 2 * 2 * 32 * 4 * 32


def test_equal_under_pressure(references, start_brief_engine):
    """Prompts split over steps, and a KV cache that holds a few of the requests."""
    pressed = start_brief_engine(
        "tiny-vibevoice",
        *LIMITS,
        "speaker.max_num_batched_tokens=64",
        "speaker.block_size=32",
        "speaker.max_model_len=192",
        f"speaker.kv_cache_memory_bytes={7 * BLOCK_BYTES}",
    )
    for result in pressed.run_all(REQUESTS):
        assert_equal(result, references[result.request_id])
    assert pressed.execution_counters("speaker")["preemptions"] > 0


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"speaker": "Chelsie"}, "unknown speaker `Chelsie`"),
        ({"prompt": "Speaker 7: hello"}, "unknown speaker `7`"),
        ({"prompt": ""}, "the prompt is empty"),
        ({"voices": (voice(0), voice(1))}, "2 recordings of voices, and 1 speaker"),
        (
            {"voices": (ReferenceVoice(np.full(9000, 5e-5, np.float32), 24_000),)},
            "the recording of a voice has no sound",
        ),
        ({"voices": (ReferenceVoice(np.ones(8000 * 121, np.float32), 8000),)}, "longer than 120 s"),
        ({"voices": (ReferenceVoice(np.ones(100, np.float32), 8000),)}, "shorter than 0.1 s"),
        ({"voices": (voice(0),) * 5}, "5 recordings of voices, and this model has at most 4 speakers"),
        ({"raw": True, "voices": (voice(0),)}, "a raw prompt has no voices beside it"),
        ({"raw": True, "speaker": "1"}, "a raw prompt has no speaker beside it"),
        ({"sampling": {"temperature": 1.0}}, "this model has no `temperature`"),
    ],
)
def test_a_request_that_cannot_be_spoken_fails_alone(engine, references, wrong, message):
    good = REQUESTS[0]
    failed, spoken = engine.run_all([with_fields(good, request_id="wrong", **wrong), good])
    assert failed.error is not None and message in str(failed.error)
    assert_equal(spoken, references[good.request_id])
