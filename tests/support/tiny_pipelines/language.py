"""Small text and vision models of transformers, and the processors in front of them.

Every text encoder is `WIDTH` wide and knows `VOCAB_SIZE` tokens, so that any denoiser goes with any of them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import transformers

from support.tiny_pipelines import tokenizers
from support.tiny_pipelines.tokenizers import VOCAB_SIZE

WIDTH = 32
IMAGE_SIZE = 32

# Values of configuration keys, wherever a configuration or a part of one has them.
_SMALL: Mapping[str, object] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": WIDTH,
    "intermediate_size": WIDTH,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 4096,
    "projection_dim": WIDTH,
    "d_model": WIDTH,
    "d_kv": 16,
    "d_ff": WIDTH,
    "num_layers": 2,
    "num_heads": 2,
    "pad_token_id": 0,
    "query_pre_attn_scalar": 16,
    "image_size": IMAGE_SIZE,
}
_PATCHES = {"patch_size": 8}
_MROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": [2, 3, 3]}}
_QWEN2_VISION = dict(embed_dim=32, depth=1, mlp_ratio=1)
_QWEN2_5_VISION = dict(depth=1, out_hidden_size=WIDTH, fullatt_block_indexes=[0])
_QWEN3_VISION = dict(depth=2, out_hidden_size=WIDTH, num_position_embeddings=64, deepstack_visual_indexes=[1])
_QWEN_IDS = {
    "image_token_id": "<|image_pad|>",
    "video_token_id": "<|video_pad|>",
    "vision_start_token_id": "<|vision_start|>",
    "vision_end_token_id": "<|vision_end|>",
}
_GEMMA_IDS = dict(mm_tokens_per_image=4, image_token_index=5, boi_token_index=6, eoi_token_index=7)
_MISTRAL = {
    "text_config": {"model_type": "mistral"},
    "vision_config": {"model_type": "pixtral", **_PATCHES},
    "image_token_index": "[IMG]",
}
_CLIP_TEXT = {"max_position_embeddings": 77, "bos_token_id": "<|startoftext|>", "eos_token_id": "<|endoftext|>"}


def _qwen_vl(text: Mapping[str, object], vision: Mapping[str, object]) -> Mapping[str, Any]:
    return {"text_config": text, "vision_config": vision, **_QWEN_IDS}


# What a model has besides; the id of a token is given as its text, a part of a configuration by its own keys.
_MODELS: Mapping[str, Mapping[str, Any]] = {
    "CLIPTextModel": _CLIP_TEXT,
    "CLIPTextModelWithProjection": _CLIP_TEXT,
    "CLIPVisionModel": _PATCHES,
    "CLIPVisionModelWithProjection": _PATCHES,
    "ClapModel": {
        "text_config": {"max_position_embeddings": 80, "pad_token_id": 1},
        "audio_config": dict(
            spec_size=64,
            window_size=4,
            num_mel_bins=64,
            depths=[2, 2],
            num_attention_heads=[2, 2],
            patch_size=2,
            patch_stride=2,
            patch_embed_input_channels=4,
            patch_embeds_hidden_size=16,
            hidden_size_ratio=1,
        ),
    },
    "DPTForDepthEstimation": dict(
        num_hidden_layers=4,
        patch_size=16,
        neck_hidden_sizes=[16, 16, 32, 32],
        backbone_out_indices=[0, 1, 2, 3],
        fusion_hidden_size=32,
        is_hybrid=False,
    ),
    "DiffusionGemmaForBlockDiffusion": {
        "text_config": dict(
            num_key_value_heads=1,
            global_head_dim=16,
            num_experts=2,
            top_k_experts=1,
            moe_intermediate_size=16,
            layer_types=["sliding_attention", "full_attention"],
        ),
        "vision_config": {"model_type": "gemma4_vision", "num_hidden_layers": 1},
        "canvas_length": 8,
    },
    "GPT2LMHeadModel": dict(vocab_size=64, n_positions=256, n_embd=16, n_layer=2, n_head=2, pad_token_id=None),
    "Gemma3ForConditionalGeneration": {"text_config": {}, "vision_config": _PATCHES, **_GEMMA_IDS},
    "LlavaForConditionalGeneration": {
        "text_config": {"model_type": "llama"},
        "vision_config": {"model_type": "clip_vision_model", **_PATCHES},
        "image_token_index": 3,
        "pad_token_id": 4,
    },
    "Mistral3ForConditionalGeneration": _MISTRAL,
    "Mistral3Model": _MISTRAL,
    "Qwen2VLForConditionalGeneration": _qwen_vl(_MROPE, _QWEN2_VISION),
    "Qwen2_5_VLForConditionalGeneration": _qwen_vl(_MROPE, _QWEN2_5_VISION),
    "Qwen2_5_VLTextModel": _MROPE,
    "Qwen3VLForConditionalGeneration": _qwen_vl(_MROPE, _QWEN3_VISION),
    "Qwen3VLModel": _qwen_vl(_MROPE, _QWEN3_VISION),
    "Qwen3_5ForConditionalGeneration": _qwen_vl(
        {**_MROPE, "layer_types": ["linear_attention", "full_attention"]}, _QWEN3_VISION
    ),
    "Siglip2VisionModel": {"num_patches": 16, **_PATCHES},
    "SiglipVisionModel": _PATCHES,
    "SpeechT5HifiGan": dict(
        model_in_dim=8,
        upsample_initial_channel=16,
        upsample_rates=[2, 2],
        upsample_kernel_sizes=[4, 4],
        resblock_kernel_sizes=[3, 7],
        resblock_dilation_sizes=[[1, 3, 5], [1, 3, 5]],
        normalize_before=False,
    ),
}
# Where a pipeline names a base class or leaves a choice.
_CHOICES = {
    "Gemma2PreTrainedModel": "Gemma2Model",
    "GemmaPreTrainedModel": "GemmaModel",
    "PreTrainedModel": "Qwen3Model",
}


def model(name: str, **given: object) -> Any:
    """A model of transformers by its class's name, with random weights; `given` are keys of what reads its text."""
    name = _CHOICES.get(name, name)
    kind = getattr(transformers, name, None) or _text_model(name)
    values = dict(_MODELS.get(name, {}))
    if "text_config" in values:
        values["text_config"] = {**values["text_config"], **given}
    else:
        values.update(given)
    return kind(kind.config_class(**_values(kind.config_class, values)))


