"""token2wav's DiT alone and packed, in each mode, and its vocoder, against transformers' own."""

from __future__ import annotations

import dataclasses
import gc
import threading
import weakref
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.fake_graphs import FakeBackend
from support.plain_activation import PlainActivation, in_phases, plain_mean

from omni_cli.core.compat.libraries import prepare_libraries

prepare_libraries()

from transformers import AutoConfig  # noqa: E402
from transformers.models.qwen2_5_omni.modeling_qwen2_5_omni import (  # noqa: E402
    Qwen2_5OmniSnakeBeta,
    Qwen2_5OmniToken2WavModel,
)

from omni_cli.backends.execution.modes import GraphMode, make_execution_mode  # noqa: E402
from omni_cli.backends.execution.worker_pool import WorkerPool  # noqa: E402
from omni_cli.checkpoints.resolve import resolve_model  # noqa: E402
from omni_cli.models.qwen2_5_omni.settings import Token2WavConfig  # noqa: E402
from omni_cli.models.qwen2_5_omni.token2wav.cuda import bucket, buckets  # noqa: E402
from omni_cli.models.qwen2_5_omni.token2wav.cuda.vocoder import PackedVocoder  # noqa: E402
from omni_cli.models.qwen2_5_omni.token2wav.denoising import Conditioner, Denoising  # noqa: E402
from omni_cli.models.qwen2_5_omni.token2wav.model import Qwen2_5OmniToken2WavForDiffusion  # noqa: E402
from omni_cli.models.qwen2_5_omni.token2wav.platform import (  # noqa: E402
    CpuPlatform,
    Platform,
    Vocoder,
    VocoderInput,
)
from omni_cli.models.qwen2_5_omni.token2wav.request import DenoisingSettings, SynthesisRequest  # noqa: E402
from omni_cli.models.qwen2_5_omni.token2wav.scheduler import SpeechScheduler  # noqa: E402
from omni_cli.models.qwen2_5_omni.token2wav.synthesizer import Synthesizer  # noqa: E402
from omni_cli.models.qwen2_5_omni.token2wav.velocity import PackedVelocity, Velocity  # noqa: E402


def token2wav(vocoder_channels: int = 64) -> Qwen2_5OmniToken2WavModel:
    torch.manual_seed(0)
    config = AutoConfig.from_pretrained(resolve_model("builtin:tiny-omni")).token2wav_config
    config.bigvgan_config.upsample_initial_channel = vocoder_channels
    return Qwen2_5OmniToken2WavModel(config).eval()


def speakers(num_frames: dict[str, int]) -> dict[str, dict[str, torch.Tensor]]:
    """Return speakers with references of so many frames."""
    draw = torch.Generator().manual_seed(1)
    return {
        name: {"cond": torch.randn(1, 32, generator=draw), "ref_mel": torch.randn(1, frames, 80, generator=draw)}
        for name, frames in num_frames.items()
    }


VOICES = speakers({"Chelsie": 30, "Ethan": 60})


def request_for(name: str, num_codes: int, guidance_scale: float, request_id: str = "0") -> SynthesisRequest:
    codes = torch.arange(num_codes) % 300
    return SynthesisRequest(request_id, codes, 0, 0, num_codes, 5, name, DenoisingSettings(3, guidance_scale, -1.0))


def plain_mel(model, request: SynthesisRequest) -> torch.Tensor:
    """Compute the mel spectrogram with transformers' own sampler."""
    voice = VOICES[request.speaker]
    torch.manual_seed(request.seed)
    made = model.code2wav_dit_model.sample(
        voice["cond"],
        voice["ref_mel"],
        request.codes[None],
        num_steps=3,
        guidance_scale=request.sampling.guidance_scale,
    )
    return made.permute(0, 2, 1)


@torch.inference_mode()
def denoised(denoising) -> dict[str, torch.Tensor]:
    denoising.step()
    denoising.step()
    return denoising.mels()


def single_mel(velocity: Velocity, conditioner: Conditioner, request: SynthesisRequest) -> torch.Tensor:
    (made,) = denoised(Denoising(velocity, conditioner, [request])).values()
    return made


REQUESTS = [("Chelsie", 12, 0.5), ("Ethan", 12, 0.5), ("Chelsie", 12, 0.5), ("Ethan", 7, 0.0), ("Chelsie", 12, 0.0)]


