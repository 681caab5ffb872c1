"""An audio pipeline of diffusers against its plain call."""

from __future__ import annotations

import io
import wave
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import soundfile
import soxr
import torch
from diffusers import DiffusionPipeline
from support.stage_specs import get_spec, step_outputs
from support.tiny_pipelines.check import call_named

from omni_cli.backends.diffusers.executor import DiffusersPipelineExecutor
from omni_cli.backends.diffusers.outputs import get_sample_rate, makes_sound
from omni_cli.backends.diffusers.requests import DiffusionRequest
from omni_cli.backends.diffusers.stage import DiffusersStage, waveform_for
from omni_cli.checkpoints.tiny_pipelines import tiny_audio
from omni_cli.config.schema import DiffusionStageConfig
from omni_cli.core.errors import CheckpointError, InputError
from omni_cli.requests.contents import Media, SpeechOptions
from omni_cli.requests.encoding import encode_wav
from omni_cli.requests.events import AudioChunk
from omni_cli.requests.media.reading import load_audio
from omni_cli.requests.outputs import GenerateRequest
from omni_cli.stage.messages import RequestDone

STAGE = DiffusionStageConfig.create("audio", num_inference_steps=3, max_num_seqs=4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoint") / "tiny-audio"
    tiny_audio(folder, 0)
    return folder


@pytest.fixture(scope="module")
def executor(folder):
    executor = DiffusersPipelineExecutor(STAGE, str(folder), "float32", "cpu")
    yield executor
    executor.shutdown()


def request(name: str, prompt: str, seed: int, **arguments) -> DiffusionRequest:
    return DiffusionRequest.from_arguments(name, prompt, seed, arguments)


def test_audio_is_the_plain_call_s_bit_for_bit_alone_and_in_a_batch(executor, folder):
    plain = DiffusionPipeline.from_pretrained(folder)
    plain.set_progress_bar_config(disable=True)
    prompts = ["rain", "a dog barks in the rain"]
    steps: list[tuple[str, int, int]] = []
    requests = [request(str(i), prompt, 5 + i, audio_end_in_s=0.25) for i, prompt in enumerate(prompts)]
    outputs = executor.execute_model(tuple(requests), on_step=lambda *step: steps.append(step))
    for index, (prompt, output) in enumerate(zip(prompts, outputs, strict=True)):
        generator = torch.Generator("cpu").manual_seed(5 + index)
        (expected,) = plain(prompt, audio_end_in_s=0.25, num_inference_steps=3, generator=generator).audios
        assert output.sounds[0].dtype == np.float32 and output.sounds[0].shape == (11025, 2)
        np.testing.assert_array_equal(output.sounds[0], expected.T.numpy())
        assert output.sounds[0].std() > 0.01, "silence would equal anything"
        assert not output.images and len(output.times.denoise_step_s) == 3
    assert steps == [(name, done, 3) for name in ("0", "1") for done in (1, 2, 3)]
    assert executor.sample_rate == plain.vae.config.sampling_rate == 44100


def test_streamed_audio_is_a_chunk_and_other_audio_is_with_the_report(folder):
    emitted: list[object] = []
    stage = DiffusersStage(get_spec(STAGE, str(folder)), emitted.append)
    stage.add(GenerateRequest("whole", prompt="rain", diffusion={"duration": 0.25}))
    stage.add(
        GenerateRequest(
            "streamed", prompt="rain", diffusion={"duration": 0.25}, speech=SpeechOptions(stream_audio=True)
        )
    )
    whole, chunk, done = step_outputs(stage, emitted)
    assert isinstance(whole, RequestDone) and isinstance(chunk, AudioChunk)
    np.testing.assert_array_equal(chunk.samples, whole.audio.samples)
    assert chunk.sample_rate == whole.audio.sample_rate == 44100
    assert isinstance(done, RequestDone) and done.audio is None
    stage.close()


def test_given_audio_is_what_a_plain_call_gets(folder, tmp_path):
    plain = DiffusionPipeline.from_pretrained(folder)
    plain.set_progress_bar_config(disable=True)
    emitted: list[object] = []
    stage = DiffusersStage(get_spec(STAGE, str(folder)), emitted.append)
    for rate, channels in ((44100, 2), (44100, 1), (16000, 1), (48000, 3)):
        samples = np.random.default_rng(0).uniform(-0.5, 0.5, (rate // 5, channels)).astype(np.float32)
        soundfile.write(tmp_path / "given.wav", samples, rate, subtype="FLOAT")
        decoded = load_audio(tmp_path / "given.wav", pytest.fail, mono=False)
        np.testing.assert_array_equal(decoded[0].reshape(-1, channels), samples)
        stage.add(
            GenerateRequest("0", prompt="rain", seed=3, diffusion={"duration": 0.25}, media=Media(audio=(decoded,)))
        )
        stage.add(GenerateRequest("1", prompt="rain", seed=3, diffusion={"duration": 0.25}))
        made, without = (report.audio.samples for report in step_outputs(stage, emitted))
        rows = samples.T if rate == 44100 else soxr.resample(decoded[0], rate, 44100).reshape(-1, channels).T
        rows = rows if channels == 2 else np.repeat(rows.mean(axis=0, keepdims=True), 2, axis=0)
        given = {"initial_audio_waveforms": torch.tensor(rows)[None], "initial_audio_sampling_rate": 44100}
        call = {"audio_end_in_s": 0.25, "num_inference_steps": 3, "generator": torch.Generator("cpu").manual_seed(3)}
        (expected,) = plain("rain", **call, **given).audios
        np.testing.assert_array_equal(made, expected.T.numpy())
        assert np.abs(made - without).max() > 0, "the audio has an effect"
    stage.close()


def test_audio_needs_the_rate_of_the_pipeline():
    pipeline = SimpleNamespace(vae=SimpleNamespace(config=SimpleNamespace()))
    with pytest.raises(InputError, match="does not say the sample rate"):
        waveform_for(pipeline, np.zeros(8, np.float32), 44100, "cpu")


def test_a_duration_has_the_pipeline_s_own_name_and_its_limit(executor):
    assert executor.call.own_names({"duration": 0.5}) == {"audio_end_in_s": 0.5}
    (output,) = executor.execute_model((request("0", "rain", 0, audio_end_in_s=99.0),))
    assert "longer than the model maximum" in str(output.error)
    with pytest.raises(InputError, match="takes no `height`"):
        executor.resolve(request("0", "rain", 0, height=64))


def test_the_rate_is_read_where_a_pipeline_keeps_it_and_never_guessed(folder, tmp_path):
    vocoder = SimpleNamespace(config=SimpleNamespace(sampling_rate=16000))
    assert get_sample_rate(SimpleNamespace(vocoder=vocoder, vae=SimpleNamespace(config=SimpleNamespace()))) == 16000
    plain = DiffusionPipeline.from_pretrained(folder)
    plain.vae.register_to_config(sampling_rate=None)
    with pytest.raises(CheckpointError, match="does not say the sample rate"):
        DiffusersPipelineExecutor(STAGE, str(folder), "float32", "cpu", make_pipeline=lambda: plain)
    silent, sounding = SimpleNamespace(sound_tokenizer=None), SimpleNamespace(sound_tokenizer=SimpleNamespace())
    for pipeline, expected in ((silent, False), (sounding, True)):
        assert makes_sound(pipeline, call_named("Cosmos3OmniPipeline")) is expected


def test_a_stereo_wav_has_both_channels():
    samples = np.stack([np.full(10, 0.5, np.float32), np.full(10, -0.25, np.float32)], axis=1)
    with wave.open(io.BytesIO(encode_wav(samples, 44100))) as file:
        assert (file.getnchannels(), file.getnframes(), file.getframerate()) == (2, 10, 44100)
        frames = np.frombuffer(file.readframes(10), "<i2").reshape(10, 2)
    assert frames[0].tolist() == [16384, -8192]
