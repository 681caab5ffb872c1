"""Recipe of Qwen3-TTS, of any size and all three kinds, in the files and by the names of a release."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import safetensors.torch
import transformers
from torch import nn
from transformers.models.mimi.modeling_mimi import MimiModel
from transformers.models.qwen2_5_omni.modeling_qwen2_5_omni import ECAPA_TimeDelayNet
from transformers.models.qwen3_omni_moe import configuration_qwen3_omni_moe

from omni_cli.checkpoints.tiny import Checkpoint, DecoderSizes, RandomModel, State, builder
from omni_cli.checkpoints.tiny_qwen3 import QWEN3_TOKENS, CodecSizes
from omni_cli.checkpoints.tiny_speech import MimiSizes
from omni_cli.checkpoints.tokenizer import TokenSet, train_tokenizer
from omni_cli.checkpoints.weights import DECODER_GAINS, shape_head
from omni_cli.models.codec.code_predictor import make_code_predictor
from omni_cli.models.qwen3_tts.encoder import VOICE_SIZES
from omni_cli.models.qwen3_tts.family import SPEECH_TOKENIZER
from omni_cli.models.qwen3_tts.modules import SpeechDecoder, make_text_projection, rename

_CODEC_USES = ("pad", "bos", "eos_token", "think", "nothink", "think_bos", "think_eos")
_LANGUAGES = ("chinese", "english", "japanese", "german", "beijing_dialect", "sichuan_dialect")
# By name: the dialect, if there is one.
_SPEAKERS = {"vivian": False, "serena": False, "dylan": "beijing_dialect", "eric": "sichuan_dialect"}
_TEXT_IDS = {
    **{"im_start": "<|im_start|>", "im_end": "<|im_end|>"},
    **{"tts_pad": "<tts_pad>", "tts_bos": "<tts_text_bos>", "tts_eos": "<tts_text_eod>"},
}
_GAINS = {
    **DECODER_GAINS,
    "codec_head": 3.0,
    "code_predictor.lm_head": 3.0,
    # Sixteen are summed.
    "codec_embedding": 0.4,
    # Less than one, or each of the decoder's blocks makes rounding grow.
    "decoder.decoder": 0.55,
    # The decoder's last convolution: loud enough to hear and rarely clipped.
    "decoder.decoder.6.conv": 0.5,
}


class Qwen3TTSSizes(NamedTuple):
    """Sizes of a whole Qwen3-TTS. The defaults are those of `tiny-qwen3-tts`.

    `num_codes` are the codes of each of `num_code_groups` codebooks; the codec's transformer is between convolutions of
    `latent_dim`. The voice encoder has blocks of `voice_channels`.
    """

    vocab_size: int = 512
    text_hidden_size: int = 64
    num_codes: int = 128
    num_code_groups: int = 16
    max_position_embeddings: int = 4096
    size: str = "1b7"
    talker: DecoderSizes = DecoderSizes(128, 256, 2, 4, 2, 32)
    predictor: DecoderSizes = DecoderSizes(96, 128, 2, 4, 2, 32)
    code2wav: CodecSizes = CodecSizes(64, 128, 2, 2, 2, 64)
    codec_head_dim: int = 32
    codebook_dim: int = 64
    latent_dim: int = 48
    encoder: MimiSizes = MimiSizes(64, 128, 2, 4, 4, 32, 25)
    voice_channels: int = 32


class _Release(nn.Module):
    """Modules by their names in a release, saved with a config.json that transformers would not write."""

    def __init__(self, config: dict[str, Any], modules: Mapping[str, Callable[[], nn.Module]]) -> None:
        super().__init__()
        self.config = config
        for name, make in modules.items():
            self.add_module(name, make())

    def save_pretrained(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        _write_json(folder / "config.json", self.config)
        tensors = {rename(name, to_checkpoint=True): weight.contiguous() for name, weight in self.state_dict().items()}
        safetensors.torch.save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def qwen3_tts(kind: str, sizes: Qwen3TTSSizes) -> Checkpoint:
    """Qwen3-TTS of a kind: `custom_voice`, `voice_design` or `base`."""
    # Without roles, which are those of media.
    tokens = TokenSet(QWEN3_TOKENS.special, QWEN3_TOKENS.plain)
    tokenizer = train_tokenizer(sizes.vocab_size, sizes.max_position_embeddings, tokens)
    talker, channels = _talker_config(kind, sizes), sizes.voice_channels
    config = {
        "architectures": ["Qwen3TTSForConditionalGeneration"],
        "model_type": "qwen3_tts",
        "tokenizer_type": "qwen3_tts_tokenizer_12hz",
        "tts_model_size": sizes.size,
        "tts_model_type": kind,
        "dtype": "float32",
        **{f"{use}_token_id": tokenizer.convert_tokens_to_ids(token) for use, token in _TEXT_IDS.items()},
        "talker_config": talker,
    }
    modules: dict[str, Callable[[], nn.Module]] = {"talker": partial(_make_talker, talker)}
    if kind == "base":
        voice = {"enc_dim": sizes.talker.hidden_size, "enc_channels": [*[channels] * 4, 3 * channels]}
        voice |= {"enc_attention_channels": channels // 2, "enc_se_channels": channels // 2}
        config["speaker_encoder_config"] = voice
        modules["speaker_encoder"] = partial(ECAPA_TimeDelayNet, SimpleNamespace(**VOICE_SIZES | voice))
    model = RandomModel(_Release, {"config": config, "modules": modules}, _GAINS, adjust=_end_speech)
    return Checkpoint(
        {"": model, SPEECH_TOKENIZER: _speech_tokenizer(sizes)},
        transformers.EncodecFeatureExtractor(feature_size=1, sampling_rate=24_000),
        finish=partial(_finish, tokenizer),
    )


def _talker_config(kind: str, sizes: Qwen3TTSSizes) -> dict[str, Any]:
    numbers = itertools.count(sizes.num_codes)
    ids = {f"codec_{use}_id": next(numbers) for use in _CODEC_USES}
    languages = {name: next(numbers) for name in _LANGUAGES}
    speakers = {name: next(numbers) for name in _SPEAKERS} if kind == "custom_voice" else {}
    shared = {
        "max_position_embeddings": sizes.max_position_embeddings,
        "num_code_groups": sizes.num_code_groups,
        "rope_theta": 1_000_000,
    }
    return {
        **sizes.talker._asdict(),
        **shared,
        **ids,
        "codec_language_id": languages,
        "spk_id": speakers,
        "spk_is_dialect": {name: _SPEAKERS[name] for name in speakers},
        "text_hidden_size": sizes.text_hidden_size,
        "text_vocab_size": sizes.vocab_size,
        # The publisher's package never chooses any of the last 1,024 ids, whatever the size.
        "vocab_size": sizes.num_codes + 1024,
        "rope_scaling": {"rope_type": "default", "interleaved": True, "mrope_section": sizes.talker.mrope_section},
        "code_predictor_config": {**sizes.predictor._asdict(), **shared, "vocab_size": sizes.num_codes},
    }


def _make_talker(config: dict[str, Any]) -> nn.Module:
    """Create modules with the parameters, and their names, of a release's talker."""
    width = config["hidden_size"]
    layers = {key: config[key] for key in DecoderSizes._fields}
    talker = nn.Module()
    talker.model = transformers.Qwen3Model(transformers.Qwen3Config(**layers, vocab_size=1))
    del talker.model.embed_tokens
    talker.model.codec_embedding = nn.Embedding(config["vocab_size"], width)
    talker.model.text_embedding = nn.Embedding(config["text_vocab_size"], config["text_hidden_size"])
    talker.text_projection = make_text_projection(config["text_hidden_size"], width)
    talker.codec_head = nn.Linear(width, config["vocab_size"], bias=False)
    own = configuration_qwen3_omni_moe.Qwen3OmniMoeTalkerCodePredictorConfig(**config["code_predictor_config"])
    talker.code_predictor = make_code_predictor(own, width)
    return talker


