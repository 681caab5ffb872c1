"""Higgs Audio v2 against Hugging Face's own: every code of every frame, and the same waveform."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.media_samples import tone
from support.references import higgs_audio_reference

from omni_cli.checkpoints.resolve import resolve_model
from omni_cli.models.higgs_audio.reference import DelayedSpeech
from omni_cli.outputs import AudioChunk, AudioOutput, GenerateRequest, Message, Part, RequestResult

pytestmark = pytest.mark.usefixtures("one_thread")
LIMITS = ("backbone.sampling.max_tokens=40",)
# Of the peak.
TOLERANCE = 1e-5


def said(text: str) -> Message:
    return Message("user", (Part("text", text),))


SOUND = Message("assistant", (Part("audio"),))
REQUESTS = [
    GenerateRequest("hello", "hello"),
    GenerateRequest("question", "What is the capital of France?"),
    GenerateRequest("long", "Tell me a story about the rain on a tin roof, and then another one. " * 4, speaker="1"),
    GenerateRequest("two", "[SPEAKER0] Hello, how are you?\n[SPEAKER1] Fine, and you?"),
    GenerateRequest("cloned", messages=(said("The words of it."), SOUND, said("A day in May.")), audio=(tone(0),)),
    GenerateRequest(
        "cloned two",
        messages=(
            said("[SPEAKER0] One."),
            SOUND,
            said("[SPEAKER1] Two."),
            SOUND,
            said("[SPEAKER1] And [SPEAKER0] so."),
        ),
        audio=(tone(1), tone(2)),
    ),
    GenerateRequest("voice without words", "In the evening.", audio=(tone(3),)),
    GenerateRequest("scene", messages=(Message("system", (Part("text", "A windy street."),)), said("Hello?"))),
]


@pytest.fixture(scope="module")
def references() -> dict[str, DelayedSpeech]:
    reference = higgs_audio_reference(resolve_model("builtin:tiny-higgs-audio"), *LIMITS)
    return {request.request_id: reference.speak(request) for request in REQUESTS}


@pytest.fixture(scope="module")
def engine(start_engine):
    return start_engine("tiny-higgs-audio", *LIMITS)


def assert_equal(result: RequestResult, reference: DelayedSpeech) -> None:
    assert result.error is None, result.error
    (audio,) = [output for output in result.outputs if isinstance(output, AudioOutput)]
    backbone = result.stages[0]
    assert tuple(map(tuple, backbone.output_codes)) == reference.codes
    assert backbone.output_token_ids == tuple(frame[0] for frame in reference.codes)
    assert audio.samples.shape == reference.waveform.shape
    peak = np.abs(reference.waveform).max()
    np.testing.assert_allclose(audio.samples, reference.waveform, atol=TOLERANCE * peak, rtol=0)


def test_the_references_are_worth_comparing(references):
    end = max(code for reference in references.values() for frame in reference.codes for code in frame)
    ended = [set(reference.codes[-1]) == {end} for reference in references.values()]
    assert any(ended) and not all(ended)
    assert len({reference.codes for reference in references.values()}) == len(REQUESTS)
    assert all(0.01 < np.abs(reference.waveform).max() < 1 for reference in references.values())


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda request: request.request_id)
def test_single_request_equals_the_reference(engine, references, request_):
    assert_equal(engine.run(request_), references[request_.request_id])


def test_requests_at_once_equal_the_reference(engine, references):
    assert len(REQUESTS) == 8
    for result in engine.run_all(REQUESTS):
        assert_equal(result, references[result.request_id])


def test_streamed_requests_equal_the_reference(engine, references):
    for events in engine.events([replace(request, stream_audio=True) for request in REQUESTS]):
        assert_equal(events[-1], references[events[-1].request_id])
        chunks = [event for event in events if isinstance(event, AudioChunk)]
        assert len(chunks) == events[-1].stages[1].num_chunks >= 1
