"""Qwen3-TTS's codes, waveforms and voices are those of its publisher's package, stored by `qwen3_tts_golden.py`."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from support.request_fields import with_fields
from transformers import MimiConfig, MimiModel
from transformers.models.qwen3_omni_moe.configuration_qwen3_omni_moe import Qwen3OmniMoeCode2WavConfig

from omni_cli.checkpoints.resolve import resolve_model
from omni_cli.config.families import published_needs
from omni_cli.config.loader import load_profile
from omni_cli.models.qwen3_tts.encoder import VoiceEncoder, load_part
from omni_cli.models.qwen3_tts.modules import SpeechDecoder, SpeechTokenizerConfig
from omni_cli.models.qwen3_tts.reference import Qwen3TTSReference
from omni_cli.models.qwen3_tts.tiny import _make_talker
from omni_cli.models.scores import Way
from omni_cli.requests.contents import ReferenceVoice, SpeechOptions, TranscriptionOptions
from omni_cli.requests.outputs import AudioOutput, GenerateRequest, Message, Part

ROOT = Path(__file__).parents[2]
STORED = json.loads((ROOT / "tests/data/qwen3_tts.json").read_text())
LIMIT = "talker.sampling.max_tokens=12"
EVERY = 64


def recording(rate: int) -> np.ndarray:
    seconds = np.arange(rate * 3 // 2) / rate
    return (0.4 * np.sin(2 * np.pi * (200 + 300 * seconds) * seconds)).astype(np.float32)


def spoken(
    text: str, speaker: str | None = None, language: str | None = None, how: str | None = None
) -> GenerateRequest:
    parts = () if how is None else (Message("system", (Part("text", how),)),)
    messages = (*parts, Message("user", (Part("text", text),)))
    return GenerateRequest(
        text,
        messages=messages,
        speech=SpeechOptions(speaker=speaker),
        transcription=TranscriptionOptions(language=language),
    )


def cloned(words: str | None) -> GenerateRequest:
    voices = (ReferenceVoice(recording(24_000), 24_000, words),)
    return with_fields(spoken("Hello, and welcome!"), voices=voices)


# As in the script.
REQUESTS = {
    "tiny-qwen3-tts": [
        spoken("Hello, and welcome!", "vivian", "english"),
        spoken("Good morning.", "dylan", how="Very slowly."),
    ],
    "tiny-qwen3-tts-design": [spoken("Hello, and welcome!", language="de", how="A warm voice.")],
    "tiny-qwen3-tts-base": [cloned("The sea."), cloned(None)],
}


@pytest.mark.parametrize("name", REQUESTS)
def test_frames_and_waveforms_are_the_publishers(start_brief_engine, name):
    engine = start_brief_engine("tiny-qwen3-tts", LIMIT, model=f"builtin:{name}")
    for request, stored in zip(REQUESTS[name], STORED["spoken"][name], strict=True):
        result = engine.run(request)
        assert result.error is None, result.error
        assert [list(frame) for frame in result.stages[0].output_codes] == stored["frames"]
        assert result.stages[0].num_input_tokens == stored["num_input_tokens"]
        (audio,) = [output for output in result.outputs if isinstance(output, AudioOutput)]
        assert np.abs(stored["samples"]).max() > 0.05
        np.testing.assert_allclose(audio.samples[::EVERY], stored["samples"], atol=1e-4, rtol=0)


@pytest.fixture(scope="module")
def base():
    return Path(resolve_model("builtin:tiny-qwen3-tts-base"))


@pytest.mark.parametrize("rate", [16_000, 24_000, 44_100])
def test_a_recordings_codes_and_voice_are_the_publishers(base, rate):
    stored, encoder = STORED["encoded"][str(rate)], VoiceEncoder(base)
    assert encoder.encode(recording(rate), rate).tolist() == stored["codes"]
    np.testing.assert_allclose(encoder.embed(recording(rate), rate), stored["embedding"], atol=1e-5, rtol=0)


def test_every_frame_of_a_decoders_state_is_kept(base):
    """Pieces give the samples of the whole beyond the transformer's window of 72 frames, too."""
    from omni_cli.models.codec.streaming import DecoderState, Piece, StreamingCodecDecoder

    config = SpeechTokenizerConfig.from_pretrained(base / "speech_tokenizer")
    decoder = load_part(SpeechDecoder(config.decoder_config), base / "speech_tokenizer", "decoder.")
    codes = torch.randint(0, 128, (16, 200), generator=torch.Generator().manual_seed(0))
    streaming, state = StreamingCodecDecoder(decoder), DecoderState()
    with torch.inference_mode():
        whole = decoder(codes[None])[0, 0]
    pieces = [streaming.decode([Piece(piece, state)])[0] for piece in codes.split(7, dim=1)]
    torch.testing.assert_close(torch.cat(pieces), whole, atol=1e-5, rtol=0)
    assert len(whole) == 200 * 1920


def test_the_publishers_package_runs_in_its_own_python(base):
    python = Path(os.environ.get("QWEN3_TTS_PYTHON", ROOT / ".reference-qwen3-tts/bin/python"))
    if not python.exists():
        pytest.skip("the publisher's package is not installed: `make reference-qwen3-tts`")
    config = load_profile("tiny-qwen3-tts", [LIMIT, f"model={base}"])
    reference = Qwen3TTSReference(base, config, Way("float32"), str(python))
    for request, stored in zip(REQUESTS["tiny-qwen3-tts-base"], STORED["spoken"]["tiny-qwen3-tts-base"], strict=True):
        assert list(map(list, reference.speak(request).codes)) == stored["frames"]


def count_parameters(module: torch.nn.Module) -> int:
    return sum(tensor.numel() for tensor in module.state_dict().values())


@pytest.mark.parametrize(("size", "width", "inner"), [("0.6B", 1024, 3072), ("1.7B", 2048, 6144)])
def test_published_sizes_are_those_of_the_releases_configurations(size, width, inner):
    heads = {"num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128}
    predictor = {**heads, "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 5}
    talker = {**heads, "hidden_size": width, "intermediate_size": inner, "num_hidden_layers": 28}
    text = {"text_hidden_size": 2048, "text_vocab_size": 151_936}
    codes = {"vocab_size": 2048, "num_code_groups": 16}
    decoder = {"hidden_size": 512, "intermediate_size": 1024, "latent_dim": 1024, "codebook_dim": 512, "head_dim": 64}
    mimi = {"num_quantizers": 32, "codebook_size": 2048}
    with torch.device("meta"):
        whole = _make_talker({**talker, **text, "vocab_size": 3072, "code_predictor_config": {**predictor, **codes}})
        code2wav = SpeechDecoder(Qwen3OmniMoeCode2WavConfig(**decoder, codebook_size=2048, decoder_dim=1536))
        heard = MimiModel(MimiConfig(**mimi))
        heard.decoder = heard.decoder_transformer = heard.upsample = None
    needs = published_needs(f"Qwen/Qwen3-TTS-12Hz-{size}-CustomVoice")
    run = count_parameters(whole) - whole.model.text_embedding.weight.numel()
    assert needs.parameters == pytest.approx({"talker": run, "code2wav": count_parameters(code2wav)}, rel=0.005)
    num_bytes = 2 * count_parameters(whole) + 4 * count_parameters(code2wav) + 4 * count_parameters(heard)
    assert needs.download_bytes == pytest.approx(num_bytes, rel=0.001)
