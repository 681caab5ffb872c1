"""token2wav on the device: graphs and kernels against transformers' own modules."""

from __future__ import annotations

import copy
import dataclasses
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from support.plain_activation import fused_and_plain
from transformers.models.qwen2_5_omni.configuration_qwen2_5_omni import Qwen2_5OmniDiTConfig
from transformers.models.qwen2_5_omni.modeling_qwen2_5_omni import Qwen2_5OmniToken2WavDiTModel

from omni_cli.backends.execution.modes import make_execution_mode
from omni_cli.backends.execution.precision import arithmetic, reduce_weights, use_precision
from omni_cli.models.qwen2_5_omni.token2wav.cuda import bucket
from omni_cli.models.qwen2_5_omni.token2wav.denoising import Conditioner, Denoising
from omni_cli.models.qwen2_5_omni.token2wav.platform import VocoderInput
from omni_cli.models.qwen2_5_omni.token2wav.request import DenoisingSettings, SynthesisRequest
from omni_cli.models.qwen2_5_omni.token2wav.velocity import PackedVelocity, Velocity

if torch.cuda.is_available():
    from omni_cli.models.qwen2_5_omni.token2wav.cuda.platform import CudaPlatform, GeluLinear


KIT = Path(__file__).resolve().parents[2] / "benchmarks" / "gpu"


def speech_parts() -> tuple[torch.nn.Module, dict[str, dict[str, torch.Tensor]], list[Any]]:
    """A DiT on the device, two voices, and requests of both."""
    torch.manual_seed(0)
    dit = Qwen2_5OmniToken2WavDiTModel(Qwen2_5OmniDiTConfig(num_hidden_layers=4)).eval().to("cuda")
    voices = {
        name: {"cond": torch.randn(1, dit.config.enc_emb_dim), "ref_mel": torch.randn(1, 300, dit.config.mel_dim)}
        for name in ("a", "b")
    }
    requests = [
        SynthesisRequest(
            str(index), torch.arange(length, device="cuda"), 0, 0, length, 5, name, DenoisingSettings(4, 0.5, -1.0)
        )
        for index, (name, length) in enumerate([("a", 50), ("b", 50), ("a", 50), ("b", 20)])
    ]
    return dit, voices, requests


@torch.inference_mode()
def denoised(denoising) -> dict[str, torch.Tensor]:
    for _ in range(3):
        denoising.step()
    return denoising.mels()


def plain_mel(dit: torch.nn.Module, voice: dict[str, torch.Tensor], request) -> torch.Tensor:
    """The mel spectrogram by transformers' solver from the noise of `request`, which it draws on the host."""
    noise = request.noise(dit.repeats, dit.mel_dim).cuda()
    with patch("torch.randn", lambda *_, **__: noise):
        made = dit.sample(voice["cond"].cuda(), voice["ref_mel"].cuda(), request.codes[None], num_steps=4)
    return made.permute(0, 2, 1)


def test_token2wav_replays_equal_transformers_for_every_speaker():
    dit, voices, requests = speech_parts()
    velocity = Velocity(dit)
    conditioner = Conditioner(velocity.dit, voices)
    execution_mode = make_execution_mode(velocity, "cudagraph", stage="token2wav", device="cuda")
    for request in requests:
        (made,) = denoised(Denoising(velocity, conditioner, [request])).values()
        assert torch.equal(made, plain_mel(dit, voices[request.speaker], request)), request.request_id
    assert (execution_mode.counters.graphs_captured, execution_mode.counters.graph_replays) == (2, 48)
    execution_mode.close()


def test_packed_token2wav_replays_one_graph_for_all_lengths_within_its_bound():
    dit, voices, requests = speech_parts()
    velocity = PackedVelocity(copy.deepcopy(dit), CudaPlatform())
    conditioner = Conditioner(velocity.dit, voices)
    execution_mode = make_execution_mode(velocity, "cudagraph", stage="token2wav", device="cuda", clone_outputs=False)
    for batch in (requests, requests[1:]):
        made = denoised(Denoising(velocity, conditioner, batch, lambda used: max(bucket(used), 48)))
        for request in batch:
            expected = plain_mel(dit, voices[request.speaker], request)
            torch.testing.assert_close(made[request.request_id], expected, rtol=0, atol=1e-4)
    assert (execution_mode.counters.graphs_captured, execution_mode.counters.graph_replays) == (1, 24)
    execution_mode.close()