def test_speakers_that_alternate_sound_as_in_transformers_and_are_encoded_once_each():
    plain, model = token2wav(), token2wav()
    velocity = Velocity(model.code2wav_dit_model)
    conditioner, runs = Conditioner(velocity.dit, VOICES), []
    velocity.dit.input_embed.spk_encoder.blocks[0].register_forward_hook(lambda *_: runs.append(1))
    for each in REQUESTS:
        request = request_for(*each)
        assert torch.equal(single_mel(velocity, conditioner, request), plain_mel(plain, request))
    assert len(runs) == 4, "two speakers, each with guidance and without"


def test_one_graph_serves_every_speaker():
    plain, model = token2wav(), token2wav()
    velocity = Velocity(model.code2wav_dit_model)
    conditioner = Conditioner(velocity.dit, VOICES)
    execution_mode = GraphMode(velocity, FakeBackend(), stage="token2wav", device=torch.device("cpu"), max_graphs=8)
    for name in VOICES:
        request = request_for(name, 12, 0.5)
        assert torch.equal(single_mel(velocity, conditioner, request), plain_mel(plain, request)), name
    assert (execution_mode.counters.graphs_captured, execution_mode.counters.graph_replays) == (1, 16)


def test_a_graph_for_each_number_of_codes_and_kind_of_guidance():
    plain, model = token2wav(), token2wav()
    velocity = Velocity(model.code2wav_dit_model)
    conditioner = Conditioner(velocity.dit, VOICES)
    execution_mode = GraphMode(velocity, FakeBackend(), stage="token2wav", device=torch.device("cpu"), max_graphs=2)
    for each in REQUESTS:
        request = request_for(*each)
        assert torch.equal(single_mel(velocity, conditioner, request), plain_mel(plain, request))
    counters = execution_mode.counters
    assert (counters.graphs_captured, counters.graphs_evicted) == (3, 1)
    assert (counters.graph_replays, counters.eager_calls) == (40, 0)


@pytest.mark.nightly
@pytest.mark.slow
def test_compiled_blocks_serve_every_number_of_codes():
    plain, model = token2wav(), token2wav()
    velocity = Velocity(model.code2wav_dit_model)
    conditioner = Conditioner(velocity.dit, VOICES)
    execution_mode = make_execution_mode(velocity, "compile", stage="token2wav", device="cpu")
    assert execution_mode.counters.compiled_regions == len(velocity.dit.transformer_blocks)
    single_mel(velocity, conditioner, request_for("Chelsie", 20, 0.5))
    compiled = execution_mode.counters.as_dict()
    for num_codes in (13, 31):
        request = request_for("Ethan", num_codes, 0.5)
        made = single_mel(velocity, conditioner, request)
        torch.testing.assert_close(made, plain_mel(plain, request), rtol=0, atol=1e-5)
    assert execution_mode.counters.as_dict() == compiled, "no length compiles again"
    execution_mode.close()


# --- Packed ---

# What `batching: padded` may differ by: float32's rounding, in a mel spectrogram of about 4.
MEL_BOUND = 1e-5
# Of samples in [-1, 1], in float64: a deep random vocoder makes much of float32's last bit.
SAMPLE_BOUND = 1e-6


def mixed(guidance_scale: float) -> list[SynthesisRequest]:
    lengths = [("Chelsie", 50), ("Ethan", 33), ("Chelsie", 7), ("Ethan", 12)]
    return [request_for(name, length, guidance_scale, str(index)) for index, (name, length) in enumerate(lengths)]


def packed_velocity() -> tuple[PackedVelocity, Conditioner]:
    velocity = PackedVelocity(token2wav().code2wav_dit_model, Platform())
    return velocity, Conditioner(velocity.dit, VOICES)


@pytest.mark.parametrize("guidance_scale", [0.5, 0.0])
@pytest.mark.parametrize("num_fillers", [0, 5])
def test_requests_of_different_lengths_are_denoised_together_as_they_are_alone(guidance_scale, num_fillers):
    plain, requests = token2wav(), mixed(guidance_scale)
    made = denoised(Denoising(*packed_velocity(), requests, lambda used: used + num_fillers))
    assert list(made) == [each.request_id for each in requests]
    for each in requests:
        torch.testing.assert_close(made[each.request_id], plain_mel(plain, each), rtol=0, atol=MEL_BOUND)


def test_a_neighbour_of_nan_does_not_affect_others():
    velocity, conditioner = packed_velocity()
    requests = mixed(0.5)
    expected = denoised(Denoising(velocity, conditioner, requests))
    denoising = Denoising(velocity, conditioner, requests)
    denoising._frames[100:166] = torch.nan
    made = denoised(denoising)
    assert made["1"].isnan().all()
    for name in ("0", "2", "3"):
        assert torch.equal(made[name], expected[name]), name


