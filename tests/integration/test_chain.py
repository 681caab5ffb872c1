"""The chain from outside: order of events, modalities, images, and requests that fail alone."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
import torch
from support.omni_requests import BRIEF_SPEECH

from omni_cli.checkpoints.files import read_model_kind
from omni_cli.checkpoints.resolve import resolve_model
from omni_cli.core.errors import InputError
from omni_cli.requests.contents import Media, SpeechOptions
from omni_cli.requests.events import TextDelta
from omni_cli.requests.outputs import (
    AudioOutput,
    GenerateRequest,
    ImageOutput,
    OutputReady,
    RequestResult,
    StageProgress,
    TextOutput,
)


@pytest.fixture(scope="module")
def tiny_image(start_engine):
    return start_engine("tiny-image")


def test_text_streams_before_speech_and_the_result_comes_last(tiny_omni):
    (events,) = tiny_omni.events([GenerateRequest("stream", "hello there")])
    kinds = [type(event) for event in events]
    outputs = [event.output for event in events if isinstance(event, OutputReady)]
    assert [type(output) for output in outputs] == [TextOutput, AudioOutput]
    assert kinds[-1] is RequestResult and kinds.count(RequestResult) == 1
    assert "".join(event.text for event in events if isinstance(event, TextDelta)) == outputs[0].text
    assert kinds.index(TextDelta) < kinds.index(OutputReady)
    steps = [event for event in events if isinstance(event, StageProgress) and event.stage == "token2wav"]
    assert [event.done for event in steps] == list(range(1, steps[-1].total + 1))
    traces = events[-1].stages
    assert [trace.name for trace in traces] == ["thinker", "talker", "token2wav"]
    assert traces[0].num_output_tokens == len(outputs[0].token_ids)
    assert 0 < traces[0].ttft_s <= traces[0].latency_s


@pytest.mark.parametrize(
    ("modalities", "kinds", "stages"),
    [
        ({"text"}, [TextOutput], ["thinker"]),
        ({"audio"}, [AudioOutput], ["thinker", "talker", "token2wav"]),
        ({"text", "audio"}, [TextOutput, AudioOutput], ["thinker", "talker", "token2wav"]),
    ],
)
def test_modalities_choose_outputs_and_stages(tiny_omni, modalities, kinds, stages):
    result = tiny_omni.run(GenerateRequest("modalities", "hello there", modalities=frozenset(modalities)))
    assert result.error is None
    assert [type(output) for output in result.outputs] == kinds
    assert [trace.name for trace in result.stages] == stages


def test_an_answer_of_one_token_speaks(tiny_omni):
    result = tiny_omni.run(GenerateRequest("one", "hello there", sampling={"max_tokens": 1}))
    assert result.error is None
    text, audio = result.outputs
    assert len(text.token_ids) == 1 and audio.samples.size > 0


def test_the_seed_decides_the_waveform_and_sampled_text(tiny_omni):
    def run(name: str, seed: int):
        return tiny_omni.run(GenerateRequest(name, "hello there", seed=seed, sampling={"temperature": 1.0}))

    first, again, other = run("a", 5), run("b", 5), run("c", 6)
    assert first.outputs[0].token_ids == again.outputs[0].token_ids != other.outputs[0].token_ids
    assert np.array_equal(first.outputs[1].samples, again.outputs[1].samples)


def test_audio_at_another_sample_rate_gives_as_many_input_tokens(tiny_omni):
    times = np.arange(48_000) / 48_000
    sound = (0.3 * np.sin(2 * np.pi * 440 * times)).astype(np.float32)
    requests = [
        GenerateRequest("48k", "What is it?", media=Media(audio=((sound, 48_000),)), modalities=frozenset({"text"})),
        GenerateRequest(
            "16k", "What is it?", media=Media(audio=((sound[::3].copy(), 16_000),)), modalities=frozenset({"text"})
        ),
    ]
    results = tiny_omni.run_all(requests)
    assert [result.error for result in results] == [None, None]
    assert results[0].stages[0].num_input_tokens == results[1].stages[0].num_input_tokens


def test_bad_requests_fail_alone(tiny_omni):
    requests = [
        GenerateRequest("good", "hello there"),
        GenerateRequest("empty", ""),
        GenerateRequest("long", "word " * 4000),
        GenerateRequest("speaker", "hello there", speech=SpeechOptions(speaker="Nobody")),
        GenerateRequest("sampling", "hello there", sampling={"temperature": -1.0}),
        GenerateRequest("image", "hello there", media=Media(images=(np.zeros((1, 1000, 3), dtype=np.uint8),))),
    ]
    results = {result.request_id: result for result in tiny_omni.run_all(requests)}
    assert results.pop("good").error is None
    for name, result in results.items():
        assert isinstance(result.error, InputError), (name, result.error)
        assert "\n" not in result.error.message and "Traceback" not in result.error.message
    assert "longer than stage `thinker` takes: 2048 tokens" in results["long"].error.message
    assert "max_model_len" in results["long"].error.hint
    assert "Chelsie" in results["speaker"].error.hint


def test_image_equals_plain_diffusers_bit_for_bit(tiny_image):
    from diffusers import DiffusionPipeline

    pipeline = DiffusionPipeline.from_pretrained(resolve_model("builtin:tiny-image"), dtype=torch.float32)
    pipeline.to("cuda" if torch.cuda.is_available() else "cpu")
    pipeline.set_progress_bar_config(disable=True)
    (stage,) = tiny_image.config.stages
    requests = [GenerateRequest(str(seed), "a red kite over the sea", seed=seed) for seed in range(3)]
    requests.append(GenerateRequest("other", "snow", seed=1))
    for request, result in zip(requests, tiny_image.run_all(requests), strict=True):
        assert result.error is None, result.error
        plain = pipeline(
            prompt=request.prompt,
            height=stage.height,
            width=stage.width,
            num_inference_steps=stage.num_inference_steps,
            generator=torch.Generator().manual_seed(request.seed),
            **stage.call,
        ).images[0]
        (output,) = result.outputs
        assert isinstance(output, ImageOutput)
        assert np.array_equal(output.pixels, np.asarray(plain))


def test_a_checkpoint_that_transformers_saved(tiny_omni, tiny_omni_path, start_brief_engine, tmp_path):
    """`save_pretrained` writes another architecture name than the published checkpoints have."""
    from transformers import Qwen2_5OmniForConditionalGeneration, Qwen2_5OmniProcessor

    Qwen2_5OmniForConditionalGeneration.from_pretrained(tiny_omni_path).save_pretrained(tmp_path)
    Qwen2_5OmniProcessor.from_pretrained(tiny_omni_path).save_pretrained(tmp_path)
    shutil.copy(tiny_omni_path / "spk_dict.pt", tmp_path)
    assert read_model_kind(tmp_path) == "Qwen2_5OmniForConditionalGeneration" != read_model_kind(tiny_omni_path)
    request = GenerateRequest("saved", "hello there", sampling={"max_tokens": 8})
    published = tiny_omni.run(request)
    saved = start_brief_engine("tiny-omni", *BRIEF_SPEECH, model=str(tmp_path)).run(request)
    assert saved.error is None
    assert [trace.output_token_ids for trace in saved.stages] == [trace.output_token_ids for trace in published.stages]
    assert np.array_equal(saved.outputs[1].samples, published.outputs[1].samples)
