"""CSM's chain against Hugging Face's own: every code of every codebook, and the same waveform."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from support.references import family_reference
from support.request_fields import with_fields

from omni_cli.checkpoints.tiny import DecoderSizes
from omni_cli.checkpoints.tiny_speech import CsmSizes, MimiSizes, csm
from omni_cli.models.reference import SpokenText
from omni_cli.requests.contents import SpeechOptions, TextOptions
from omni_cli.requests.events import AudioChunk
from omni_cli.requests.outputs import AudioOutput, GenerateRequest, RequestResult

pytestmark = pytest.mark.usefixtures("one_thread")
MAX_TOKENS = 40
LIMITS = (f"backbone.sampling.max_tokens={MAX_TOKENS}",)
WAVEFORM_TOLERANCE = 1e-4
# This one ends early, the others are cut off.
ENDS = "ends"
TEXTS = {
    "hello": "hello",
    ENDS: "The quick brown fox jumps over the lazy dog.",
    "question": "What is the capital of France?",
    "short": "A",
    "numbers": "12, 13, 14",
    "greeting": "Good morning, how are you?",
    "twice": "I like it. I like it.",
    "long": "Tell me a story about the rain on a tin roof, and then another one. " * 4,
}


def requests() -> list[GenerateRequest]:
    return [
        GenerateRequest(name, text, seed=index, speech=SpeechOptions(speaker=(None, "1", "2")[index % 3]))
        for index, (name, text) in enumerate(TEXTS.items())
    ]


@pytest.fixture(scope="module")
def references() -> dict[str, SpokenText]:
    from omni_cli.checkpoints.resolve import resolve_model

    reference = family_reference(
        "tiny-csm", resolve_model("builtin:tiny-csm"), f"backbone.sampling.max_tokens={MAX_TOKENS}"
    )
    return {request.request_id: reference.speak(request) for request in requests()}


@pytest.fixture(scope="module")
def engine(start_engine):
    return start_engine("tiny-csm", *LIMITS)


def assert_equal(result: RequestResult, reference: SpokenText) -> None:
    assert result.error is None, result.error
    (audio,) = [output for output in result.outputs if isinstance(output, AudioOutput)]
    backbone = result.stages[0]
    assert tuple(map(tuple, backbone.output_codes)) == reference.codes
    assert backbone.output_token_ids == tuple(frame[0] for frame in reference.codes)
    assert audio.sample_rate == 24_000
    assert audio.samples.shape == reference.waveform.shape
    peak = np.abs(reference.waveform).max()
    assert peak > 0.01
    np.testing.assert_allclose(audio.samples, reference.waveform, atol=WAVEFORM_TOLERANCE * peak, rtol=0)


def test_the_references_are_worth_comparing(references):
    assert len(references[ENDS].codes) < MAX_TOKENS
    for name, reference in references.items():
        # The frame of end ids has no sound.
        assert len(reference.waveform) == 1920 * (len(reference.codes) - (name == ENDS))
        assert len(set(reference.codes)) > 20 and len(reference.codes[0]) == 8
    assert len({reference.codes for reference in references.values()}) == len(TEXTS)


@pytest.mark.parametrize("request_", requests()[:3], ids=lambda request: request.request_id)
def test_single_request_equals_the_reference(engine, references, request_):
    assert_equal(engine.run(request_), references[request_.request_id])


def test_eight_requests_at_once_equal_the_reference(engine, references):
    for result in engine.run_all(requests()):
        assert_equal(result, references[result.request_id])


def test_streamed_requests_equal_the_reference(engine, references):
    for events in engine.events(
        [replace(request, speech=replace(request.speech, stream_audio=True)) for request in requests()]
    ):
        result = events[-1]
        assert_equal(result, references[result.request_id])
        sizes = [len(event.samples) for event in events if isinstance(event, AudioChunk)]
        num_samples = len(references[result.request_id].waveform)
        assert sizes == [*(frames * 1920 for frames in (1, 2, 4, 12, 12)), num_samples - 31 * 1920]
        assert result.stages[1].num_chunks == 6


def test_speech_of_a_given_length_does_not_end_early(engine, references):
    request = replace(requests()[1], sampling={"ignore_eos": True})
    result = engine.run(request)
    assert len(result.stages[0].output_codes) == MAX_TOKENS
    codes = references[ENDS].codes
    assert tuple(map(tuple, result.stages[0].output_codes[: len(codes)])) == codes
    assert len(result.outputs[0].samples) == MAX_TOKENS * 1920


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"speaker": "Chelsie"}, "unknown speaker `Chelsie`"),
        ({"raw": True, "speaker": "1"}, "a raw prompt names its speaker itself"),
        ({"prompt": ""}, "the prompt is empty"),
        ({"prompt": "word " * 2000}, "the prompt is longer than stage `backbone` takes"),
        ({"diffusion": {"num_inference_steps": 4}}, "`num_inference_steps` has no effect"),
    ],
)
def test_a_request_that_cannot_be_spoken_fails_alone(engine, references, wrong, message):
    good = requests()[0]
    failed, spoken = engine.run_all([with_fields(good, request_id="wrong", **wrong), good])
    assert failed.error is not None and message in str(failed.error)
    assert_equal(spoken, references[good.request_id])


def test_a_raw_prompt_is_the_prompt_as_it_is(engine, references):
    result = engine.run(GenerateRequest("raw", "[1]" + TEXTS[ENDS], text=TextOptions(raw=True)))
    assert tuple(map(tuple, result.stages[0].output_codes)) == references[ENDS].codes


# A block of the KV cache: keys and values, layers, key-value heads, head size, float32, tokens.
BLOCK_BYTES = 2 * 2 * 2 * 32 * 4 * 32
PRESSURE = (
    "backbone.max_num_batched_tokens=16",
    "backbone.block_size=32",
    "backbone.max_model_len=256",
    f"backbone.kv_cache_memory_bytes={12 * BLOCK_BYTES}",
)


def codes_of(result: RequestResult) -> object:
    assert result.error is None, result.error
    return result.stages[0].output_codes


def test_equal_under_pressure_greedy_and_sampled(engine, references, start_brief_engine):
    """Prompts split over steps, and a KV cache that holds a few of eight requests, whose sampling is their seed's."""
    pressed = start_brief_engine("tiny-csm", *LIMITS, *PRESSURE)
    for result in pressed.run_all(requests()):
        assert_equal(result, references[result.request_id])
    assert pressed.execution_counters("backbone")["preemptions"] > 0
    sampled = [replace(request, sampling={"temperature": 0.9, "top_k": 50}) for request in requests()]
    alone = [codes_of(engine.run(request)) for request in sampled]
    assert [codes_of(result) for result in engine.run_all(sampled)] == alone
    before = pressed.execution_counters("backbone")["preemptions"]
    assert [codes_of(result) for result in pressed.run_all(sampled)] == alone
    assert pressed.execution_counters("backbone")["preemptions"] > before
    others = [replace(request, seed=request.seed + 100) for request in sampled]
    assert all(one != other for one, other in zip(alone, map(codes_of, engine.run_all(others)), strict=True))