@torch.inference_mode()
def test_a_request_that_leaves_changes_the_others_by_rounding():
    velocity, conditioner = packed_velocity()
    expected = denoised(Denoising(velocity, conditioner, mixed(0.5)))
    denoising = Denoising(velocity, conditioner, mixed(0.5))
    denoising.step()
    denoising.drop({"1"})
    denoising.step()
    assert list(denoising.mels()) == ["0", "2", "3"]
    for name, made in denoising.mels().items():
        torch.testing.assert_close(made, expected[name], rtol=0, atol=MEL_BOUND)


def packed_graphs(velocity: PackedVelocity) -> GraphMode:
    """Graphs as token2wav uses them: replays overwrite their outputs."""
    device = torch.device("cpu")
    return GraphMode(velocity, FakeBackend(), stage="token2wav", device=device, max_graphs=8, clone_outputs=False)


def test_one_graph_per_bucket_serves_batches_of_different_requests():
    velocity, conditioner = packed_velocity()
    execution_mode = packed_graphs(velocity)
    for requests in (mixed(0.5), mixed(0.5)[1:], mixed(0.0)):
        made = denoised(Denoising(velocity, conditioner, requests, bucket))
        for each in requests:
            expected = plain_mel(token2wav(), each)
            torch.testing.assert_close(made[each.request_id], expected, rtol=0, atol=MEL_BOUND)
    # 24 blocks, and twice 16.
    assert (execution_mode.counters.graphs_captured, execution_mode.counters.graph_replays) == (2, 24)


def test_chunks_share_the_graph_of_whole_requests_if_those_carry_nothing():
    velocity, conditioner = packed_velocity()
    execution_mode = packed_graphs(velocity)
    chunk = dataclasses.replace(request_for("Ethan", 36, 0.5, "chunk"), end=12, stream="one", continues_at=12)
    first = Denoising(velocity, conditioner, [chunk], bucket, carries=True)
    denoised(first)
    state = first.chunk_states(24)["one"]
    assert state.end == 12 and state.mel.shape == (1, 24, 80)
    shape = (4, *velocity.carried_shape[:1], 2, *velocity.carried_shape[1:])
    assert [step.shape for step in state.keys_values] == [shape] * 2
    last = dataclasses.replace(
        chunk, codes=chunk.codes[12:], codes_start=12, start=12, end=36, previous=state, continues_at=None
    )
    whole = request_for("Chelsie", 7, 0.5)
    made = denoised(Denoising(velocity, conditioner, [last, whole], bucket, carries=True))
    torch.testing.assert_close(made["0"], plain_mel(token2wav(), whole), rtol=0, atol=MEL_BOUND)
    everything = plain_mel(token2wav(), dataclasses.replace(chunk, end=36))
    torch.testing.assert_close(made["chunk"], everything[:, 24:], rtol=0, atol=MEL_BOUND)
    assert (execution_mode.counters.graphs_captured, execution_mode.counters.graph_replays) == (1, 16)


@pytest.mark.parametrize("has_graphs", [True, False])
@torch.inference_mode()
def test_a_stream_that_leaves_changes_what_others_carry_on_by_rounding(has_graphs):
    velocity, conditioner = packed_velocity()
    if has_graphs:
        packed_graphs(velocity)
    whole = request_for("Ethan", 36, 0.5)
    streams = [
        dataclasses.replace(whole, request_id=name, seed=seed, end=12, stream=name, continues_at=12)
        for seed, name in enumerate(("gone", "stays"))
    ]
    alone = Denoising(velocity, conditioner, streams[1:], bucket)
    denoised(alone)
    denoising = Denoising(velocity, conditioner, streams, bucket)
    denoising.step()
    denoising.drop({"gone"})
    denoising.step()
    (made,), (expected,) = (each.chunk_states(24).values() for each in (denoising, alone))
    left, expected_left = (torch.cat(state.keys_values) for state in (made, expected))
    assert expected_left.abs().amax(dim=(1, 2, 3, 4, 5)).min() > 0.1, "all evaluations leave something"
    torch.testing.assert_close(left, expected_left, rtol=0, atol=MEL_BOUND)
    torch.testing.assert_close(made.mel, expected.mel, rtol=0, atol=MEL_BOUND)


