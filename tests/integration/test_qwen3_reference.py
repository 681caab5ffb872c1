"""Qwen3-Omni's chain against Hugging Face's own: the same text tokens, every code, the same waveform."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from support.media_samples import clip
from support.omni_requests import requests, tone
from support.references import assert_spoken, limits, omni_reference, spoken_by
from support.samples import sample

from omni_cli.checkpoints.tiny import DecoderSizes
from omni_cli.checkpoints.tiny_qwen3 import ExpertSizes, Qwen3OmniSizes, qwen3_omni
from omni_cli.models.reference import SpokenText
from omni_cli.requests.contents import Media
from omni_cli.requests.outputs import GenerateRequest, Message, Part, RequestResult

pytestmark = pytest.mark.usefixtures("one_thread")
CODEC_MAX_TOKENS = 24
LIMITS = limits(CODEC_MAX_TOKENS)
# Of the peak.
WAVEFORM_TOLERANCE = 1e-4


def said(role: Any, *parts: str | Part) -> Message:
    return Message(role, tuple(Part("text", part) if isinstance(part, str) else part for part in parts))


def spoken() -> list[GenerateRequest]:
    """Eleven requests. One is a conversation, of which the talker gets what the user said, and its answer.

    Audio shorter than a window of the audio encoder, a second, is padded to the longest sound of its request. The first
    two enter the engine in one step, where vLLM would encode their audio together.
    """
    speakers = ["Chelsie", None, "aiden", None] * 2
    turns = (
        said("system", "Be brief."),
        said("user", Part("image"), Part("audio"), "What is this?"),
        said("assistant", "A boat."),
        said("user", Part("audio"), "And this?"),
    )
    image = next(request.media.images[0] for request in requests() if request.media.images)
    return [
        GenerateRequest(
            "turns", messages=turns, media=Media(images=(image,), audio=(tone(0.7, 220.0), tone(1.303, 660.0)))
        ),
        GenerateRequest("brief", "What do you hear?", media=Media(audio=(tone(0.7, 220.0),))),
        *(
            replace(request, speech=replace(request.speech, speaker=name))
            for request, name in zip(requests(), speakers, strict=True)
        ),
        GenerateRequest("video", "What happens?", media=Media(videos=(clip(0),))),
    ]


@pytest.fixture(scope="module")
def references() -> dict[str, SpokenText]:
    from omni_cli.checkpoints.resolve import resolve_model

    folder = resolve_model("builtin:tiny-qwen3-omni")
    return spoken_by(omni_reference("tiny-qwen3-omni", folder, CODEC_MAX_TOKENS), spoken())


@pytest.fixture(scope="module")
def engine(start_engine):
    return start_engine("tiny-qwen3-omni", *LIMITS)


def assert_equal(result: RequestResult, reference: SpokenText) -> None:
    assert_spoken(result, reference, atol=WAVEFORM_TOLERANCE * float(np.abs(reference.waveform).max()))


@pytest.mark.parametrize("request_", spoken(), ids=lambda request: request.request_id)
def test_single_request_equals_the_reference(engine, references, request_):
    result = engine.run(request_)
    assert_equal(result, references[request_.request_id])
    talker = next(trace for trace in result.stages if trace.name == "talker")
    parts = [talker.backbone_s, talker.code_predictor_s]
    assert [len(each) for each in parts] == [talker.num_output_tokens] * 2
    assert min(map(min, parts)) > 0 and sum(map(sum, parts)) < talker.latency_s


def test_all_requests_at_once_equal_the_reference(engine, references):
    for result in engine.run_all(spoken()):
        assert_equal(result, references[result.request_id])


def test_streamed_requests_equal_the_reference(engine, references):
    for result in engine.run_all(
        [replace(request, speech=replace(request.speech, stream_audio=True)) for request in spoken()]
    ):
        assert_equal(result, references[result.request_id])


def test_whole_requests_of_an_early_talker_equal_the_reference(start_brief_engine, references):
    early = start_brief_engine("tiny-qwen3-omni", *LIMITS, "talker.early_start=true")
    results = early.run_all(spoken())
    for result in results:
        assert_equal(result, references[result.request_id])
    assert early.execution_counters("talker")["early_requests"] > 0
    assert results[0].stages[1].effective["early_start"] is True


def test_equal_under_pressure(start_brief_engine, references):
    """Prompts split over steps, cached prefixes, and KV caches that hold a few of twenty requests."""
    bytes_a_layer = 32 * 2 * 2 * 32 * 4  # of a block: tokens, keys and values, key-value heads, head size, float32
    pressed = start_brief_engine(
        "tiny-qwen3-omni",
        *LIMITS,
        "thinker.block_size=32",
        "thinker.max_num_seqs=20",
        "thinker.max_num_batched_tokens=64",
        "thinker.max_model_len=128",
        f"thinker.kv_cache_memory_bytes={9 * 4 * bytes_a_layer}",
        "thinker.enable_prefix_caching=true",
        "talker.block_size=32",
        "talker.max_num_seqs=16",
        "talker.max_num_batched_tokens=16",
        "talker.max_model_len=128",
        f"talker.kv_cache_memory_bytes={6 * 2 * bytes_a_layer}",
    )
    # A video takes a cache of 16 blocks; below it is split over steps, too.
    small = [request for request in spoken() if not request.media.videos]
    # Cache entries of text-only requests have no rows for the talker.
    texts = [replace(request, modalities=frozenset({"text"})) for request in small]
    assert [result.error for result in pressed.run_all(texts)] == [None] * len(texts)
    twice = [
        replace(
            request,
            request_id=f"{request.request_id} {number}",
            speech=replace(request.speech, stream_audio=bool(number)),
        )
        for request in small
        for number in range(2)
    ]
    for result in pressed.run_all(twice):
        assert_equal(result, references[result.request_id.split()[0]])
    for stage in ("thinker", "talker"):
        assert pressed.execution_counters(stage)["preemptions"] > 0, stage


RANKS = {
    "tensor": ("thinker.tensor_parallel_size=2", "talker.tensor_parallel_size=2"),
    "pipeline": ("thinker.pipeline_parallel_size=2", "talker.pipeline_parallel_size=2"),
}


@pytest.mark.skipif(torch.cuda.device_count() == 1, reason="two ranks need two CUDA devices, or none")
@pytest.mark.parametrize("ranks", sample([*RANKS], []))
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


@pytest.mark.parametrize("name", sample([*OTHER_SIZES], ["one-level"]))
def test_other_sizes_and_seeds_equal_the_reference(start_brief_engine, tmp_path_factory, name):
    folder = tmp_path_factory.mktemp(name)
    qwen3_omni(OTHER_SIZES[name]).write(folder, seed=11)
    chunks = ("thinker.max_num_batched_tokens=64", "talker.max_num_batched_tokens=64")
    other = start_brief_engine("tiny-qwen3-omni", *LIMITS, *chunks, model=str(folder))
    references = spoken_by(omni_reference("tiny-qwen3-omni", folder, CODEC_MAX_TOKENS), spoken())
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
