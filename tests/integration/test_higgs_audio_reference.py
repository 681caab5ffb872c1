"""Higgs Audio v2 against Hugging Face's own: every code of every frame, and the same waveform."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from support.media_samples import tone
from support.references import family_reference
from support.request_fields import with_fields
from vllm import SamplingParams

from omni_cli.backends.vllm.code_runner import Draws
from omni_cli.backends.vllm.hidden_states import ComputedSpan
from omni_cli.checkpoints.resolve import resolve_model
from omni_cli.models.higgs_audio.delayed_frames import CODES_BEFORE, DelayedFrames, RepeatLimit, read_repeat_limit
from omni_cli.models.higgs_audio.family import FAMILY
from omni_cli.models.higgs_audio.prompts import make_inputs
from omni_cli.models.reference import SpokenText
from omni_cli.requests.contents import ReferenceVoice, SpeechOptions, TextOptions
from omni_cli.requests.events import AudioChunk
from omni_cli.requests.outputs import AudioOutput, GenerateRequest, Message, Part, RequestResult

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
    GenerateRequest(
        "long",
        "Tell me a story about the rain on a tin roof, and then another one. " * 4,
        speech=SpeechOptions(speaker="1"),
    ),
    GenerateRequest("two", "[SPEAKER0] Hello, how are you?\n[SPEAKER1] Fine, and you?"),
    GenerateRequest("cloned", "A day in May.", speech=SpeechOptions(voices=(voice(0, "The words of it."),))),
    GenerateRequest(
        "cloned two", "[SPEAKER1] And [SPEAKER0] so.", speech=SpeechOptions(voices=(voice(1, "One."), voice(2, "Two.")))
    ),
    GenerateRequest("voice without words", "In the evening.", speech=SpeechOptions(voices=(voice(3),))),
    GenerateRequest(
        "of both kinds", "[SPEAKER0] A [SPEAKER1] B", speech=SpeechOptions(voices=(voice(4, "Four."), voice(5)))
    ),
    GenerateRequest("scene", messages=(Message("system", (Part("text", "A windy street."),)), said("Hello?"))),
]


@pytest.fixture(scope="module")
def references() -> dict[str, SpokenText]:
    reference = family_reference("tiny-higgs-audio", resolve_model("builtin:tiny-higgs-audio"), *LIMITS)
    return {request.request_id: reference.speak(request) for request in REQUESTS}


@pytest.fixture(scope="module")
def engine(start_engine):
    return start_engine("tiny-higgs-audio", *LIMITS)


def assert_equal(result: RequestResult, reference: SpokenText) -> None:
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
    for events in engine.events(
        [replace(request, speech=replace(request.speech, stream_audio=True)) for request in REQUESTS]
    ):
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
    failed, spoken = engine.run_all([with_fields(good, request_id="wrong", **wrong), good])
    assert failed.error is not None and message in str(failed.error)
    assert_equal(spoken, references[good.request_id])


def test_a_raw_prompt_is_that_of_the_template(engine, references):
    """The text around it is what `omni bench` puts around its own words, with the system's turn."""
    system = "<|start_header_id|>system<|end_header_id|>\n\nGenerate audio following instruction."
    scene = "\n\n<|scene_desc_start|>\nAudio is recorded from a quiet room.\n<|scene_desc_end|><|eot_id|>"
    before, after = FAMILY.prompt_frame
    raw = GenerateRequest("raw", f"{system}{scene}{before}hello{after}", text=TextOptions(raw=True))
    assert_equal(engine.run(raw), references["hello"])


WINDOW = 7


@pytest.fixture(scope="module")
def released(tmp_path_factory) -> Path:
    """A checkpoint with a limit on repeated codes, as the released one has it."""
    folder = tmp_path_factory.mktemp("released") / "model"
    shutil.copytree(resolve_model("builtin:tiny-higgs-audio"), folder)
    generation = json.loads((folder / "generation_config.json").read_text())
    limit = {"ras_win_len": WINDOW, "ras_win_max_num_repeat": 1}
    (folder / "generation_config.json").write_text(json.dumps({**generation, **limit}))
    return folder


def is_repeated(codes: np.ndarray, frame: int) -> np.ndarray:
    """By codebook: whether a frame's code is among those of the window before it; begins and ends do not count."""
    return (codes[frame] < 64) & (codes[max(0, frame - WINDOW) : frame] == codes[frame]).any(axis=0)