@pytest.mark.nightly
@pytest.mark.skipif(torch.cuda.device_count() == 1, reason="two ranks need two CUDA devices, or none")
@pytest.mark.parametrize("ranks", ["tensor", "pipeline"])
def test_equal_on_two_ranks(start_brief_engine, references, ranks):
    several = start_brief_engine("tiny-csm", *LIMITS, f"backbone.{ranks}_parallel_size=2")
    for stream in (None, True):
        for result in several.run_all(
            [replace(request, speech=replace(request.speech, stream_audio=stream)) for request in requests()]
        ):
            assert_equal(result, references[result.request_id])


OTHER = CsmSizes(
    text_vocab_size=640,
    codebook_size=32,
    num_codebooks=5,
    backbone=DecoderSizes(192, 320, 3, 3, 3, 64),
    depth=DecoderSizes(96, 160, 1, 3, 3, 32),
    codec=MimiSizes(48, 96, 3, 2, 6, 24, 10),
)


@pytest.mark.nightly
def test_other_sizes_with_split_prompts_and_a_small_cache_equal_the_reference(start_brief_engine, tmp_path):
    csm(OTHER).write(tmp_path / "csm", seed=5)
    reference = family_reference("tiny-csm", tmp_path / "csm", f"backbone.sampling.max_tokens={MAX_TOKENS}")
    block_bytes = 2 * 3 * 3 * 64 * 4 * 32
    engine = start_brief_engine(
        "tiny-csm",
        *LIMITS,
        f"model={tmp_path / 'csm'}",
        "backbone.max_num_batched_tokens=16",
        "backbone.block_size=32",
        "backbone.max_model_len=256",
        f"backbone.kv_cache_memory_bytes={12 * block_bytes}",
    )
    for result, request in zip(engine.run_all(requests()), requests(), strict=True):
        assert_equal(result, reference.speak(request))
