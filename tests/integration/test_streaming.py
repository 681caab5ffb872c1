"""Streaming through the chain: the same tokens, nearly the same audio, and its first chunk long before the last."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from contextlib import aclosing

import numpy as np
import pytest
from support.omni_requests import BRIEF_SPEECH
from support.request_fields import with_fields
from support.samples import sample

from omni_cli.core.errors import InputError, StageError
from omni_cli.requests.events import AudioChunk, Event, TextDelta
from omni_cli.requests.outputs import AudioOutput, GenerateRequest, OutputReady, RequestResult, TextOutput

# The bound in `ChunkSizes`, for samples in [-1, 1].
BOUND = 1e-3


def spoken(name: str, prompt: str = "Tell me about the rain.", max_tokens: int = 40, **fields) -> GenerateRequest:
    sampling = {"max_tokens": max_tokens, "ignore_eos": True}
    return with_fields(GenerateRequest(name, prompt, sampling=sampling), **fields)


def requests(prefix: str, *, stream: bool) -> list[GenerateRequest]:
    """Answers shorter and longer than their speech, prompts with an image and an audio file, and a given answer."""
    noise = np.random.default_rng(0)
    sound = (noise.standard_normal(8_000).astype(np.float32) * 0.1, 16_000)
    image = noise.integers(0, 255, (56, 84, 3), dtype=np.uint8)
    made = [
        spoken("one", max_tokens=1),
        spoken("two", max_tokens=2),
        spoken("short", "Good morning.", max_tokens=9),
        spoken("long", "Tell me a story about a tin roof, and then another one.", max_tokens=150),
        spoken("sound", "What is it?", audio=(sound,)),
        spoken("image", "What is it?", images=(image,)),
        spoken("both", "And now?", audio=(sound,), images=(image,), max_tokens=20),
        spoken("given", reply="It rained all night.", seed=5),
    ]
    return [with_fields(request, request_id=f"{prefix} {request.request_id}", stream_audio=stream) for request in made]


def audio_of(result: RequestResult) -> np.ndarray:
    (audio,) = [output for output in result.outputs if isinstance(output, AudioOutput)]
    return audio.samples


def tokens_of(result: RequestResult) -> list:
    return [trace.output_token_ids for trace in result.stages]


def assert_alike(streamed: list[RequestResult], whole: list[RequestResult]) -> None:
    for one, other in zip(streamed, whole, strict=True):
        assert one.error is None and other.error is None, (one.error, other.error)
        assert tokens_of(one) == tokens_of(other), one.request_id
        assert [type(output) for output in one.outputs] == [type(output) for output in other.outputs]
        assert audio_of(one).shape == audio_of(other).shape
        assert np.abs(audio_of(one) - audio_of(other)).max() < BOUND


@pytest.fixture(scope="module")
def whole(tiny_omni) -> list[RequestResult]:
    return tiny_omni.run_all(requests("whole", stream=False))


@pytest.fixture(scope="module")
def at_once(tiny_omni) -> list[RequestResult]:
    return tiny_omni.run_all(requests("at once", stream=True))


@pytest.fixture(scope="module")
def slow_thinker(start_engine):
    """Two requests and sixteen tokens at a time; streamed in small chunks unless disabled."""
    return start_engine(
        "tiny-omni",
        *BRIEF_SPEECH,
        "thinker.max_num_batched_tokens=16",
        "thinker.max_num_seqs=2",
        "talker.talker_prompt=full",
        "token2wav.stream=true",
        "token2wav.stream_chunk_codes=24",
    )


@pytest.fixture(scope="module")
def early(start_engine):
    return start_engine("tiny-omni", *BRIEF_SPEECH, "talker.early_start=true")


@pytest.fixture(scope="module")
def slow_talker(start_engine):
    """Chunks carry on what the next one needs."""
    return start_engine(
        "tiny-omni",
        *BRIEF_SPEECH,
        "token2wav.batching=padded",
        "talker.max_num_batched_tokens=16",
        "talker.max_num_seqs=2",
        "talker.talker_prompt=full",
    )


def test_eight_streamed_requests_equal_those_without_streaming(at_once, whole):
    assert_alike(at_once, whole)


def test_an_early_talker_says_the_same_bit_for_bit(early, whole):
    made = early.run_all(requests("early", stream=False))
    for one, other in zip(made, whole, strict=True):
        assert one.error is None and tokens_of(one) == tokens_of(other), one.request_id
        assert np.array_equal(audio_of(one), audio_of(other)), one.request_id
    assert made[3].stages[0].num_output_tokens == 150
    # Entered the talker while more was to follow; answers of one and two tokens, and a given one, arrive as a whole.
    assert early.execution_counters("talker")["early_requests"] == len(made) - 3


@pytest.mark.nightly
def test_one_after_another_are_the_same_bit_for_bit_as_at_once(tiny_omni, at_once, whole):
    alone = [tiny_omni.run(each) for each in requests("alone", stream=True)[2:5]]
    assert_alike(alone, whole[2:5])
    for one, other in zip(alone, at_once[2:5], strict=True):
        assert np.array_equal(audio_of(one), audio_of(other)), "chunks do not depend on when codes come"


@pytest.mark.parametrize("name", sample(["slow_thinker", "slow_talker"], []))
def test_a_slow_stage_changes_nothing(request, name):
    """`full` talker prompts, in which images and audio have M-RoPE positions."""
    engine = request.getfixturevalue(name)
    expected = engine.run_all(requests("whole", stream=False)[1:])
    assert_alike(engine.run_all(requests("streamed", stream=True)[1:]), expected)


def test_audio_begins_before_the_text_has_ended(tiny_omni):
    (events,) = tiny_omni.events([spoken("early", max_tokens=900, stream_audio=True)])
    kinds = [type(event) for event in events]
    last_text = max(place for place, kind in enumerate(kinds) if kind is TextDelta)
    assert kinds.index(AudioChunk) < last_text
    result = events[-1]
    chunks = [event.samples for event in events if isinstance(event, AudioChunk)]
    assert len(chunks) == result.stages[-1].num_chunks > 3
    thinker, talker, token2wav = result.stages
    assert 0 <= thinker.began_s < talker.began_s < token2wav.began_s
    assert len(token2wav.chunk_times_s) == len(chunks)
    assert all(codes <= begun <= made for codes, begun, made in token2wav.chunk_times_s)
    assert np.array_equal(np.concatenate(chunks), audio_of(result))
    assert [type(event.output) for event in events if isinstance(event, OutputReady)].count(AudioOutput) == 1
    assert [type(output) for output in result.outputs] == [TextOutput, AudioOutput]
    assert [trace.name for trace in result.stages] == ["thinker", "talker", "token2wav"]


def test_each_request_reports_ttfp_and_rtf(tiny_omni):
    streamed, whole = (tiny_omni.run(spoken(f"times {on}", stream_audio=on)) for on in (True, False))
    seconds = len(audio_of(whole)) / 24_000
    # Each is compared with its own last stage: two runs on a busy machine take what they take.
    streamed_end_s, whole_end_s = (
        result.stages[-1].began_s + result.stages[-1].latency_s for result in (streamed, whole)
    )
    assert 0 < streamed.ttfp_s < streamed_end_s, "the first chunk comes before the stage's end"
    assert whole_end_s <= whole.ttfp_s <= whole.rtf * seconds, "all of it comes at its end"
    text = tiny_omni.run(spoken("text", modalities=frozenset({"text"}), stream_audio=True))
    assert text.ttfp_s is None and text.rtf is None and len(text.stages) == 1


def test_bad_requests_fail_alone(tiny_omni):
    bad = [
        spoken("speaker", speaker="Nobody", stream_audio=True),
        spoken("steps", diffusion={"num_inference_steps": 1}, stream_audio=True),
    ]
    good, *failed = tiny_omni.run_all([spoken("good", stream_audio=True), *bad])
    assert good.error is None
    assert [type(result.error) for result in failed] == [InputError, InputError]
    assert tiny_omni.run(spoken("after", stream_audio=True)).error is None


def test_a_profile_may_ask_for_it(slow_thinker):
    stage = slow_thinker.llm.stages[-1]
    assert stage.effective["stream"] is True and stage.settings["stream_chunk_codes"] == 24
    asked, not_asked = slow_thinker.events([spoken("asked"), spoken("not", stream_audio=False)])
    assert 24 * 480 in {len(event.samples) for event in asked if isinstance(event, AudioChunk)}
    assert not [event for event in not_asked if isinstance(event, AudioChunk)]


def test_chunks_that_are_no_whole_blocks_are_refused(start_brief_engine):
    with pytest.raises(StageError, match="`stream_chunk_codes` is 50, and token2wav attends to blocks of 12") as caught:
        start_brief_engine("tiny-omni", "token2wav.stream_chunk_codes=50")
    assert caught.value.hint == "--set token2wav.stream_chunk_codes=48"


# --- Ends ---


def test_leaving_in_the_middle_frees_every_stage(tiny_omni):
    """Leftovers of a request would affect later ones: slots, memory and rows suffice for eight others."""

    async def leave(name: str) -> int:
        seen = 0
        async with aclosing(tiny_omni.llm.generate(spoken(name, max_tokens=1500, stream_audio=True))) as events:
            async for event in events:
                seen += isinstance(event, AudioChunk)
                if seen == 2:
                    break
        return seen

    async def leave_all() -> list[int]:
        return await asyncio.gather(*(leave(f"left {number}") for number in range(8)))

    assert tiny_omni._call(leave_all()) == [2] * 8
    assert tiny_omni.llm.busy_stages == (), "no stage has a request"
    results = tiny_omni.run_all(requests("after", stream=True))
    assert [result.error for result in results] == [None] * 8


def test_a_request_may_have_the_id_of_one_that_was_left(tiny_omni):
    brief = GenerateRequest("same", "hello there", modalities=frozenset({"text"}), sampling={"max_tokens": 20})

    async def leave_and_ask() -> list[Event]:
        async with aclosing(tiny_omni.llm.generate(spoken("same", max_tokens=1500))) as events:
            async for event in events:
                if isinstance(event, TextDelta):
                    break
            time.sleep(0.5)  # more of its text is there when it is left
        return [event async for event in tiny_omni.llm.generate(brief)]

    *events, result = tiny_omni._call(leave_and_ask())
    (text,) = result.outputs
    assert "".join(event.text for event in events if isinstance(event, TextDelta)) == text.text
    assert result.outputs == tiny_omni.run(brief).outputs


@pytest.mark.parametrize(
    ("stage", "late"),
    sample(
        [("thinker", False), ("talker", False), ("talker", True), ("token2wav", False)],
        [("talker", True), ("token2wav", False)],
    ),
)
def test_a_stage_that_dies_ends_its_requests_with_one_error_and_the_others_let_go(slow_thinker, stage, late):
    engine = slow_thinker

    # The stage certainly has more to do now, however slow the others are: the talker needs a row of the thinker for
    # each step, so it cannot end before the thinker has generated as many tokens as the talker has codes.
    awaited, count = (AudioChunk, 1) if stage == "token2wav" else (TextDelta, 10)

    async def run() -> list[Event]:
        seen: list[Event] = []
        async for event in engine.llm.generate(spoken("dying", max_tokens=1500, stream_audio=True)):
            seen.append(event)
            if isinstance(event, awaited) and sum(isinstance(each, awaited) for each in seen) == count:
                os.kill(engine.llm._clients[stage]._process.pid, signal.SIGKILL)
                if late:
                    time.sleep(1)  # the loop hears of the end behind much that the other stages have sent
        return seen

    events = engine._call(run())
    result = events[-1]
    assert isinstance(result, RequestResult) and isinstance(result.error, StageError)
    assert f"stage `{stage}`" in result.error.message and "SIGKILL" in result.error.message
    assert [type(event) for event in events].count(RequestResult) == 1
    engine._call(engine.llm.restart(stage))
    assert engine.llm.busy_stages == (), "the others have let go of it"
    assert engine.run(spoken("after", stream_audio=True)).error is None