def _end_speech(state: State, config: dict[str, Any], _draw: object) -> None:
    """Let the first code be the end about once in a hundred frames."""
    talker = config["talker_config"]
    never = list(range(talker["codec_pad_id"], talker["vocab_size"]))
    shape_head(state["talker.codec_head.weight"], never=never, end=talker["codec_eos_token_id"], end_gain=0.28)


def _speech_tokenizer(sizes: Qwen3TTSSizes) -> RandomModel:
    # Of the rest of both, the defaults of transformers and of the publisher's package are those of the release.
    decoder = {
        **sizes.code2wav._asdict(),
        "head_dim": sizes.codec_head_dim,
        "codebook_size": sizes.num_codes,
        "codebook_dim": sizes.codebook_dim,
        "latent_dim": sizes.latent_dim,
        "num_quantizers": sizes.num_code_groups,
    }
    # With more quantizers than are used, as in the release.
    encoder = sizes.encoder.config(sizes.num_codes, sizes.num_code_groups + 2)
    config = {
        "architectures": ["Qwen3TTSTokenizerV2Model"],
        "model_type": "qwen3_tts_tokenizer_12hz",
        "dtype": "float32",
        "encoder_valid_num_quantizers": sizes.num_code_groups,
        "decoder_config": decoder,
        "encoder_config": encoder,
    }

    def make_encoder() -> nn.Module:
        mimi: Any = MimiModel(transformers.MimiConfig(**encoder))
        mimi.decoder = mimi.decoder_transformer = mimi.upsample = None
        return mimi

    code2wav = configuration_qwen3_omni_moe.Qwen3OmniMoeCode2WavConfig(**decoder)
    own = {"config": config, "modules": {"encoder": make_encoder, "decoder": partial(SpeechDecoder, code2wav)}}
    return RandomModel(_Release, own, _GAINS, stream=f"{SPEECH_TOKENIZER}.", adjust=_vary_usage)


