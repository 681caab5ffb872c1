"""The chain against Hugging Face's own: the same text tokens, the same codec tokens, the same waveform."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.omni_requests import FEW_STEPS, requests
from support.references import assert_spoken, limits, omni_reference, spoken_by
from support.samples import sample

from omni_cli.checkpoints.tiny import DecoderSizes
from omni_cli.checkpoints.tiny_qwen import OmniSizes, qwen2_5_omni
from omni_cli.models.reference import SpokenText
from omni_cli.requests.outputs import RequestResult

pytestmark = pytest.mark.usefixtures("one_thread")
CODEC_MAX_TOKENS = 48
LIMITS = (*limits(CODEC_MAX_TOKENS), FEW_STEPS)
WAVEFORM_TOLERANCE = 1e-3
# The default salt of requests for speech.
OTHERS_SALT = "omni-hidden-states"


@pytest.fixture(scope="module")
def references(tiny_omni_path) -> dict[str, SpokenText]:
    return spoken_by(omni_reference("tiny-omni", tiny_omni_path, CODEC_MAX_TOKENS), requests())


@pytest.fixture(scope="module")
def engine(start_engine):
    return start_engine("tiny-omni", *LIMITS, "talker.talker_prompt=plain")


def assert_equal(result: RequestResult, reference: SpokenText) -> None:
    assert_spoken(result, reference, atol=WAVEFORM_TOLERANCE)


@pytest.mark.parametrize("request_", requests(), ids=lambda request: request.request_id)
def test_single_request_equals_the_reference(engine, references, request_):
    assert_equal(engine.run(request_), references[request_.request_id])


def test_eight_requests_at_once_equal_the_reference(engine, references):
    for result in engine.run_all(requests()):
        assert_equal(result, references[result.request_id])


def test_equal_under_pressure(start_brief_engine, references):
    """Prompts split over steps, prefixes from the cache, and a talker whose KV cache holds two of eight requests."""
    bytes_a_block = 32 * 2 * 2 * 2 * 32 * 4  # tokens, keys and values, layers, key-value heads, head size, float32
    pressed = start_brief_engine(
        "tiny-omni",
        *LIMITS,
        "thinker.block_size=32",
        "thinker.max_num_batched_tokens=64",
        "thinker.enable_prefix_caching=true",
        "talker.block_size=32",
        "talker.max_num_batched_tokens=16",
        "talker.max_model_len=512",
        f"talker.kv_cache_memory_bytes={18 * bytes_a_block}",
    )
    # Cache entries of text-only requests have no hidden states, with any salt of a client.
    texts = [replace(request, modalities=frozenset({"text"}), cache_salt=OTHERS_SALT) for request in requests()]
    assert [result.error for result in pressed.run_all(texts)] == [None] * len(texts)
    for _ in range(2):
        for result in pressed.run_all(requests()):
            assert_equal(result, references[result.request_id])
    assert pressed.execution_counters("talker")["preemptions"] > 0


def test_full_prompt_equals_the_reference_that_keeps_its_mask(start_brief_engine, tiny_omni_path, references):
    full = start_brief_engine("tiny-omni", *LIMITS, "talker.talker_prompt=full")
    reference = omni_reference("tiny-omni", tiny_omni_path, CODEC_MAX_TOKENS, "talker.talker_prompt=full")
    kept = spoken_by(reference, requests())
    for result in full.run_all(requests()):
        assert_equal(result, kept[result.request_id])
        assert kept[result.request_id].tokens != references[result.request_id].tokens


OTHER_SIZES = {
    "deeper": OmniSizes(
        thinker=DecoderSizes(192, 384, 3, 3, 1, 64),
        talker=DecoderSizes(96, 256, 3, 4, 2, 32),
        vocab_size=640,
    ),
    "wider-heads": OmniSizes(
        thinker=DecoderSizes(256, 512, 2, 4, 4, 64),
        talker=DecoderSizes(128, 192, 4, 4, 4, 64),
    ),
}


@pytest.mark.parametrize("name", sample([*OTHER_SIZES], []))
def test_other_sizes_and_seeds_equal_the_reference(start_brief_engine, tmp_path_factory, name):
    folder = tmp_path_factory.mktemp(name)
    qwen2_5_omni(OTHER_SIZES[name]).write(folder, seed=11)
    other = start_brief_engine("tiny-omni", *LIMITS, model=str(folder))
    references = spoken_by(omni_reference("tiny-omni", folder, CODEC_MAX_TOKENS), requests())
    for result in other.run_all(requests()):
        assert_equal(result, references[result.request_id])
