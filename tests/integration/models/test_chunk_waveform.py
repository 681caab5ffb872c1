"""Audio made in chunks against audio made as a whole, by token2wav with random weights of its own builders."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig
from transformers.models.qwen2_5_omni.modeling_qwen2_5_omni import Qwen2_5OmniToken2WavModel

from omni_cli.checkpoints.resolve import resolve_model
from omni_cli.checkpoints.tiny_qwen import OmniSizes, VocoderSizes, qwen2_5_omni
from omni_cli.models.qwen2_5_omni.settings import Token2WavConfig
from omni_cli.models.qwen2_5_omni.token2wav.denoising import Conditioner, Denoising
from omni_cli.models.qwen2_5_omni.token2wav.platform import Vocoder, VocoderInput
from omni_cli.models.qwen2_5_omni.token2wav.request import Chunker, ChunkSizes, DenoisingSettings, SynthesisRequest
from omni_cli.models.qwen2_5_omni.token2wav.scheduler import SpeechScheduler
from omni_cli.models.qwen2_5_omni.token2wav.synthesizer import Synthesizer
from omni_cli.models.qwen2_5_omni.token2wav.velocity import Velocity

pytestmark = pytest.mark.usefixtures("one_thread")
SEED = 3
# The bound in `ChunkSizes`, for samples in [-1, 1].
BOUND = 1e-3


def load(folder: str | Path) -> tuple[Qwen2_5OmniToken2WavModel, dict[str, torch.Tensor]]:
    """token2wav with a checkpoint's weights, and one of its speakers."""
    model = Qwen2_5OmniToken2WavModel(AutoConfig.from_pretrained(folder).token2wav_config).eval()
    prefix = "token2wav."
    weights = [load_file(shard) for shard in Path(folder).glob("*.safetensors")]
    model.load_state_dict(
        {name.removeprefix(prefix): w for part in weights for name, w in part.items() if name.startswith(prefix)}
    )
    return model, torch.load(Path(folder) / "spk_dict.pt", weights_only=True)["Chelsie"]


@pytest.fixture(scope="module")
def tiny():
    return load(resolve_model("builtin:tiny-omni"))


@pytest.fixture(scope="module")
def deep(tmp_path_factory):
    """More layers between those that look ahead and back, and different weights."""
    folder = tmp_path_factory.mktemp("deep")
    qwen2_5_omni(OmniSizes(token2wav=VocoderSizes(64, 10, 2, 32, 32, 64))).write(folder, seed=1)
    return load(folder)


def codes_of(num_codes: int) -> torch.Tensor:
    return torch.randint(0, 250, (1, num_codes), generator=torch.Generator().manual_seed(num_codes))


SAMPLING: dict[str, Any] = {"num_steps": 10, "guidance_scale": 0.5, "sway_coefficient": -1.0}


@torch.inference_mode()
def whole(model, speaker, codes: torch.Tensor, **sampling: float) -> torch.Tensor:
    torch.manual_seed(SEED)
    mel = speaker["ref_mel"].float()
    return model(codes, conditioning=speaker["cond"].float(), reference_mel=mel, **{**SAMPLING, **sampling})


@torch.inference_mode()
def joined(model, speaker, codes: torch.Tensor, sizes: ChunkSizes, **sampling: float) -> torch.Tensor:
    chunks = Chunker(sizes).add(codes[0].tolist(), is_last=True)
    given, velocity = DenoisingSettings(**{**SAMPLING, **sampling}), Velocity(model.code2wav_dit_model)
    made = []
    for index, chunk in enumerate(chunks):
        request = SynthesisRequest(
            str(index), torch.tensor(chunk.codes), chunk.codes_start, chunk.start, chunk.end, SEED, "one", given
        )
        made.append(waveform(model, velocity, speaker, request))
    return torch.cat(made)


def mel_of(velocity: Velocity, speaker, request: SynthesisRequest) -> torch.Tensor:
    denoising = Denoising(velocity, Conditioner(velocity.dit, {"one": speaker}), [request])
    for _ in range(request.sampling.num_steps - 1):
        denoising.step()
    return denoising.mels()[request.request_id]


def waveform(model, velocity: Velocity, speaker, request: SynthesisRequest) -> torch.Tensor:
    vocoder = Vocoder(model.code2wav_bigvgan_model)
    mel = mel_of(velocity, speaker, request)
    heard = VocoderInput.from_mel(
        request, mel, repeats=velocity.dit.repeats, samples_per_frame=vocoder.samples_per_frame
    )
    ((_, samples),) = vocoder.waveforms([heard])
    return samples