def _vary_usage(state: State, _config: object, draw: Any) -> None:
    """Divide the decoder's vectors by how often they are used, by unequal numbers."""
    for name, weight in state.items():
        if name.startswith("decoder.") and name.endswith("cluster_usage"):
            state[name] = 1 + 0.25 * draw(name, tuple(weight.shape)).clamp(-3, 3)


def _finish(tokenizer: Any, folder: Path, _seed: int) -> None:
    (folder / "preprocessor_config.json").rename(folder / SPEECH_TOKENIZER / "preprocessor_config.json")
    tokenizer.backend_tokenizer.model.save(str(folder))
    added = {str(number): token.__getstate__() for number, token in tokenizer.added_tokens_decoder.items()}
    own = {name: getattr(tokenizer, name) for name in ("eos_token", "pad_token", "model_max_length")}
    own |= {"add_prefix_space": False, "clean_up_tokenization_spaces": False}
    kept = {"tokenizer_class": "Qwen2Tokenizer", "added_tokens_decoder": added, **own}
    _write_json(folder / "tokenizer_config.json", kept)
    # The rest is as the publisher's package and ours have it by default.
    _write_json(folder / "generation_config.json", {"repetition_penalty": 1.05, "max_new_tokens": 8192})


def _write_json(file: Path, data: object) -> None:
    file.write_text(json.dumps(data, indent=2) + "\n")


custom_voice = builder(qwen3_tts, "custom_voice", Qwen3TTSSizes())
voice_design = builder(qwen3_tts, "voice_design", Qwen3TTSSizes())
# As the releases of 0.6B, whose code predictor is as wide as the talker.
base = builder(qwen3_tts, "base", Qwen3TTSSizes(size="0b6", predictor=DecoderSizes(128, 128, 2, 4, 2, 32)))