@torch.inference_mode()
def test_a_chunk_that_begins_its_first_step_again_makes_the_same_in_the_memory_of_the_one_before():
    velocity, conditioner = packed_velocity()
    whole = request_for("Ethan", 48, 0.5)
    first = dataclasses.replace(whole, codes=whole.codes[:36], end=12, stream="one", continues_at=12)
    made = []
    for begins_again in (False, True):
        denoising = Denoising(velocity, conditioner, [first], bucket)
        denoised(denoising)
        before = denoising.chunk_states(24)["one"]
        chunk = dataclasses.replace(first, codes=whole.codes[12:], codes_start=12, start=12, end=36, continues_at=36)
        chunk = dataclasses.replace(chunk, previous=before)
        if begins_again:
            Denoising(velocity, conditioner, [chunk], bucket).step()
        denoising = Denoising(velocity, conditioner, [chunk], bucket)
        denoised(denoising)
        state = denoising.chunk_states(24)["one"]
        assert state.keys_values[1:] == before.keys_values[1:] and state.keys_values[0] is not before.keys_values[0]
        made.append((torch.cat(state.keys_values), state.mel))
    for once, again in zip(*made, strict=True):
        assert torch.equal(once, again)


@pytest.mark.parametrize("smallest", [4, 8])
def test_buckets_grow_by_the_smallest_or_less_than_a_quarter(smallest):
    for used in range(1, 5000):
        padded = bucket(used, smallest)
        assert used <= padded < max(used + smallest, used * 1.25)
        assert padded % smallest == 0 and bucket(padded, smallest) == padded
    assert list(buckets(80)) == [4, 8, 12, 16, 20, 24, 28, 32, 40, 48, 56, 64, 80]
    assert list(buckets(272, 8)) == [8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256]


# With 384 there are stages of 192, 96, 48 and 24 channels, which have several samples in a row.
@pytest.mark.parametrize("channels", [64, 384])
@torch.inference_mode()  # with gradients, the activations of float64 take 8 GiB
def test_spectrograms_of_different_lengths_are_vocoded_together_as_they_are_alone(monkeypatch, channels):
    # Calls of 107 frames, of 66 and of 46.
    monkeypatch.setattr("omni_cli.models.qwen2_5_omni.token2wav.cuda.vocoder.MAX_FRAMES_PER_CALL", 110)
    vocoder = loud_vocoder(channels).double()
    draw = torch.Generator().manual_seed(0)
    mels = [torch.randn(1, frames, 80, generator=draw, dtype=torch.float64) for frames in (100, 7, 66, 45, 1)]
    heard = [VocoderInput(str(index), mel, 0, mel.shape[1] * 240) for index, mel in enumerate(mels)]
    alone = dict(Vocoder(vocoder).waveforms(heard))
    together = dict(packed_vocoder(vocoder).waveforms(heard))
    for name, samples in alone.items():
        assert samples.std() > 0.05, "silence would be within any bound"
        torch.testing.assert_close(together[name], samples, rtol=0, atol=SAMPLE_BOUND)


@torch.inference_mode()
def test_a_graph_per_number_of_frames_vocodes_as_the_layers_do():
    mels = [torch.randn(1, frames, 80) for frames in (40, 30, 20, 600)]
    heard = [VocoderInput(str(index), mel, 0, mel.shape[1] * 240) for index, mel in enumerate(mels)]
    ahead: list[object] = []
    vocoder = PackedVocoder(loud_vocoder(), lambda module: pointwise, plain_mean, ahead.extend)
    expected = dict(vocoder.waveforms(heard))
    made: list[GraphMode] = []

    def prepare(layers: torch.nn.Module, max_graphs: int) -> GraphMode:
        keys = {"stage": "token2wav", "device": torch.device("cpu"), "max_graphs": max_graphs}
        made.append(GraphMode(layers, FakeBackend(), **keys))
        return made[0]

    vocoder.use_graphs(prepare)
    vocoder.capture_ahead()
    counters = made[0].counters
    # 24, 48, ... 192, 240, ... 480 frames.
    assert (counters.graphs_captured, counters.graphs_evicted) == (13, 0)
    assert len(ahead) == len(vocoder.module.ups), "kernels of calls without a graph would be compiled in a request"
    before = counters.graph_replays
    for group, replays in ((heard[:1], 1), (heard[:2], 2), (heard[:3], 3), (heard[2:], 3)):
        for name, samples in vocoder.waveforms(group):
            torch.testing.assert_close(samples, expected[name], rtol=0, atol=SAMPLE_BOUND * 10)
        # The last group is too long for a graph.
        assert counters.graph_replays - before == replays
    assert counters.graphs_captured == 13