def test_codes_that_repeat_are_drawn_again(engine, references, released, start_brief_engine):
    limited = start_brief_engine("tiny-higgs-audio", *LIMITS, f"model={released}")
    nearly_greedy = {"temperature": 0.05, "ignore_eos": True}
    requests = [replace(request, sampling=nearly_greedy, seed=1) for request in (REQUESTS[0], REQUESTS[4])]
    together = [codes_of(result) for result in limited.run_all([*requests, REQUESTS[1]])[:2]]
    for request, codes in zip(requests, together, strict=True):
        np.testing.assert_array_equal(codes, codes_of(limited.run(request)))
        free = codes_of(engine.run(request))
        first = next(frame for frame in range(len(free)) if is_repeated(free, frame).any())
        np.testing.assert_array_equal(codes[:first], free[:first])
        np.testing.assert_array_equal(codes[first] != free[first], is_repeated(free, first))
    greedy = limited.run(REQUESTS[0])
    assert_equal(greedy, references[REQUESTS[0].request_id])
    assert any("greedy codes that repeat are not drawn again" in note for note in greedy.notes)
    refused = limited.run(replace(requests[0], sampling={**nearly_greedy, "logprobs": 1}))
    assert refused.error is not None and "have no logprobs" in str(refused.error)


class Replayed:
    """A model whose logits (num_codebooks, codebook_size) at a position are those that transformers computed."""

    num_codebooks = 8

    def __init__(self, config, logits: torch.Tensor, limit: RepeatLimit) -> None:
        self.config, self.logits, self.repeat_limit = config, logits, limit

    def compute_logits(self, positions: torch.Tensor) -> torch.Tensor:
        return self.logits[positions[:, 0], 0]

    def compute_other_logits(self, positions: torch.Tensor) -> torch.Tensor:
        return self.logits[positions[:, 0], 1:]

    def rows_of_codes(self, codes: torch.Tensor) -> torch.Tensor:
        return codes


def median_code(probabilities: torch.Tensor, *args: object, **kwargs: object) -> torch.Tensor:
    """Draw (num_rows, 1) codes as if every random number were a half."""
    reached = probabilities.cumsum(dim=-1)
    return torch.searchsorted(reached, reached[:, -1:] / 2, right=True)


@pytest.mark.parametrize("request_", [REQUESTS[0], REQUESTS[1], REQUESTS[4]], ids=lambda request: request.request_id)
def test_which_codes_are_drawn_again_is_as_in_transformers(released, request_, monkeypatch):
    """With random numbers of a half on both sides, every code is the same; transformers' logits lead to them."""
    reference = family_reference("tiny-higgs-audio", released, *LIMITS)
    model, inputs = reference._model, make_inputs(reference._listener, request_)
    model.generation_config.ras_win_len = WINDOW
    monkeypatch.setattr(torch, "multinomial", median_code)
    monkeypatch.setattr(torch.Tensor, "multinomial", median_code)
    # Sampled at a low temperature, codes repeat.
    sampling = {"do_sample": True, "temperature": 0.05, "top_k": 0, "max_new_tokens": 40}
    output = model.generate(**inputs, **sampling, return_dict_in_generate=True, output_logits=True)
    model.generation_config.ras_win_len = None
    assert not torch.equal(output.audio_sequences, model.generate(**inputs, **sampling))
    heard = inputs["audio_input_ids"][0] if "audio_input_ids" in inputs else torch.zeros(0, 8, dtype=torch.long)
    expected = output.audio_sequences[0, len(heard) :]
    logits = torch.stack(output.logits)[:, 0].unflatten(-1, (8, -1)).float()

    limit = read_repeat_limit(released)
    monkeypatch.setattr(Draws, "get", lambda self, frame: np.full(self._per_frame, 0.5, np.float32))
    frames = DelayedFrames(Replayed(model.config, logits, limit), torch.device("cpu"))
    params = SamplingParams(temperature=0.05, top_k=0, seed=1)
    frames.begin("it", 10, params, {CODES_BEFORE: heard[-limit.window :]} if len(heard) else {})
    codes = []
    for frame in range(len(expected)):
        span = ComputedSpan("it", 0, 10 + frame, 0)
        first = median_code((frames.guide([span], logits[frame, :1]) / 0.05).softmax(dim=-1))[:, 0]
        codes.append(frames.predict([span], torch.tensor([[frame]]), first)[0])
    assert torch.equal(torch.stack(codes), expected)
