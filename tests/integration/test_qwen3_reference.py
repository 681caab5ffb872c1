"""Qwen3-Omni's chain against Hugging Face's own: the same text tokens, every code, the same waveform."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from support.omni_requests import requests
from support.qwen3_reference import Qwen3Reference, SpokenResult
from support.samples import sample

from omni_cli.checkpoints.sizes import DecoderSizes
from omni_cli.models.qwen3_omni.checkpoint.builder import write_omni
from omni_cli.models.qwen3_omni.checkpoint.sizes import ExpertSizes, Qwen3OmniSizes
from omni_cli.outputs import AudioOutput, GenerateRequest, Message, Part, RequestResult, TextOutput

MAX_TOKENS = 24
CODEC_MAX_TOKENS = 24
# transformers cannot speak an answer of one token.
MIN_TOKENS = 2
LIMITS = (
    f"thinker.sampling.min_tokens={MIN_TOKENS}",
    f"thinker.sampling.max_tokens={MAX_TOKENS}",
    f"talker.sampling.min_tokens={MIN_TOKENS}",
    f"talker.sampling.max_tokens={CODEC_MAX_TOKENS}",
)
WAVEFORM_TOLERANCE = 1e-4


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """The reference shares the machine with the engines; threads that wait for each other cost more than they give."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def said(role: Any, *parts: str | Part) -> Message:
    return Message(role, tuple(Part("text", part) if isinstance(part, str) else part for part in parts))


def spoken() -> list[GenerateRequest]:
    """Nine requests: the last is a conversation, of which the talker gets what the user said, and its answer."""
    speakers = ["Chelsie", None, "aiden", None] * 2
    turns = (
        said("system", "Be brief."),
        said("user", Part("image"), "What is this?"),
        said("assistant", "A boat."),
        said("user", Part("audio"), "And this?"),
    )
    image = next(request.images[0] for request in requests() if request.images)
    sound = next(request.audio[0] for request in requests() if request.audio)
    made = [
        *(replace(request, speaker=name) for request, name in zip(requests(), speakers, strict=True)),
        GenerateRequest("turns", messages=turns, images=(image,), audio=(sound,)),
    ]
    # Whole seconds, the audio encoder's windows. It pads a shorter one to the longest of a batch, and its convolutions
    # see the padding: transformers' own output for 0.7 s differs by 3 % of its largest value beside a sound of 1.3 s.
    return [replace(each, audio=tuple((np.resize(s, 16_000), rate) for s, rate in each.audio)) for each in made]


def expected(reference: Qwen3Reference) -> dict[str, SpokenResult]:
    return {
        request.request_id: reference.speak(
            request,
            min_tokens=MIN_TOKENS,
            max_tokens=MAX_TOKENS,
            codec_max_tokens=CODEC_MAX_TOKENS,
            repetition_penalty=1.05,
        )
        for request in spoken()
    }


@pytest.fixture(scope="module")
def references() -> dict[str, SpokenResult]:
    from omni_cli.checkpoints.resolve import resolve_model

    return expected(Qwen3Reference(resolve_model("builtin:tiny-qwen3-omni")))


@pytest.fixture(scope="module")
def engine(start_engine):
    return start_engine("tiny-qwen3-omni", *LIMITS)


def assert_equal(result: RequestResult, reference: SpokenResult) -> None:
    assert result.error is None, result.error
    text = next(output for output in result.outputs if isinstance(output, TextOutput))
    audio = next(output for output in result.outputs if isinstance(output, AudioOutput))
    talker = next(trace for trace in result.stages if trace.name == "talker")
    assert text.token_ids == reference.text_token_ids
    assert talker.output_token_ids == reference.codec_token_ids
    assert tuple(map(tuple, talker.output_codes)) == reference.codes
    assert audio.samples.shape == reference.waveform.shape
    peak = np.abs(reference.waveform).max()
    assert peak > 0.01
    np.testing.assert_allclose(audio.samples, reference.waveform, atol=WAVEFORM_TOLERANCE * peak, rtol=0)


@pytest.mark.parametrize("request_", spoken(), ids=lambda request: request.request_id)
def test_single_request_equals_the_reference(engine, references, request_):
    assert_equal(engine.run(request_), references[request_.request_id])


def test_all_requests_at_once_equal_the_reference(engine, references):
    for result in engine.run_all(spoken()):
        assert_equal(result, references[result.request_id])


