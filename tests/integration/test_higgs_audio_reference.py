"""Higgs Audio v2 against Hugging Face's own: every code of every frame, and the same waveform."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
from support.media_samples import tone
from support.references import higgs_audio_reference

from omni_cli.checkpoints.resolve import resolve_model
from omni_cli.models.higgs_audio.family import FAMILY
from omni_cli.models.higgs_audio.reference import DelayedSpeech
from omni_cli.outputs import AudioChunk, AudioOutput, GenerateRequest, Message, Part, RequestResult
from omni_cli.speech import ReferenceVoice

pytestmark = pytest.mark.usefixtures("one_thread")
LIMITS = ("backbone.sampling.max_tokens=40",)
# Of the peak.
TOLERANCE = 1e-5


def said(text: str) -> Message:
    return Message("user", (Part("text", text),))


def voice(number: int, text: str | None = None) -> ReferenceVoice:
    return ReferenceVoice(*tone(number), text)


REQUESTS = [
    GenerateRequest("hello", "hello"),
    GenerateRequest("question", "What is the capital of France?"),
    GenerateRequest("long", "Tell me a story about the rain on a tin roof, and then another one. " * 4, speaker="1"),
    GenerateRequest("two", "[SPEAKER0] Hello, how are you?\n[SPEAKER1] Fine, and you?"),
    GenerateRequest("cloned", "A day in May.", voices=(voice(0, "The words of it."),)),
    GenerateRequest("cloned two", "[SPEAKER1] And [SPEAKER0] so.", voices=(voice(1, "One."), voice(2, "Two."))),
    GenerateRequest("voice without words", "In the evening.", voices=(voice(3),)),
    GenerateRequest("of both kinds", "[SPEAKER0] A [SPEAKER1] B", voices=(voice(4, "Four."), voice(5))),
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
    assert len(REQUESTS) >= 8
    for result in engine.run_all(REQUESTS):
        assert_equal(result, references[result.request_id])


def test_streamed_requests_equal_the_reference(engine, references):
    for events in engine.events([replace(request, stream_audio=True) for request in REQUESTS]):
        assert_equal(events[-1], references[events[-1].request_id])
        chunks = [event for event in events if isinstance(event, AudioChunk)]
        assert len(chunks) == events[-1].stages[1].num_chunks >= 1


# A block of the KV cache: keys and values, layers, key-value heads, head size, float32, tokens.
BLOCK_BYTES = 2 * 2 * 2 * 32 * 4 * 32


def test_equal_under_pressure(references, start_brief_engine):
    """Prompts split over steps, and a KV cache that holds a few of the requests."""
    pressed = start_brief_engine(
        "tiny-higgs-audio",
        *LIMITS,
        "backbone.max_num_batched_tokens=64",
        "backbone.block_size=32",
        "backbone.max_model_len=256",
        f"backbone.kv_cache_memory_bytes={13 * BLOCK_BYTES}",
    )
    for result in pressed.run_all(REQUESTS):
        assert_equal(result, references[result.request_id])
    assert pressed.execution_counters("backbone")["preemptions"] > 0


def codes_of(result: RequestResult) -> np.ndarray:
    assert result.error is None, result.error
    return np.array(result.stages[0].output_codes)


SAMPLED = {"temperature": 1.0, "top_k": 5, "top_p": 0.9}


def test_sampled_codes_depend_on_the_seed_alone(engine):
    requests = [GenerateRequest(str(seed), "hello", seed=seed, sampling=SAMPLED) for seed in range(3)]
    alone = [codes_of(engine.run(request)) for request in requests]
    together = [codes_of(result) for result in engine.run_all([*requests, *REQUESTS[:2]])[:3]]
    for one, other in zip(alone, together, strict=True):
        np.testing.assert_array_equal(one, other)
    # All codebooks are drawn, and each begins one frame after the one before it.
    for codebook in range(8):
        drawn = [tuple(codes[codebook + 1 : codebook + 9, codebook]) for codes in alone]
        assert len(set(drawn)) == 3
        assert all((codes[: codebook + 1, codebook] == 64).all() for codes in alone)


def test_the_one_best_code_is_the_greedy_one(engine, references):
    sampled = replace(REQUESTS[0], sampling={**SAMPLED, "top_k": 1})
    assert tuple(map(tuple, codes_of(engine.run(sampled)))) == references[REQUESTS[0].request_id].codes


@pytest.mark.parametrize("sampling", [{"ignore_eos": True}, {"min_tokens": 40}])
def test_speech_goes_on_if_asked(engine, references, sampling):
    ended = REQUESTS[1]
    assert len(references[ended.request_id].codes) < 40
    assert len(codes_of(engine.run(replace(ended, sampling=sampling)))) == 40


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"speaker": "Chelsie"}, "unknown speaker `Chelsie`"),
        ({"prompt": "[SPEAKER0] hello", "speaker": "1"}, "a text with turns names its speakers itself"),
        ({"prompt": " "}, "the prompt is empty"),
        ({"prompt": None, "messages": (said("a"), said("b"))}, "this model speaks one message of the role `user`"),
        ({"prompt": None, "messages": (Message("user", (Part("audio"),)),)}, "speaks one message of the role `user`"),
        ({"voices": (ReferenceVoice(np.zeros(9000, np.float32), 24_000),)}, "the recording of a voice has no sound"),
        ({"voices": (ReferenceVoice(np.ones(8000 * 61, np.float32), 8000),)}, "is longer than 60 s"),
        ({"voices": (ReferenceVoice(np.ones(8, np.float32), 8000),)}, "is shorter than 0.1 s"),
        ({"voices": tuple(map(voice, range(5)))}, "5 recordings of voices, and this model has at most 4 speakers"),
        ({"raw": True, "voices": (voice(0),)}, "a raw prompt has no voices beside it"),
        ({"raw": True}, "a raw prompt ends where the sound begins"),
        ({"raw": True, "prompt": "<|audio_out_bos|>"}, "as many tokens as there are codebooks, 8, or more"),
        ({"raw": True, "prompt": "<|AUDIO_OUT|> hello, hello<|audio_out_bos|>"}, "a raw prompt has no sound"),
        ({"raw": True, "speaker": "1"}, "a raw prompt has no speaker beside it"),
        ({"sampling": {"repetition_penalty": 1.1}}, "not sampled with `repetition_penalty`"),
        ({"sampling": {"max_tokens": 8}}, "stage `backbone` said nothing"),
    ],
)
def test_a_request_that_cannot_be_spoken_fails_alone(engine, references, wrong, message):
    good = REQUESTS[0]
    failed, spoken = engine.run_all([replace(good, request_id="wrong", **wrong), good])
    assert failed.error is not None and message in str(failed.error)
    assert_equal(spoken, references[good.request_id])


def test_a_raw_prompt_is_that_of_the_template(engine, references):
    """The text around it is what `omni bench` puts around its own words, with the system's turn."""
    system = "<|start_header_id|>system<|end_header_id|>\n\nGenerate audio following instruction."
    scene = "\n\n<|scene_desc_start|>\nAudio is recorded from a quiet room.\n<|scene_desc_end|><|eot_id|>"
    before, after = FAMILY.prompt_frame
    raw = GenerateRequest("raw", f"{system}{scene}{before}hello{after}", raw=True)
    assert_equal(engine.run(raw), references["hello"])


def test_sampling_that_is_missing_is_noted(references, start_brief_engine, tmp_path):
    folder = tmp_path / "released"
    shutil.copytree(resolve_model("builtin:tiny-higgs-audio"), folder)
    generation = json.loads((folder / "generation_config.json").read_text())
    (folder / "generation_config.json").write_text(json.dumps({**generation, "ras_win_len": 7}))
    result = start_brief_engine("tiny-higgs-audio", *LIMITS, f"model={folder}").run(REQUESTS[0])
    assert_equal(result, references[REQUESTS[0].request_id])
    assert any("`ras_win_len`" in note for note in result.notes)
