"""Small checkpoints with random weights of Voxtral: Mistral's files beside those of Hugging Face."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import save_file
from transformers.models.whisper.modeling_whisper import sinusoids

_WIDTH, _HEADS, _KV_HEADS, _HEAD_DIM = 64, 2, 1, 32
_ENCODER_WIDTH, _ENCODER_HEADS = 64, 2
_LAYERS, _MELS, _WINDOW = 2, 128, 1500
_NUM_SPECIAL, _NUM_BYTES = 1000, 256
_SPECIAL = {
    0: "<unk>", 1: "<s>", 2: "</s>", 3: "[INST]", 4: "[/INST]", 5: "[AVAILABLE_TOOLS]", 6: "[/AVAILABLE_TOOLS]",
    7: "[TOOL_RESULTS]", 8: "[/TOOL_RESULTS]", 9: "[TOOL_CALLS]", 10: "[IMG]", 11: "<pad>", 12: "[IMG_BREAK]",
    13: "[IMG_END]", 14: "[PREFIX]", 15: "[MIDDLE]", 16: "[SUFFIX]", 17: "[SYSTEM_PROMPT]", 18: "[/SYSTEM_PROMPT]",
    19: "[TOOL_CONTENT]", 24: "[AUDIO]", 25: "[BEGIN_AUDIO]", 32: "[STREAMING_PAD]", 33: "[STREAMING_WORD]",
    34: "[TRANSCRIBE]",
}  # fmt: skip
_IDS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 11}
_ENCODER = "mm_whisper_embeddings.whisper_encoder"
# Names in Mistral's file, by those of transformers.
_NAMES = (
    (r"(model\.)?audio_tower\.embedder\.conv1\.", f"{_ENCODER}.conv_layers.0.conv."),
    (r"(model\.)?audio_tower\.embedder\.conv2\.", f"{_ENCODER}.conv_layers.1.conv."),
    (r"(model\.)?audio_tower\.norm\.", f"{_ENCODER}.transformer.norm."),
    (r"(model\.)?audio_tower\.conv1\.", f"{_ENCODER}.conv_layers.0."),
    (r"(model\.)?audio_tower\.conv2\.", f"{_ENCODER}.conv_layers.1."),
    (r"(model\.)?audio_tower\.layers\.", f"{_ENCODER}.transformer.layers."),
    (r"(model\.)?audio_tower\.layer_norm\.", f"{_ENCODER}.transformer.norm."),
    (r"(model\.)?multi_modal_projector\.linear_1\.", "mm_whisper_embeddings.audio_language_projection.0."),
    (r"(model\.)?multi_modal_projector\.linear_2\.", "mm_whisper_embeddings.audio_language_projection.2."),
    (r"(model\.)?language_model\.(model\.)?layers\.", "layers."),
    (r"(model\.)?language_model\.(model\.)?embed_tokens\.", "mm_whisper_embeddings.tok_embeddings."),
    (r"(model\.)?language_model\.(model\.)?norm\.", "norm."),
    (r"(language_model\.)?lm_head\.", "output."),
    (r"\.ada_rms_norm\.linear1\.", ".ada_rms_norm_t_cond.0."),
    (r"\.ada_rms_norm\.linear2\.", ".ada_rms_norm_t_cond.2."),
    (r"\.self_attn_layer_norm\.", ".attention_norm."),
    (r"\.self_attn\.(out|o)_proj\.", ".attention.wo."),
    (r"\.self_attn\.([qkv])_proj\.", r".attention.w\1."),
    (r"\.fc([12])\.", r".feed_forward.w\1."),
    (r"\.mlp\.gate_proj\.", ".feed_forward.w1."),
    (r"\.mlp\.down_proj\.", ".feed_forward.w2."),
    (r"\.mlp\.up_proj\.", ".feed_forward.w3."),
    (r"\.(final_layer_norm|post_attention_layernorm)\.", ".ffn_norm."),
    (r"\.input_layernorm\.", ".attention_norm."),
)  # fmt: skip


def voxtral(folder: Path) -> Path:
    """Write a small Voxtral with random weights as on the hub: Hugging Face's files beside Mistral's own."""
    folder.mkdir(parents=True, exist_ok=True)
    _write_tokenizer(folder / "tekken.json")
    text = {
        "model_type": "llama", "hidden_size": _WIDTH, "intermediate_size": 128, "num_hidden_layers": _LAYERS,
        "num_attention_heads": _HEADS, "num_key_value_heads": _KV_HEADS, "head_dim": _HEAD_DIM, **_IDS,
        "vocab_size": _NUM_SPECIAL + _NUM_BYTES, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5,
        "rope_theta": 1e4,
    }  # fmt: skip
    audio = {
        "hidden_size": _ENCODER_WIDTH, "intermediate_size": 4 * _ENCODER_WIDTH, "num_hidden_layers": _LAYERS,
        "num_attention_heads": _ENCODER_HEADS, "num_mel_bins": _MELS, "max_source_positions": _WINDOW, "head_dim": 32,
    }  # fmt: skip
    config = transformers.VoxtralConfig(text_config=text, audio_config=audio, audio_token_id=24)
    torch.manual_seed(0)
    model = transformers.VoxtralForConditionalGeneration(config).eval()
    _draw(model)
    model.generation_config = transformers.GenerationConfig(**_IDS)
    model.save_pretrained(folder)
    extractor = transformers.WhisperFeatureExtractor(feature_size=_MELS)
    tokenizer = transformers.MistralCommonBackend(tokenizer_path=str(folder / "tekken.json"))
    transformers.VoxtralProcessor(extractor, tokenizer).save_pretrained(folder)
    _write_params(folder / "params.json", text, {"max_source_positions": _WINDOW})
    # Positions are computed there.
    weights = {name: weight for name, weight in model.state_dict().items() if "embed_positions" not in name}
    save_file(dict(map(_as_mistral, weights.items())), folder / "consolidated.safetensors")
    return folder


def voxtral_realtime(folder: Path) -> Path:
    """Write a small Voxtral Realtime, which hears while it writes."""
    folder.mkdir(parents=True, exist_ok=True)
    streaming = {
        "transcription_format": "streaming", "transcription_delay_ms": 160.0, "streaming_look_ahead_ms": 2.5,
        "streaming_look_back_ms": 52.5, "streaming_n_left_pad_tokens": 4,
    }  # fmt: skip
    _write_tokenizer(folder / "tekken.json", **streaming)
    sizes = {
        "hidden_size": _WIDTH, "intermediate_size": 128, "num_hidden_layers": _LAYERS, "num_attention_heads": _HEADS,
        "head_dim": _HEAD_DIM, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5,
    }  # fmt: skip
    rope = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}
    text = {**sizes, **rope, **_IDS, "num_key_value_heads": _KV_HEADS, "vocab_size": _NUM_SPECIAL + _NUM_BYTES}
    audio = {**sizes, **rope, "intermediate_size": 4 * _ENCODER_WIDTH, "num_mel_bins": _MELS, "sliding_window": 100}
    config = transformers.VoxtralRealtimeConfig(
        text_config={**text, "sliding_window": 512}, audio_config=audio, default_num_delay_tokens=2, **_IDS
    )
    torch.manual_seed(0)
    model = transformers.VoxtralRealtimeForConditionalGeneration(config).eval()
    _draw(model)
    model.generation_config = transformers.GenerationConfig(**_IDS)
    model.save_pretrained(folder)
    extractor = transformers.VoxtralRealtimeFeatureExtractor(feature_size=_MELS)
    tokenizer = transformers.MistralCommonBackend(tokenizer_path=str(folder / "tekken.json"))
    transformers.VoxtralRealtimeProcessor(extractor, tokenizer).save_pretrained(folder)
    encoder = {"causal": True, "sliding_window": 100, "pos_embed": "rope", "global_log_mel_max": 1.5}
    own = {"ada_rms_norm_t_cond": True, "ada_rms_norm_t_cond_dim": 32, "tied_embeddings": True, "sliding_window": 512}
    _write_params(folder / "params.json", {**text, "rope_theta": 1e6}, encoder, **own)
    weights = {name: weight for name, weight in model.state_dict().items() if "lm_head" not in name}
    # The encoder turns, too.
    mistral = dict(_as_mistral(item, turned="") for item in weights.items())
    save_file(mistral, folder / "consolidated.safetensors")
    return folder


def _draw(model: torch.nn.Module) -> None:
    """Draw weights with which a token depends on the sound, and give the encoder its fixed positions."""
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "embed_positions" in name:
                weight.copy_(sinusoids(*weight.shape))
            elif weight.ndim == 1:
                weight.add_(0.05 * torch.randn(weight.shape))
            else:
                fan_in = weight.shape[-1] if weight.ndim == 2 else weight[0].numel()
                gain = 4.0 if "projector" in name else 2.0
                weight.normal_(0, 0.3 if "embed" in name else gain / fan_in**0.5)


def _as_mistral(item: tuple[str, torch.Tensor], turned: str = "language_model") -> tuple[str, torch.Tensor]:
    name, weight = item
    if turned in name and re.search(r"\.[qk]_proj\.", name):
        # Mistral's rotary embedding turns neighbours, transformers' halves.
        weight = weight.view(-1, 2, _HEAD_DIM // 2, *weight.shape[1:]).transpose(1, 2).reshape(weight.shape)
    for pattern, replacement in _NAMES:
        name = re.sub(pattern, replacement, name)
    return name, weight.contiguous().clone()


def _write_params(file: Path, text: dict[str, Any], encoder: dict[str, Any], **own: Any) -> None:
    sounds = {"sampling_rate": 16000, "num_mel_bins": _MELS, "hop_length": 160, "window_size": 400}
    if loudest := encoder.pop("global_log_mel_max", None):
        sounds["global_log_mel_max"] = loudest
    encoder |= {
        "dim": _ENCODER_WIDTH, "n_layers": _LAYERS, "head_dim": 32, "hidden_dim": 4 * _ENCODER_WIDTH,
        "n_heads": _ENCODER_HEADS, "vocab_size": 51866, "audio_encoding_args": sounds,
    }  # fmt: skip
    params = {
        "dim": _WIDTH, "n_layers": _LAYERS, "head_dim": _HEAD_DIM, "hidden_dim": text["intermediate_size"],
        "n_heads": _HEADS, "n_kv_heads": _KV_HEADS, "norm_eps": text["rms_norm_eps"], "rope_theta": text["rope_theta"],
        "vocab_size": text["vocab_size"], "max_position_embeddings": text["max_position_embeddings"],
        "multimodal": {
            "whisper_model_args": {"encoder_args": encoder, "downsample_args": {"downsample_factor": 4}},
        },
        **own,
    }  # fmt: skip
    file.write_text(json.dumps(params))


def _write_tokenizer(file: Path, **streaming: Any) -> None:
    """Write a tokenizer whose words are single bytes."""
    vocab = [
        {"rank": byte, "token_bytes": base64.b64encode(bytes([byte])).decode(), "token_str": chr(byte)}
        for byte in range(_NUM_BYTES)
    ]
    special = [
        {"rank": rank, "token_str": _SPECIAL.get(rank, f"<SPECIAL_{rank}>"), "is_control": True}
        for rank in range(_NUM_SPECIAL)
    ]
    spectrogram = {"num_mel_bins": _MELS, "hop_length": 160, "window_size": 400}
    config = {
        "pattern": r"\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s+", "num_vocab_tokens": _NUM_BYTES,
        "default_vocab_size": _NUM_SPECIAL + _NUM_BYTES, "default_num_special_tokens": _NUM_SPECIAL, "version": "v7",
    }  # fmt: skip
    way = streaming or {"chunk_length_s": 30.0}
    audio = {"sampling_rate": 16000, "frame_rate": 12.5, "audio_encoding_config": spectrogram, **way}
    file.write_text(json.dumps({"config": config, "vocab": vocab, "special_tokens": special, "audio": audio}))