@pytest.mark.parametrize("guidance_scale", [0.5, 0.0])
@torch.inference_mode()
def test_denoising_is_that_of_the_model_bit_for_bit(tiny, guidance_scale):
    model, speaker = tiny
    dit, codes = model.code2wav_dit_model, codes_of(30)
    voice, reference = speaker["cond"].float(), speaker["ref_mel"].float()
    torch.manual_seed(SEED)
    own = dit.sample(voice, reference, codes, num_steps=4, guidance_scale=guidance_scale, sway_coefficient=-1.0)
    request = SynthesisRequest("0", codes[0], 0, 0, 30, SEED, "one", DenoisingSettings(4, guidance_scale, -1.0))
    ours = mel_of(Velocity(dit), speaker, request)
    assert torch.equal(ours.permute(0, 2, 1), own)
    torch.manual_seed(SEED)
    again = dit.sample(voice, reference, codes, num_steps=4, guidance_scale=guidance_scale, sway_coefficient=-1.0)
    assert torch.equal(again, own), "the model itself stays as it is"


@pytest.mark.parametrize(("name", "num_codes"), [("tiny", 170), ("deep", 97)])
def test_joined_chunks_are_within_the_bound_of_the_whole(request, name, num_codes):
    model, speaker = request.getfixturevalue(name)
    codes = codes_of(num_codes)
    expected = whole(model, speaker, codes)
    made = joined(model, speaker, codes, ChunkSizes())
    assert made.shape == expected.shape
    difference = (made - expected).abs().max()
    assert difference < BOUND
    assert expected.abs().max() > 100 * BOUND, "silence would be within any bound"


@torch.inference_mode()
def carried(model, speaker, codes: torch.Tensor, sizes: ChunkSizes) -> torch.Tensor:
    """Join the chunks of a stream whose last comes first, and of another one beside it."""
    stage = Token2WavConfig.create("token2wav", backend="vllm", batching="padded")
    scheduler = SpeechScheduler(Synthesizer(copy.deepcopy(model), {"one": speaker}, stage))
    chunks = Chunker(sizes).add(codes[0].tolist(), is_last=True)
    for stream in ("0", "1"):
        for chunk in reversed(chunks):
            request = SynthesisRequest(
                f"{stream} {chunk.start}", torch.tensor(chunk.codes), chunk.codes_start, chunk.start, chunk.end, SEED,
                "one", DenoisingSettings(**SAMPLING), stream, chunk.continues_at,
            )  # fmt: skip
            scheduler.add(request)
    made: dict[str, torch.Tensor] = {}
    while len(made) < 2 * len(chunks):
        made.update(scheduler.advance())
    return torch.cat([made[f"1 {chunk.start}"] for chunk in chunks])


@pytest.mark.parametrize(("name", "num_codes"), [("tiny", 170), ("deep", 97)])
def test_chunks_that_carry_keys_and_values_on_differ_by_what_they_do_not_see_ahead(request, name, num_codes):
    model, speaker = request.getfixturevalue(name)
    codes = codes_of(num_codes)
    expected = whole(model, speaker, codes)
    far, default = (carried(model, speaker, codes, ChunkSizes(context=0, look_ahead=size)) for size in (48, 24))
    assert (default - expected).abs().max() < BOUND
    torch.testing.assert_close(far, expected, rtol=0, atol=BOUND / 100)


def test_audio_that_is_not_held_back_is_beyond_the_bound(tiny):
    model, speaker = tiny
    codes = codes_of(60)
    made = carried(model, speaker, codes, ChunkSizes(context=0, held_back=0))
    assert (made - whole(model, speaker, codes)).abs().max() > BOUND


def test_more_context_reduces_the_difference(tiny):
    """The bound depends on the context: without it, chunks differ."""
    model, speaker = tiny
    codes = codes_of(120)
    expected = whole(model, speaker, codes)
    differences = [
        float((joined(model, speaker, codes, ChunkSizes(24, 24, context, ahead, 0)) - expected).abs().max())
        for context, ahead in [(0, 12), (12, 12), (24, 24), (48, 48)]
    ]
    assert differences == sorted(differences, reverse=True)
    assert differences[0] > 10 * BOUND and differences[-1] < BOUND / 100


def test_one_chunk_of_all_codes_is_the_whole(tiny):
    model, speaker = tiny
    codes = codes_of(20)
    dit = model.code2wav_dit_model
    assert ChunkSizes().first_chunk * dit.repeats == dit.block_size
    torch.testing.assert_close(
        joined(model, speaker, codes, ChunkSizes()), whole(model, speaker, codes), rtol=0, atol=1e-6
    )
