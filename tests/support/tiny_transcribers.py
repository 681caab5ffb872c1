"""Small checkpoints with random weights of the architectures that vLLM transcribes with."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import transformers
from safetensors.torch import save_file
from torch import nn

from support.tiny_models import DECODER, conditional, draw_weights, ids_of, make_tokenizer, qwen3_asr, template_of

_ENCODER = {"num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2, "hidden_size": 64}


def glm_asr(folder: Path) -> Path:
    special = ["<|begin_of_audio|>", "<|end_of_audio|>"]
    tokenizer = make_tokenizer(special, template=template_of(audio="<|begin_of_audio|><|pad|><|end_of_audio|>"))
    config: dict[str, Any] = {
        "text_config": {"model_type": "llama"},
        # Four frames are one of the projector.
        "audio_config": {**_ENCODER, "intermediate_size": 256},
        "audio_token_id": tokenizer.pad_token_id,
    }
    extractor = transformers.WhisperFeatureExtractor(feature_size=128)
    return conditional(folder, "GlmAsr", tokenizer, config, {"feature_extractor": extractor}, std=0.3)


def kimi_audio(folder: Path) -> Path:
    """Kimi-Audio, whose tokens have the ids of the release: vLLM knows them by number."""
    folder.mkdir(parents=True, exist_ok=True)
    words = [bytes([byte]) for byte in range(256)]
    ranks = [f"{base64.b64encode(word).decode()} {rank}" for rank, word in enumerate(words)]
    (folder / "tiktoken.model").write_text("\n".join(ranks))
    special = {
        "<|im_msg_end|>": 151645,
        "<|im_media_begin|>": 151661,
        "<|im_media_end|>": 151663,
        "<|im_kimia_text_blank|>": 151666,
        "<|im_kimia_user_msg_start|>": 151670,
        "<|im_kimia_assistant_msg_start|>": 151671,
    }
    added = {str(number): {"content": name} for name, number in special.items()}
    (folder / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": added}))
    sizes = {**DECODER, "vocab_size": 151_680, "tie_word_embeddings": False}
    model = draw_weights(transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**sizes)), embedding_std=0.3)
    heads = model.lm_head.weight.data
    heads[256:] = 0  # nothing but bytes
    width = sizes["hidden_size"]
    adaptor = torch.nn.ModuleDict({"0": nn.Linear(4 * width, width), "3": nn.Linear(width, width)})
    adaptor["4"] = nn.LayerNorm(width)
    state = {f"model.vq_adaptor.layers.{name}": weight for name, weight in draw_weights(adaptor).state_dict().items()}
    save_file({**model.state_dict(), **state}, folder / "model.safetensors", metadata={"format": "pt"})
    config = {"architectures": ["MoonshotKimiaForCausalLM"], "kimia_adaptor_input_dim": 4 * width}
    (folder / "config.json").write_text(json.dumps({**model.config.to_dict(), **config, "dtype": "float32"}))
    _save_whisper(folder / "whisper-large-v3", width)
    return folder


def _save_whisper(folder: Path, width: int) -> None:
    """Write a Whisper for its encoder, and its feature extractor."""
    sides = {f"{side}_{name}": 2 for side in ("encoder", "decoder") for name in ("layers", "attention_heads")}
    whisper = transformers.WhisperConfig(
        **sides, d_model=width, encoder_ffn_dim=128, decoder_ffn_dim=64, vocab_size=16, num_mel_bins=80,
        pad_token_id=0, bos_token_id=0, eos_token_id=0, decoder_start_token_id=0,
    )  # fmt: skip
    draw_weights(transformers.WhisperForConditionalGeneration(whisper)).save_pretrained(folder)
    transformers.WhisperFeatureExtractor(feature_size=80).save_pretrained(folder)


def qwen3_asr_realtime(folder: Path) -> Path:
    """Qwen3-ASR under the name with which vLLM has it for streams of sound."""
    qwen3_asr(folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "architectures": ["Qwen3ASRRealtimeGeneration"]}))
    return folder


def granite_speech(folder: Path, name: str = "GraniteSpeech", **encoder: Any) -> Path:
    tokenizer = make_tokenizer(["<|audio|>"], template=template_of(audio="<|audio|>"))
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
    width = 64 * (1 + len(encoder.get("cat_hidden_layers", ())))
    own = {"num_layers": 2, "hidden_dim": 64, "num_heads": 2, "output_dim": 16, "context_size": 50, **encoder}
    config: dict[str, Any] = {
        "text_config": {"model_type": "granite"},
        "encoder_config": own,
        "projector_config": {**sizes, "encoder_hidden_size": width, "vocab_size": 16},
        "audio_token_index": tokenizer.convert_tokens_to_ids("<|audio|>"),
        "has_lora_adapter": False,
        "tie_word_embeddings": False,
    }
    processor = {"audio_processor": transformers.GraniteSpeechFeatureExtractor()}
    return conditional(folder, name, tokenizer, config, processor, std=0.3, processor_of="GraniteSpeech")


def granite_speech_plus(folder: Path) -> Path:
    """Granite Speech with the rows of a further layer of the encoder."""
    return granite_speech(folder, "GraniteSpeechPlus", cat_hidden_layers=[1])


def fire_red_asr2(folder: Path) -> Path:
    from vllm.model_executor.models import conformer_encoder

    tokenizer = make_tokenizer(["<|AUDIO|>"])
    tokenizer.save_pretrained(folder)
    sizes = {**DECODER, **ids_of(tokenizer), "tie_word_embeddings": False}
    model = draw_weights(transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**sizes)), embedding_std=0.3)
    conformer = {"idim": 80, "n_layers_enc": 2, "n_head": 2, "d_model": 32, "kernel_size": 5, "pe_maxlen": 1000}
    with mock.patch.object(conformer_encoder, "ReplicatedLinear", _plain_linear):
        encoder = draw_weights(conformer_encoder.ConformerEncoder(**conformer))
    width = sizes["hidden_size"]
    projector = draw_weights(nn.ModuleDict({"linear1": nn.Linear(2 * 32, width), "linear2": nn.Linear(width, width)}))
    parts = {"llm": model, "encoder": encoder, "encoder_projector": projector}
    state = {f"{part}.{name}": each for part, of in parts.items() for name, each in of.state_dict().items()}
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    own = {"architectures": ["FireRedASR2ForConditionalGeneration"], "audio_encoder_conf": conformer}
    config = {**model.config.to_dict(), **own, "encoder_downsample_rate": 2, "dtype": "float32"}
    (folder / "config.json").write_text(json.dumps(config))
    extractor = {"feature_extractor_type": "FireRedASR2FeatureExtractor", "processor_class": "FireRedASR2Processor"}
    levels = {"means": [10.0] * 80, "inverse_std_variences": [0.3] * 80}
    (folder / "preprocessor_config.json").write_text(json.dumps({**extractor, **levels}))
    return folder


def _plain_linear(input_size: int, output_size: int, bias: bool = True, **_: Any) -> nn.Linear:
    return nn.Linear(input_size, output_size, bias)


BUILDERS: dict[str, Callable[[Path], Path]] = {
    builder.__name__: builder
    for builder in (fire_red_asr2, glm_asr, granite_speech, granite_speech_plus, kimi_audio, qwen3_asr_realtime)
}
# Packages that are no part of an installation on a CPU.
NEEDS = {"fire_red_asr2": ("kaldi_native_fbank",), "granite_speech": ("torchaudio",)}
NEEDS["granite_speech_plus"] = NEEDS["granite_speech"]