def _text_model(name: str) -> Any:
    from transformers.models.qwen2_5_vl import modeling_qwen2_5_vl

    return getattr(modeling_qwen2_5_vl, name)


def _values(config_class: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of `_SMALL` that a configuration has, and those given; parts that are given likewise."""
    names = {name for base in config_class.__mro__ for name in getattr(base, "__annotations__", {})}
    values = {**{name: value for name, value in _SMALL.items() if name in names}, **given}
    for name, part in values.items():
        if isinstance(part, str) and name.endswith(("token_id", "token_index")):
            tokenizer = tokenizers.clip() if "CLIP" in config_class.__name__ else tokenizers.qwen2()
            values[name] = tokenizer.convert_tokens_to_ids(part)
        elif name in config_class.sub_configs and isinstance(part, Mapping):
            part_class = config_class.sub_configs[name]
            if "model_type" in part:
                part_class = transformers.CONFIG_MAPPING[part["model_type"]]
            values[name] = _values(part_class, part)
    return values


def _t5gemma_encoder(**given: object) -> Any:
    from transformers import T5GemmaConfig, T5GemmaEncoderModel
    from transformers.models.t5gemma.configuration_t5gemma import T5GemmaModuleConfig

    text = _values(T5GemmaModuleConfig, given)
    config = T5GemmaConfig(encoder=text, decoder=text, is_encoder_decoder=False, vocab_size=VOCAB_SIZE)
    return T5GemmaEncoderModel(config)


def _t5gemma2_encoder(**given: object) -> Any:
    from transformers import T5Gemma2Config
    from transformers.models.t5gemma2.modeling_t5gemma2 import T5Gemma2Encoder

    parts = {"encoder": {"text_config": given, "vision_config": _PATCHES, **_GEMMA_IDS}, "decoder": given}
    ids = {name: _GEMMA_IDS[name] for name in ("eoi_token_index", "image_token_index")}
    return T5Gemma2Encoder(T5Gemma2Config(**_values(T5Gemma2Config, {**parts, **ids})).encoder)


def _chatglm(**given: object) -> Any:
    from diffusers.pipelines.kolors.text_encoder import ChatGLMConfig, ChatGLMModel

    sizes = {
        "num_layers": 2,
        "padded_vocab_size": VOCAB_SIZE,
        "hidden_size": WIDTH,
        "ffn_hidden_size": WIDTH,
        "kv_channels": 16,
        "num_attention_heads": 2,
        "seq_length": 256,
        "multi_query_attention": True,
        "multi_query_group_num": 2,
        "apply_query_key_layer_scaling": True,
        "rmsnorm": True,
        "original_rope": True,
        "torch_dtype": "float32",
    }
    made = ChatGLMModel(ChatGLMConfig(**{**sizes, **given}), empty_init=False)
    for name, parameter in made.named_parameters():
        if "layernorm" in name:
            parameter.data.fill_(1.0)  # its own norms begin with whatever the memory had
    return made


def _multilingual_clip(**given: object) -> Any:
    from diffusers.pipelines.kandinsky.text_encoder import MCLIPConfig, MultilingualCLIP

    sizes = {name: _SMALL[name] for name in ("vocab_size", "hidden_size", "intermediate_size", "num_attention_heads")}
    return MultilingualCLIP(
        MCLIPConfig(
            numDims=WIDTH,
            transformerDimensions=WIDTH,
            num_hidden_layers=2,
            max_position_embeddings=80,
            **{**sizes, **given},
        )
    )


MODELS: Mapping[str, Callable[..., Any]] = {
    "ChatGLMModel": _chatglm,
    "MultilingualCLIP": _multilingual_clip,
    "T5Gemma2Encoder": _t5gemma2_encoder,
    "T5GemmaEncoder": _t5gemma_encoder,
    "T5GemmaEncoderModel": _t5gemma_encoder,
}


def _clip_images(side: int = IMAGE_SIZE) -> Any:
    return transformers.CLIPImageProcessor(size={"shortest_edge": side}, crop_size=side)


def _qwen_processor(kind: str) -> Any:
    tokenizer = tokenizers.qwen2()
    images = transformers.Qwen2VLImageProcessor(
        patch_size=16 if "3" in kind else 14,
        size={"shortest_edge": 28 * 28, "longest_edge": 56 * 56},
    )
    videos = getattr(transformers, f"{kind.replace('2_5_', '2')}VideoProcessor")()
    return getattr(transformers, f"{kind}Processor")(
        image_processor=images, tokenizer=tokenizer, video_processor=videos, chat_template=tokenizer.chat_template
    )


_SQUARE = {"height": IMAGE_SIZE, "width": IMAGE_SIZE}
PROCESSORS: Mapping[str, Callable[..., Any]] = {
    "CLIPImageProcessor": _clip_images,
    "CLIPProcessor": lambda: transformers.CLIPProcessor(image_processor=_clip_images(), tokenizer=tokenizers.clip()),
    "ClapFeatureExtractor": lambda: transformers.ClapFeatureExtractor(),
    "DPTImageProcessor": lambda: transformers.DPTImageProcessor(size=_SQUARE),
    "Qwen2VLProcessor": functools.partial(_qwen_processor, "Qwen2VL"),
    "Qwen2_5_VLProcessor": functools.partial(_qwen_processor, "Qwen2_5_VL"),
    "Qwen3VLProcessor": functools.partial(_qwen_processor, "Qwen3VL"),
    "Siglip2ImageProcessor": lambda: transformers.Siglip2ImageProcessor(patch_size=8, max_num_patches=16),
    "SiglipImageProcessor": lambda: transformers.SiglipImageProcessor(size=_SQUARE),
}