@pytest.mark.parametrize(("precision", "bound"), [("tf32", 5e-3), ("float32", 2e-5)])
@pytest.mark.parametrize("num_rows", [96, 97, 384, 385])
@torch.inference_mode()
def test_a_product_with_gelu_has_the_precision_asked_for(precision, bound, num_rows):
    torch.manual_seed(0)
    with torch.device("cuda"):
        plain, rows = torch.nn.Linear(1024, 2048), torch.randn(1, num_rows, 1024)
    expected = torch.nn.functional.gelu(plain.double()(rows.double()), approximate="tanh").float()
    use_precision(precision, stage="token2wav", device="cuda")
    with arithmetic(precision, "cuda"):
        made = GeluLinear(plain.float())(rows)
    torch.testing.assert_close(made, expected, rtol=0, atol=bound)


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 2e-5), (torch.bfloat16, 5e-2)])
@pytest.mark.parametrize("rate", [1, 5, 240])
@pytest.mark.parametrize(("channels", "phases_in", "phases_out"), [(6, 1, 1), (6, 3, 1), (130, 1, 5), (130, 5, 3)])
def test_the_fused_activation_is_that_of_the_vocoder_for_each_sequence(
    dtype, bound, rate, channels, phases_in, phases_out
):
    made, expected = fused_and_plain(channels, rate, phases_in, phases_out, dtype, "cuda")
    assert made.dtype == dtype
    torch.testing.assert_close(made.float(), expected, rtol=0, atol=bound)


@pytest.mark.parametrize("precision", ["float32", "tf32", "bfloat16"])
@torch.inference_mode()
def test_spectrograms_of_different_lengths_are_vocoded_as_transformers_does(monkeypatch, precision):
    monkeypatch.syspath_prepend(str(KIT))
    from models import twin
    from token2wav_batching import make_model

    model = make_model("small", torch.device("cuda"))
    mels = [torch.randn(1, frames, 80, device="cuda") for frames in (100, 66, 7, 1)]
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    expected = [model.code2wav_bigvgan_model(mel.mT).reshape(-1) for mel in mels]
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", precision == "tf32")
    vocoder = twin(model).code2wav_bigvgan_model
    if precision == "bfloat16":
        reduce_weights(vocoder)
    heard = [VocoderInput(str(index), mel, 0, mel.shape[1] * 240) for index, mel in enumerate(mels)]
    packed = CudaPlatform().make_vocoder(vocoder)
    with arithmetic(precision, "cuda"):
        eager = dict(packed.waveforms(heard))
        packed.use_graphs(partial(make_execution_mode, mode="cudagraph", stage="token2wav", device="cuda"))
        packed.capture_ahead()
        replayed = [dict(packed.waveforms(heard)) for _ in range(2)]
    bound = {"float32": 1e-4, "tf32": 1e-2, "bfloat16": 0.1}[precision]
    for made in (eager, *replayed):
        for index, samples in enumerate(expected):
            torch.testing.assert_close(made[str(index)], samples.cpu(), rtol=0, atol=bound)


def test_packed_neighbours_of_nan_do_not_affect_others():
    dit, voices, requests = speech_parts()
    velocity = PackedVelocity(copy.deepcopy(dit), CudaPlatform())
    conditioner = Conditioner(velocity.dit, voices)
    expected = denoised(Denoising(velocity, conditioner, requests, bucket))
    denoising = Denoising(velocity, conditioner, requests, bucket)
    denoising._frames[100:200] = torch.nan
    made = denoised(denoising)
    assert made["1"].isnan().all()
    assert all(torch.equal(made[name], expected[name]) for name in ("0", "2", "3"))


def test_padded_tf32_at_real_size_stays_within_the_bound_that_the_profiles_state(monkeypatch):
    monkeypatch.syspath_prepend(str(KIT))
    from models import twin
    from token2wav_batching import After, distances, make_model, requests_of, run

    device = torch.device("cuda")
    model = make_model("7b", device)
    config = model.config.dit_config
    speaker = {
        "cond": torch.randn(1, config.enc_emb_dim, device=device),
        "ref_mel": torch.randn(1, 300, config.mel_dim, device=device),
    }
    requests = requests_of([60, 200, 340], config.num_embeds, device)
    with torch.inference_mode():
        padded = After(twin(model), speaker, execution="eager", batching="padded", precision="tf32")
        made = run(padded, requests).waveforms
        # Last, because the arithmetic is the process's.
        exact = After(twin(model), speaker, execution="eager", batching="exact", precision="float32")
        distance = distances(made, run(exact, requests).waveforms)
    assert 0 < distance["log_mel"] <= 1e-3


def test_chunks_that_carry_keys_and_values_on_join_to_the_whole():
    dit, voices, (whole, *_) = speech_parts()
    velocity = PackedVelocity(copy.deepcopy(dit), CudaPlatform())
    conditioner = Conditioner(velocity.dit, voices)
    execution_mode = make_execution_mode(velocity, "cudagraph", stage="token2wav", device="cuda", clone_outputs=False)
    # It sees all codes, so that nothing is missing ahead.
    first = dataclasses.replace(whole, end=24, stream="stream", continues_at=24)
    denoising = Denoising(velocity, conditioner, [first], bucket)
    begun = denoised(denoising)["0"][:, :48]
    state = denoising.chunk_states(24)["stream"]
    last = dataclasses.replace(
        first, codes=whole.codes[24:], codes_start=24, start=24, end=50, previous=state, continues_at=None
    )
    rest = denoised(Denoising(velocity, conditioner, [last], lambda used: 16))["0"]
    expected = plain_mel(dit, voices[whole.speaker], whole)
    torch.testing.assert_close(torch.cat((begun, rest), dim=1), expected, rtol=0, atol=1e-4)
    execution_mode.close()
