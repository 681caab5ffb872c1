"""VibeVoice against Hugging Face's own: every control token, and the same waveform."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.media_samples import tone
from support.references import vibevoice_reference

from omni_cli.checkpoints.resolve import resolve_model
from omni_cli.models.vibevoice.reference import Speech
from omni_cli.outputs import AudioChunk, AudioOutput, GenerateRequest, RequestResult

pytestmark = pytest.mark.usefixtures("one_thread")
LIMITS = ("speaker.sampling.max_tokens=20",)
# Of the peak: what rounding becomes in 20 steps that each feed the next.
TOLERANCE = 1e-3
REQUESTS = [
    GenerateRequest("hello", "hello", seed=1),
    GenerateRequest("question", "What is the capital of France?", seed=2, speaker="1"),
    GenerateRequest("voice", "A day in May.", seed=3, audio=(tone(0),)),
    GenerateRequest("two", "Speaker 1: Hello!\nSpeaker 2: And you?", seed=4, audio=(tone(1), tone(2))),
    GenerateRequest("raw", "Speech:\n<|vision_start|>", seed=5, raw=True),
    GenerateRequest("long", "Tell me a story about the rain on a tin roof, and then another one. " * 4, seed=6),
]


@pytest.fixture(scope="module")
def references() -> dict[str, Speech]:
    reference = vibevoice_reference(resolve_model("builtin:tiny-vibevoice"), *LIMITS)
    return {request.request_id: reference.speak(request) for request in REQUESTS}


@pytest.fixture(scope="module")
def engine(start_engine):
    return start_engine("tiny-vibevoice", *LIMITS)


def assert_equal(result: RequestResult, reference: Speech) -> None:
    assert result.error is None, result.error
    (audio,) = [output for output in result.outputs if isinstance(output, AudioOutput)]
    assert result.stages[0].output_token_ids == reference.tokens
    assert audio.samples.shape == reference.waveform.shape
    peak = np.abs(reference.waveform).max()
    np.testing.assert_allclose(audio.samples, reference.waveform, atol=TOLERANCE * peak, rtol=0)


def test_the_references_are_worth_comparing(references):
    assert len({reference.tokens for reference in references.values()}) > 3
    assert all(np.abs(reference.waveform).max() > 0.01 for reference in references.values())


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda request: request.request_id)
def test_single_request_equals_the_reference(engine, references, request_):
    assert_equal(engine.run(request_), references[request_.request_id])


def test_requests_at_once_equal_the_reference(engine, references):
    for result in engine.run_all(REQUESTS):
        assert_equal(result, references[result.request_id])


def test_streamed_requests_equal_the_reference(engine, references):
    for events in engine.events([replace(request, stream_audio=True) for request in REQUESTS]):
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
        ({"audio": (tone(0), tone(1))}, "2 recordings of voices, and 1 speaker"),
        ({"audio": ((np.zeros(100, np.float32), 24_000),)}, "the recording of a voice has no sound"),
        ({"audio": ((np.ones(8000 * 121, np.float32), 8000),)}, "longer than 120 s"),
        ({"raw": True, "speaker": "1"}, "a raw prompt has no speaker beside it"),
        ({"sampling": {"temperature": 1.0}}, "this model has no `temperature`"),
    ],
)
def test_a_request_that_cannot_be_spoken_fails_alone(engine, references, wrong, message):
    good = REQUESTS[0]
    failed, spoken = engine.run_all([replace(good, request_id="wrong", **wrong), good])
    assert failed.error is not None and message in str(failed.error)
    assert_equal(spoken, references[good.request_id])