@torch.inference_mode()
@pytest.mark.parametrize("channels", [64, 384])
def test_a_spectrogram_that_is_not_a_number_spoils_no_other_waveform(channels):
    vocoder = packed_vocoder(loud_vocoder(channels))
    mels = [torch.randn(1, frames, 80) for frames in (20, 30, 20)]
    heard = [VocoderInput(str(index), mel, 0, mel.shape[1] * 240) for index, mel in enumerate(mels)]
    expected = dict(vocoder.waveforms(heard))
    mels[1].fill_(torch.nan)
    made = dict(vocoder.waveforms(heard))
    assert made["1"].isnan().any()
    assert torch.equal(made["0"], expected["0"]) and torch.equal(made["2"], expected["2"])


def packed_vocoder(vocoder: torch.nn.Module) -> PackedVocoder:
    return PackedVocoder(vocoder, PlainActivation, plain_mean, compile_ahead=list)


def pointwise(x, bounds, rate, *, bias, phases_in=1, phases_out=1) -> torch.Tensor:
    """An activation without filters, for a graph: the vocoder's own in plain torch depends on values of `bounds`."""
    sounds = (bounds[1] > bounds[0]).repeat_interleave(rate)[:, None]
    return in_phases((in_phases(x, len(x) // phases_in) + bias).tanh().where(sounds, 0.0), phases_out)


def loud_vocoder(channels: int = 64) -> torch.nn.Module:
    """With weights that preserve a signal's scale, unlike transformers' initial ones."""
    vocoder = token2wav(channels).code2wav_bigvgan_model
    for module in vocoder.modules():
        if isinstance(module, torch.nn.Conv1d):
            module.weight.data.normal_(0, module.weight[0].numel() ** -0.5)
        elif isinstance(module, torch.nn.ConvTranspose1d):
            inputs = module.weight.shape[0] * module.weight.shape[2] / module.stride[0]
            module.weight.data.normal_(0, inputs**-0.5)
        elif isinstance(module, Qwen2_5OmniSnakeBeta):
            module.alpha.data.normal_(0, 0.3)
            module.beta.data.normal_(0, 0.3)
    return vocoder


# --- Memory ---


def test_layers_that_joined_ones_were_made_of_are_freed() -> None:
    stage = Token2WavConfig.create("token2wav", backend="vllm", batching="padded")
    model: Any = SimpleNamespace(token2wav=token2wav(), speakers=VOICES)
    attention = model.token2wav.code2wav_dit_model.transformer_blocks[0].attn
    unjoined = [weakref.ref(part.weight) for part in (attention.to_q, attention.to_k, attention.to_v)]
    del attention
    Qwen2_5OmniToken2WavForDiffusion.prepare(model, stage)
    gc.collect()
    assert [weight() for weight in unjoined] == [None] * 3
    assert model.token2wav.device.type == "cpu"


def test_graphs_of_denoiser_and_vocoder_share_one_pool(monkeypatch) -> None:
    backend = FakeBackend()

    def captured(module: torch.nn.Module, mode: str, **keys: Any) -> GraphMode:
        keys["device"] = torch.device(keys["device"])
        return GraphMode(module, backend, **keys)

    def fused(self: CpuPlatform, vocoder: torch.nn.Module) -> PackedVocoder:
        return PackedVocoder(vocoder, lambda module: pointwise, plain_mean, compile_ahead=list)

    monkeypatch.setattr("omni_cli.models.qwen2_5_omni.token2wav.synthesizer.make_execution_mode", captured)
    monkeypatch.setattr(CpuPlatform, "make_vocoder", fused)
    scheduler = speech_scheduler("padded", execution="cudagraph")
    scheduler.add(request_for("Chelsie", 12, 0.5))
    with torch.inference_mode():
        (samples,) = spoken(scheduler, 1).values()
    assert samples.std() > 0
    assert len(backend.graphs) == 2, "the denoiser's and the vocoder's"


def test_a_layer_is_freed_before_the_next_one_is_joined() -> None:
    dit = token2wav().code2wav_dit_model
    layers = [weakref.ref(layer.attn.to_q.weight) for layer in dit.transformer_blocks]
    num_alive: list[int] = []

    class Watching(Platform):
        def make_linear(self, linear: torch.nn.Linear, gelu: torch.nn.GELU | None = None) -> torch.nn.Module:
            num_alive.append(sum(layer() is not None for layer in layers))
            return super().make_linear(linear, gelu)

    PackedVelocity(dit, Watching())
    # Four products in each layer, and one before and one after all.
    assert num_alive[: 4 * len(layers)] == [left for left in range(len(layers), 0, -1) for _ in range(4)]


@torch.inference_mode()
def test_requests_that_are_denoised_hold_nothing_that_only_evaluations_need() -> None:
    velocity, conditioner = packed_velocity()
    denoising = Denoising(velocity, conditioner, mixed(0.5), carries=True)
    denoising.step()
    held = [weakref.ref(tensor) for tensor in (denoising._carried, *denoising._inputs)]
    denoising.step()
    assert [tensor() for tensor in held] == [None] * 5
    denoising.drop({"1"})
    assert list(denoising.mels()) == ["0", "2", "3"]


@torch.inference_mode()
def test_the_parts_of_a_stage_of_the_vocoder_are_freed_before_the_next_are_made() -> None:
    parts: list[weakref.ref[torch.Tensor]] = []
    num_alive: list[int] = []

    def watched(module: torch.nn.Module) -> Any:
        activation = PlainActivation(module)

        def run(*args: Any, **keys: Any) -> torch.Tensor:
            num_alive.append(sum(part() is not None for part in parts))
            return activation(*args, **keys)

        return run

    def mean(given: list[torch.Tensor], *args: Any, **keys: Any) -> torch.Tensor:
        parts[:] = map(weakref.ref, given)
        return plain_mean(given, *args, **keys)

    vocoder = PackedVocoder(loud_vocoder(), watched, mean, compile_ahead=list)
    dict(vocoder.waveforms([VocoderInput("0", torch.randn(1, 20, 80), 0, 4800)]))
    assert len(parts) > 1 and len(num_alive) > 2
    assert set(num_alive) == {0}


# --- Requests that join and leave ---


def speech_scheduler(batching: str, **keys) -> SpeechScheduler:
    stage = Token2WavConfig.create("token2wav", backend="vllm", batching=batching, **keys)
    return SpeechScheduler(Synthesizer(token2wav(), VOICES, stage))


def spoken(scheduler: SpeechScheduler, count: int) -> dict[str, torch.Tensor]:
    """Advance until `count` waveforms are made; return them in that order."""
    made: dict[str, torch.Tensor] = {}
    while len(made) < count:
        made.update(scheduler.advance())
    return made


@torch.inference_mode()
def test_exact_requests_that_join_and_leave_change_no_bit_of_the_others():
    first, second, third = (request_for("Chelsie", 12, 0.5, name) for name in ("first", "second", "third"))
    scheduler = speech_scheduler("exact")
    scheduler.add(first)
    alone = spoken(scheduler, 1)["first"]
    scheduler.drop("first")
    scheduler.add(first)
    scheduler.advance()
    for each in (second, third):
        scheduler.add(each)
    scheduler.advance()
    scheduler.drop("first")
    made = spoken(scheduler, 2)
    assert list(made) == ["second", "third"]
    assert all(torch.equal(samples, alone) for samples in made.values())
    assert "first" not in scheduler and len(scheduler.seconds("second")) == 3, "two steps and the vocoder"


@pytest.mark.parametrize(("batching", "num_threads"), [("exact", 2), ("padded", 1)], indirect=["num_threads"])
@torch.inference_mode()
def test_a_request_with_priority_overtakes_one_that_runs(batching, num_threads):
    scheduler = speech_scheduler(batching)
    scheduler.get_order = lambda name: (("urgent", "first", "later").index(name),)
    for name in ("later", "first", "urgent"):
        scheduler.add(request_for("Chelsie", 12, 0.5, name))
        scheduler.advance()
        assert [own for own, *_ in scheduler.finished_steps] == [name]
    assert list(spoken(scheduler, 3)) == ["urgent", "first", "later"]


@pytest.fixture
def equally_long(monkeypatch):
    """Make tasks that start together end together, so that the order of all is known."""
    finished = WorkerPool.finished

    def all_finished(workers: WorkerPool) -> list:
        workers.wait_for_all()
        return finished(workers)

    monkeypatch.setattr(WorkerPool, "finished", all_finished)


@pytest.mark.usefixtures("equally_long")
@pytest.mark.parametrize("num_threads", [2], indirect=True)
@torch.inference_mode()
def test_padded_requests_on_a_cpu_run_one_per_thread_in_order_of_priority(num_threads):
    scheduler = speech_scheduler("padded")
    scheduler.get_order = lambda name: (("urgent", "first", "later", "last").index(name),)
    ran = []
    for name in ("last", "later", "first", "urgent"):
        scheduler.add(request_for("Chelsie", 130, 0.5, name))
        scheduler.advance()
        ran.append([name for name, *_ in scheduler.finished_steps])
    # The latest comes with each call, and the last of all, which is denoised, makes its waveform beside the third.
    assert ran == [["last"], ["later", "last"], ["first"], ["urgent", "first"]]
    assert list(spoken(scheduler, 3)) == ["first", "urgent", "later"]


@pytest.mark.usefixtures("equally_long")
@pytest.mark.parametrize("num_threads", [2], indirect=True)
@torch.inference_mode()
def test_of_the_last_three_requests_for_two_workers_two_alternate_so_that_none_is_left_alone(num_threads):
    # Letters are steps, capitals waveforms.
    assert order_of("abcd") == ["ab", "ab", "ab", "ab", "AB", "cd", "cd", "cd", "cd", "CD"]
    assert order_of("abc") == ["ab", "ac", "ab", "ac", "Ab", "bc", "Bc", "C"]


def order_of(names: str) -> list[str]:
    """Requests of four steps, added at once, as each call of two workers advances them."""
    scheduler = speech_scheduler("padded")
    for name in names:
        asked = request_for("Chelsie", 130, 0.5, name)
        scheduler.add(dataclasses.replace(asked, sampling=dataclasses.replace(asked.sampling, num_steps=5)))
    ran, num_made = [], 0
    while num_made < len(names):
        made = "".join(scheduler.advance())
        num_made += len(made)
        ran.append(made.upper() + "".join(name for name, *_ in scheduler.finished_steps))
    return ran


@pytest.mark.parametrize("num_threads", [2], indirect=True)
@torch.inference_mode()
def test_a_worker_goes_on_while_another_lasts_and_a_request_that_leaves_meanwhile_is_not_waited_for(
    num_threads, monkeypatch
):
    release, step = threading.Event(), Denoising.step

    def held(denoising: Denoising) -> None:
        assert denoising.mels().keys() != {"lasts"} or release.wait(60)
        step(denoising)

    monkeypatch.setattr(Denoising, "step", held)
    scheduler = speech_scheduler("padded")
    for name in ("lasts", "short", "next"):
        scheduler.add(request_for("Chelsie", 130, 0.5, name))
    assert list(spoken(scheduler, 2)) == ["short", "next"], "two steps and a waveform each beside one step"
    scheduler.drop("lasts")
    scheduler.add(request_for("Chelsie", 130, 0.5, "last"))
    assert list(spoken(scheduler, 1)) == ["last"]
    release.set()
    assert scheduler.advance() == {} and not scheduler.finished_steps and "lasts" not in scheduler


@pytest.mark.parametrize("num_threads", [2], indirect=True)
@torch.inference_mode()
def test_a_request_that_leaves_a_group_waits_for_the_step_of_the_others(num_threads, monkeypatch):
    release, step = threading.Event(), Denoising.step

    def held(denoising: Denoising) -> None:
        assert "gone" not in denoising.mels() or release.wait(60)
        step(denoising)

    monkeypatch.setattr(Denoising, "step", held)
    scheduler = speech_scheduler("padded")
    for name in ("stays", "gone", "a", "b"):
        scheduler.add(request_for("Chelsie", 12, 0.5, name))
    assert scheduler.advance() == {} and {name for name, *_ in scheduler.finished_steps} == {"a", "b"}
    threading.Timer(0.2, release.set).start()
    scheduler.drop("gone")
    assert release.is_set()
    made = spoken(scheduler, 3)
    assert made.keys() == {"stays", "a", "b"} and len(scheduler.seconds("stays")) == 3, "two steps and the vocoder"
    torch.testing.assert_close(made["stays"], made["a"], rtol=0, atol=1e-5)


@pytest.mark.usefixtures("equally_long")
@pytest.mark.parametrize("num_threads", [2], indirect=True)
@torch.inference_mode()
def test_padded_requests_of_workers_sound_as_each_does_alone_and_one_that_leaves_changes_nothing(num_threads):
    requests = [request_for("Chelsie", num_codes, 0.5, str(num_codes)) for num_codes in (50, 33, 12, 7)]
    scheduler, alone = speech_scheduler("padded"), {}
    for each in requests:
        scheduler.add(each)
        alone |= spoken(scheduler, 1)
        assert scheduler.advance() == {}, "nothing is left"
        scheduler.drop(each.request_id)
    for each in (*requests, request_for("Ethan", 50, 0.5, "gone")):
        scheduler.add(each)
    scheduler.advance()
    assert len(scheduler.finished_steps) > 1
    scheduler.drop("gone")
    made = spoken(scheduler, 4)
    assert made.keys() == alone.keys()
    for name, samples in made.items():
        torch.testing.assert_close(samples, alone[name], rtol=0, atol=1e-5)
        assert len(scheduler.seconds(name)) == 3, "two steps and the vocoder"


@pytest.mark.parametrize("num_threads", [1], indirect=True)
@torch.inference_mode()
def test_padded_requests_on_a_cpu_run_in_groups_that_fill_a_call_in_their_order(num_threads):
    scheduler = speech_scheduler("padded")
    for index in range(3):
        scheduler.add(request_for("Chelsie", 70, 0.5, str(index)))
    ran = []
    for _ in range(2):
        scheduler.advance()
        ran.append([name for name, *_ in scheduler.finished_steps])
    # 70 codes are 12 blocks with guidance.
    assert ran == [["0", "1"], ["0", "1"]]
    assert list(spoken(scheduler, 3)) == ["0", "1", "2"]


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    """Make all requests run together, as they do where that is faster."""
    monkeypatch.setattr(CpuPlatform, "runs_together", True)


def four_steps(request_id: str, num_codes: int = 12) -> SynthesisRequest:
    request = request_for("Chelsie", num_codes, 0.5, request_id)
    return dataclasses.replace(request, sampling=DenoisingSettings(5, 0.5, -1.0))


def steps(scheduler: SpeechScheduler, *arriving: SynthesisRequest) -> list[str]:
    """Advance with `arriving` requests; return the ids of those that made a step."""
    for each in arriving:
        scheduler.add(each)
    scheduler.advance()
    return [name for name, *_ in scheduler.finished_steps]


@pytest.mark.usefixtures("as_on_a_gpu")
@pytest.mark.parametrize("num_threads", [1], indirect=True)
@torch.inference_mode()
def test_requests_that_come_while_others_run_start_together_after_those(num_threads):
    scheduler = speech_scheduler("padded")
    requests = [four_steps(name, 5 + index) for index, name in enumerate("abcd")]
    alone = {}
    for each in requests:
        single = speech_scheduler("padded")
        single.add(each)
        alone |= spoken(single, 1)
    assert [steps(scheduler, requests[0]), steps(scheduler)] == [["a"]] * 2
    assert [steps(scheduler, requests[1]), steps(scheduler, *requests[2:])] == [["a"]] * 2
    made = scheduler.advance()
    assert list(made) == ["a"], "a waveform comes before the next steps"
    assert [steps(scheduler) for _ in range(4)] == [["b", "c", "d"]] * 4
    made |= scheduler.advance()
    for name, samples in made.items():
        torch.testing.assert_close(samples, alone[name], rtol=0, atol=1e-5)


@pytest.mark.usefixtures("as_on_a_gpu")
@pytest.mark.parametrize("num_threads", [1], indirect=True)
@torch.inference_mode()
def test_a_request_after_its_first_step_begins_again_with_those_that_come_if_they_are_as_many(num_threads):
    scheduler = speech_scheduler("padded")
    assert steps(scheduler, four_steps("a")) == ["a"]
    assert [steps(scheduler, four_steps("b")), *(steps(scheduler) for _ in range(3))] == [["a", "b"]] * 4
    assert scheduler.advance().keys() == {"a", "b"}
    assert [len(scheduler.seconds(name)) for name in "ab"] == [5, 5], "four steps and the vocoder"
    assert steps(scheduler, four_steps("c"), four_steps("d")) == ["c", "d"]
    assert [steps(scheduler, four_steps("e")), steps(scheduler)] == [["c", "d"]] * 2, "fewer come than would restart"


@pytest.mark.usefixtures("as_on_a_gpu")
@pytest.mark.parametrize("num_threads", [1], indirect=True)
@torch.inference_mode()
def test_only_a_higher_priority_interrupts_requests_that_run_together(num_threads):
    scheduler = speech_scheduler("padded")
    # Within a priority, the latest comes first.
    scheduler.get_order = lambda name: ("ul".index(name[0]), -int(name[1]))
    assert [steps(scheduler, four_steps("l0")), steps(scheduler)] == [["l0"]] * 2
    assert steps(scheduler, four_steps("l1")) == ["l0"]
    assert steps(scheduler, four_steps("u2"), four_steps("u3")) == ["u3", "u2"]
    assert list(spoken(scheduler, 4)) == ["u3", "u2", "l0", "l1"]
