"""Speech of answers that a stop string cut: the text before it, and no more."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from support.omni_requests import BRIEF_SPEECH
from support.request_fields import with_fields
from transformers import AutoTokenizer

from omni_cli.requests.outputs import GenerateRequest, RequestResult

# Streamed audio has the bound of `ChunkSizes`, for samples in [-1, 1].
BOUND = 1e-3
ENGINES = {
    "tiny-omni": BRIEF_SPEECH,
    "tiny-omni, early": (*BRIEF_SPEECH, "talker.early_start=true"),
    "tiny-qwen3-omni": ("talker.sampling.max_tokens=40",),
    "tiny-qwen3-omni, early": ("talker.sampling.max_tokens=40", "talker.early_start=true"),
}


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest, start_brief_engine: Any) -> Any:
    return start_brief_engine(request.param.partition(",")[0], *ENGINES[request.param])


def ask(name: str, stream: bool, **sampling: Any) -> GenerateRequest:
    asked = {"max_tokens": 30, "ignore_eos": True, **sampling}
    return with_fields(GenerateRequest(name, "Tell me about the rain.", sampling=asked), stream_audio=stream)


def speech(result: RequestResult) -> tuple[Any, np.ndarray]:
    assert result.error is None, result.error
    return result.stages[1].output_token_ids, result.outputs[-1].samples


def test_speech_ends_where_the_text_does(engine: Any) -> None:
    """As that of an answer whose `max_tokens` cuts it behind the last whole token before the stop string."""
    text, _ = engine.run(ask("free", False)).outputs
    tokenizer = AutoTokenizer.from_pretrained(str(engine.llm.checkpoint))
    ids = text.token_ids
    ends = [len(tokenizer.decode(ids[:number], skip_special_tokens=True)) for number in range(len(ids))]
    cuts = []
    for number, (begin, end) in enumerate(itertools.pairwise(ends)):
        inside = (begin, begin + 1) if end > begin + 1 and ends.count(begin) == 1 else ()
        cuts += [(number, text.text[at : at + 3], at) for at in inside if text.text.index(text.text[at : at + 3]) == at]
    cuts = [(0, text.text[:2], 0), *cuts[2:8]]
    assert {at == ends[number] for number, _, at in cuts} == {True, False}, "a stop string begins within a token"
    for stream in (False, True):
        requests = [ask(f"stop {at}", stream, stop=[stop]) for _, stop, at in cuts]
        found = engine.run_all(requests + [ask(f"most {at}", stream, max_tokens=n + 1) for n, _, at in cuts])
        for (_, _, at), one, other in zip(cuts, found, found[len(cuts) :], strict=False):
            assert one.outputs[0].text == text.text[:at]
            (codes, samples), (expected_codes, expected) = speech(one), speech(other)
            assert codes == expected_codes, (stream, at)
            assert len(samples) == len(expected)
            assert np.abs(samples - expected).max(initial=0) < BOUND
