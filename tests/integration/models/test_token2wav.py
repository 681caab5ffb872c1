"""token2wav's DiT in each mode: the speaker's embedding is an input, whatever its forward is made to be."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.fake_graphs import FakeBackend
from support.stage_specs import spec_of

from omni_cli.compat.torchvision import ensure_torchvision_importable

ensure_torchvision_importable()

from transformers import AutoConfig  # noqa: E402
from transformers.models.qwen2_5_omni.modeling_qwen2_5_omni import Qwen2_5OmniToken2WavModel  # noqa: E402

from omni_cli.checkpoints.resolve import resolve_model  # noqa: E402
from omni_cli.config.schema import Execution  # noqa: E402
from omni_cli.errors import StageError  # noqa: E402
from omni_cli.execution.denoiser import GraphDenoiser, prepare_denoiser  # noqa: E402
from omni_cli.models.qwen2_5_omni.settings import Token2WavConfig  # noqa: E402
from omni_cli.models.qwen2_5_omni.speaker_embeddings import SpeakerEmbeddings  # noqa: E402
from omni_cli.models.registry import load_stage  # noqa: E402
from omni_cli.stage.messages import Progress, RequestDone, StageRequest, WaveformChunk  # noqa: E402
from omni_cli.stage.payloads import encode_additional_information  # noqa: E402
from omni_cli.stage.protocol import StageSpec  # noqa: E402

SPEAKERS = {"Chelsie": 1, "Ethan": 2}


def token2wav() -> Qwen2_5OmniToken2WavModel:
    torch.manual_seed(0)
    config = AutoConfig.from_pretrained(resolve_model("builtin:tiny-omni")).token2wav_config
    return Qwen2_5OmniToken2WavModel(config).eval()


def speak(
    model, name: str, num_codes: int, guidance_scale: float, embeddings=None, num_frames: int | None = None
) -> torch.Tensor:
    """A mel spectrogram of the speaker, whose reference has `num_frames`; `embeddings` get the speaker."""
    dit = model.code2wav_dit_model
    draw = torch.Generator().manual_seed(SPEAKERS[name])
    voice = torch.randn(1, dit.config.enc_emb_dim, generator=draw)
    reference = torch.randn(1, num_frames or 30 * SPEAKERS[name], dit.config.mel_dim, generator=draw)
    codes = torch.arange(num_codes)[None] % dit.config.num_embeds
    if embeddings is not None:
        embeddings.speaker = name
    torch.manual_seed(5)
    return dit.sample(voice, reference, codes, num_steps=3, guidance_scale=guidance_scale)


REQUESTS = [("Chelsie", 12, 0.5), ("Ethan", 12, 0.5), ("Chelsie", 12, 0.5), ("Ethan", 7, 0.0), ("Chelsie", 12, 0.0)]


def test_alternating_speakers_sound_as_in_transformers_and_are_encoded_once_each():
    plain, model = token2wav(), token2wav()
    encoder, runs = model.code2wav_dit_model.input_embed.spk_encoder, []
    encoder.blocks[0].register_forward_hook(lambda *_: runs.append(1))
    embeddings = SpeakerEmbeddings(model.code2wav_dit_model)
    for request in REQUESTS:
        assert torch.equal(speak(model, *request, embeddings), speak(plain, *request))
    assert len(runs) == 4, "two speakers, each with guidance and without"


def test_one_graph_serves_every_speaker_with_a_reference_of_its_length():
    plain, model = token2wav(), token2wav()
    dit = model.code2wav_dit_model
    embeddings = SpeakerEmbeddings(dit)
    denoiser = GraphDenoiser(dit, FakeBackend(), stage="token2wav", device=torch.device("cpu"), max_graphs=8)
    for name in SPEAKERS:
        made = speak(model, name, 12, 0.5, embeddings, num_frames=30)
        assert torch.equal(made, speak(plain, name, 12, 0.5, num_frames=30)), name
    assert (denoiser.counters.graphs_captured, denoiser.counters.graph_replays) == (1, 16)


def test_a_graph_for_each_number_of_codes_and_kind_of_guidance():
    plain, model = token2wav(), token2wav()
    embeddings = SpeakerEmbeddings(model.code2wav_dit_model)
    denoiser = GraphDenoiser(
        model.code2wav_dit_model, FakeBackend(), stage="token2wav", device=torch.device("cpu"), max_graphs=2
    )
    for request in REQUESTS:
        assert torch.equal(speak(model, *request, embeddings), speak(plain, *request))
    counters = denoiser.counters
    # The speakers' references differ in length, so the third request has its graph from the first.
    assert (counters.graphs_captured, counters.graphs_evicted) == (4, 2)
    assert (counters.graph_replays, counters.eager_calls) == (40, 0)


@pytest.mark.slow
def test_compiled_blocks_serve_every_number_of_codes():
    plain, model = token2wav(), token2wav()
    embeddings = SpeakerEmbeddings(model.code2wav_dit_model)
    denoiser = prepare_denoiser(model.code2wav_dit_model, "compile", stage="token2wav", device="cpu", dynamic=True)
    assert denoiser.counters.compiled_regions == len(model.code2wav_dit_model.transformer_blocks)
    speak(model, "Chelsie", 20, 0.5, embeddings)
    compiled = denoiser.counters.as_dict()
    for num_codes in (12, 31):
        request = ("Ethan", num_codes, 0.5)
        torch.testing.assert_close(speak(model, *request, embeddings), speak(plain, *request), rtol=0, atol=1e-5)
    assert denoiser.counters.as_dict() == compiled, "no length compiles anew"
    denoiser.close()


# --- The stage ---


def spec(execution: Execution) -> StageSpec:
    stage = Token2WavConfig.named(
        name="token2wav", backend="vllm", input="talker", num_inference_steps=4, execution=execution
    )
    return spec_of(stage, resolve_model("builtin:tiny-omni"))


def codes(request_id: str, num_codes: int, **fields) -> StageRequest:
    handoff = encode_additional_information({"codec_token_ids": list(range(num_codes))})
    return StageRequest(request_id, seed=3, handoff=handoff, **fields)


def waveform(stage, request_id: str, num_codes: int) -> np.ndarray:
    stage.add(codes(request_id, num_codes))
    reports = []
    while stage.has_work():
        reports += stage.step()
    (done,) = reports
    assert isinstance(done, RequestDone)
    return done.audio.samples.numpy()


@pytest.mark.slow
def test_the_stage_compiles_while_it_loads_and_sounds_nearly_as_it_did():
    made = {}
    for execution in ("eager", "compile"):
        stage = load_stage(spec(execution), lambda report: None)
        assert stage.effective["execution"] == stage.settings["execution"] == execution
        loaded = stage.engagement
        made[execution] = waveform(stage, "0", 33)
        ran = {name: value - loaded[name] for name, value in stage.engagement.items()}
        if execution == "eager":
            assert ran["eager_calls"] == 12 and loaded["compiled_graphs"] == 0
        else:
            assert loaded["compiled_graphs"] >= 1 and loaded["compile_s"] > 0
            assert ran["compiled_graphs"] == ran["compile_s"] == ran["eager_calls"] == 0
        stage.close()
    assert made["eager"].std() > 0.01
    np.testing.assert_allclose(made["compile"], made["eager"], rtol=0, atol=1e-5)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has what the test says that it lacks")
def test_cudagraph_without_cuda_is_refused_before_the_engine_is_made():
    with pytest.raises(StageError, match="needs a CUDA device, and this machine has none") as caught:
        load_stage(spec("cudagraph"), lambda report: None)
    assert caught.value.hint == "--set token2wav.execution=eager"


@pytest.mark.slow
@pytest.mark.parametrize("streams", [False, True])
def test_an_interrupt_leaves_a_running_request_at_the_next_step_and_the_others_finish(streams):
    emitted, unwanted = [], set()

    def emit(report) -> None:
        emitted.append(report)
        if report.request_id in unwanted:
            # What the reader of commands does, from its thread, when an abort arrives.
            stage.interrupt(report.request_id)

    stage = load_stage(spec("eager"), emit)
    try:
        alone = waveform(stage, "alone", 33)
        emitted.clear()
        unwanted.add("gone")
        for request in (codes("first", 33), codes("gone", 120, streams=streams), codes("third", 33)):
            stage.add(request)
        done = []
        while len(done) < 2:
            done += stage.step()
        stage.abort("gone")
        assert [(type(report), report.request_id) for report in done] == [
            (RequestDone, "first"),
            (RequestDone, "third"),
        ]
        for report in done:
            np.testing.assert_array_equal(report.audio.samples.numpy(), alone)
        # Of a stream the first sign is its first chunk, after which its others are in the same batch.
        (sign,) = [report for report in emitted if report.request_id == "gone"]
        assert isinstance(sign, WaveformChunk if streams else Progress)
        assert not stage.has_work() and not stage.active and not stage._marks_of and not stage._cancelled
        np.testing.assert_array_equal(waveform(stage, "gone again", 33), alone)
    finally:
        stage.close()