def test_streamed_requests_equal_the_reference(engine, references):
    for result in engine.run_all([replace(request, stream_audio=True) for request in spoken()]):
        assert_equal(result, references[result.request_id])


def test_equal_under_pressure(start_brief_engine, references):
    """Prompts split over steps, prefixes from the cache, and a talker whose KV cache holds a few of nine requests."""
    bytes_a_block = 32 * 2 * 2 * 2 * 32 * 4  # tokens, keys and values, layers, key-value heads, head size, float32
    pressed = start_brief_engine(
        "tiny-qwen3-omni",
        *LIMITS,
        "thinker.block_size=32",
        "thinker.max_num_batched_tokens=64",
        "thinker.enable_prefix_caching=true",
        "talker.block_size=32",
        "talker.max_num_batched_tokens=16",
        "talker.max_model_len=256",
        f"talker.kv_cache_memory_bytes={10 * bytes_a_block}",
    )
    # What text alone leaves in the cache has no rows for the talker.
    texts = [replace(request, modalities=frozenset({"text"})) for request in spoken()]
    assert [result.error for result in pressed.run_all(texts)] == [None] * len(texts)
    for stream in (False, True):
        for result in pressed.run_all([replace(request, stream_audio=stream) for request in spoken()]):
            assert_equal(result, references[result.request_id])


RANKS = {
    "tensor": ("thinker.tensor_parallel_size=2", "talker.tensor_parallel_size=2"),
    "pipeline": ("thinker.pipeline_parallel_size=2", "talker.pipeline_parallel_size=2"),
}


@pytest.mark.skipif(torch.cuda.device_count() == 1, reason="two ranks need two CUDA devices, or none")
@pytest.mark.parametrize("ranks", sample([*RANKS], ["tensor"]))
def test_equal_on_two_ranks(start_brief_engine, references, ranks):
    several = start_brief_engine("tiny-qwen3-omni", *LIMITS, *RANKS[ranks])
    for result in several.run_all(spoken()):
        assert_equal(result, references[result.request_id])


OTHER_SIZES = {
    "deeper": Qwen3OmniSizes(
        vocab_size=640,
        num_codes=64,
        num_code_groups=5,
        accept_hidden_layer=4,
        thinker=DecoderSizes(192, 256, 6, 3, 1, 64),
        thinker_experts=ExpertSizes(8, 3, 64),
        talker=DecoderSizes(64, 96, 3, 4, 2, 32),
        talker_experts=ExpertSizes(6, 2, 64, shared_size=32),
        code_predictor=DecoderSizes(64, 96, 3, 2, 1, 32),
    ),
    "one-level": Qwen3OmniSizes(
        num_code_groups=2,
        accept_hidden_layer=2,
        deepstack=(2,),
        thinker=DecoderSizes(128, 256, 3, 2, 2, 64),
        talker=DecoderSizes(128, 192, 2, 4, 4, 32),
        code_predictor=DecoderSizes(128, 192, 1, 4, 4, 32),
    ),
}


@pytest.mark.parametrize("name", OTHER_SIZES)
def test_other_sizes_and_seeds_equal_the_reference(start_brief_engine, tmp_path_factory, name):
    folder = tmp_path_factory.mktemp(name)
    write_omni(folder, OTHER_SIZES[name], seed=11)
    other = start_brief_engine("tiny-qwen3-omni", *LIMITS, model=str(folder))
    references = expected(Qwen3Reference(folder))
    for result in other.run_all(spoken()):
        assert_equal(result, references[result.request_id])


def codes_of(result: RequestResult) -> object:
    assert result.error is None, result.error
    return next(trace.output_codes for trace in result.stages if trace.name == "talker")


def test_sampled_codes_depend_on_the_seed_and_not_on_the_batch(start_brief_engine):
    sampled = start_brief_engine(
        "tiny-qwen3-omni", *LIMITS, "talker.sampling.temperature=0.9", "talker.sampling.top_k=50"
    )
    alone = [codes_of(sampled.run(request)) for request in spoken()]
    assert [codes_of(result) for result in sampled.run_all(spoken())] == alone
    others = [replace(request, seed=request.seed + 100) for request in spoken()]
    assert all(one != other for one, other in zip(alone, map(codes_of, sampled.run_all(others)), strict=True))
