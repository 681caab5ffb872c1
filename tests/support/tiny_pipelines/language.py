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

# Values of configuration keys, wherever a configuration has them.
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
_VISION = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
_QWEN2_VISION = {"embed_dim": 32, "hidden_size": WIDTH, "depth": 1, "num_heads": 2, "mlp_ratio": 1}
_QWEN2_5_VISION = {
    "hidden_size": 32,
    "intermediate_size": 32,
    "depth": 1,
    "num_heads": 2,
    "out_hidden_size": WIDTH,
    "fullatt_block_indexes": [0],
}
_QWEN3_VISION = {
    "hidden_size": 32,
    "intermediate_size": 32,
    "depth": 2,
    "num_heads": 2,
    "out_hidden_size": WIDTH,
    "num_position_embeddings": 64,
    "deepstack_visual_indexes": [1],
}
_MROPE = {"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": [2, 3, 3]}


def _small(config_class: type, given: Mapping[str, object]) -> Any:
    """A configuration with the keys of `_SMALL` that its class has, and those given."""
    names = {name for base in config_class.__mro__ for name in getattr(base, "__annotations__", {})}
    return config_class(**{**{name: value for name, value in _SMALL.items() if name in names}, **given})


def model(name: str, **given: object) -> Any:
    """A model of transformers by its class's name, with random weights."""
    model_class = getattr(transformers, name)
    return model_class(_small(model_class.config_class, given))


def _text(**given: object) -> dict[str, object]:
    kept = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    return {
        **{name: _SMALL[name] for name in kept},
        "num_key_value_heads": 2,
        "max_position_embeddings": 4096,
        "pad_token_id": 0,
        **given,
    }


def _clip_text(name: str, **given: object) -> Any:
    tokenizer = tokenizers.clip()
    special = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
    return model(name, **{"max_position_embeddings": 77, **special, **given})


def _vision_ids() -> dict[str, int]:
    find = tokenizers.qwen2().convert_tokens_to_ids
    return {
        "image_token_id": find("<|image_pad|>"),
        "video_token_id": find("<|video_pad|>"),
        "vision_start_token_id": find("<|vision_start|>"),
        "vision_end_token_id": find("<|vision_end|>"),
    }


def _qwen_vl(name: str, vision: Mapping[str, object], **given: object) -> Any:
    text = _text(rope_parameters=_MROPE, **given)
    if "Qwen3" in name:
        text["head_dim"] = 16
    return model(name, text_config=text, vision_config=dict(vision), **_vision_ids())


def _qwen2_5_vl_text(**given: object) -> Any:
    from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VLTextModel

    return Qwen2_5_VLTextModel(_small(Qwen2_5_VLTextModel.config_class, {"rope_parameters": _MROPE, **given}))


def _gemma3(**given: object) -> Any:
    text = _text(head_dim=16, query_pre_attn_scalar=16, **given)
    vision = {**_VISION, "image_size": IMAGE_SIZE, "patch_size": 8}
    return model(
        "Gemma3ForConditionalGeneration",
        text_config=text,
        vision_config=vision,
        mm_tokens_per_image=4,
        image_token_index=5,
        boi_token_index=6,
        eoi_token_index=7,
    )


def _t5gemma_encoder(**given: object) -> Any:
    from transformers import T5GemmaConfig, T5GemmaEncoderModel

    text = _text(head_dim=16, query_pre_attn_scalar=16, **given)
    config = T5GemmaConfig(encoder=text, decoder=text, is_encoder_decoder=False, vocab_size=VOCAB_SIZE)
    return T5GemmaEncoderModel(config)


def _t5gemma2_encoder(**given: object) -> Any:
    from transformers import T5Gemma2Config
    from transformers.models.t5gemma2.modeling_t5gemma2 import T5Gemma2Encoder

    text = _text(head_dim=16, query_pre_attn_scalar=16, **given)
    vision = {**_VISION, "image_size": IMAGE_SIZE, "patch_size": 8}
    encoder = {"text_config": text, "vision_config": vision, "mm_tokens_per_image": 4}
    ids = {"boi_token_index": 6, "eoi_token_index": 7, "image_token_index": 5}
    config = T5Gemma2Config(encoder={**encoder, **ids}, decoder=text, eoi_token_index=7, image_token_index=5)
    return T5Gemma2Encoder(config.encoder)


def _mistral3(name: str, **given: object) -> Any:
    text = {**_text(head_dim=16, **given), "model_type": "mistral"}
    vision = {**_VISION, "head_dim": 16, "image_size": IMAGE_SIZE, "patch_size": 8, "model_type": "pixtral"}
    find = tokenizers.qwen2().convert_tokens_to_ids
    return model(name, text_config=text, vision_config=vision, image_token_index=find("[IMG]"))


def _llava(**given: object) -> Any:
    text = {**_text(head_dim=16, **given), "model_type": "llama"}
    vision = {
        **_VISION,
        "image_size": IMAGE_SIZE,
        "patch_size": 8,
        "projection_dim": 32,
        "model_type": "clip_vision_model",
    }
    ids = {"image_token_index": 3, "pad_token_id": 4}
    return model("LlavaForConditionalGeneration", text_config=text, vision_config=vision, **ids)


def _dpt() -> Any:
    from transformers import DPTConfig, DPTForDepthEstimation

    config = DPTConfig(
        **{**_VISION, "num_hidden_layers": 4},
        image_size=IMAGE_SIZE,
        patch_size=16,
        neck_hidden_sizes=[16, 16, 32, 32],
        backbone_out_indices=[0, 1, 2, 3],
        fusion_hidden_size=32,
        is_hybrid=False,
    )
    return DPTForDepthEstimation(config)


def _clap() -> Any:
    from transformers import ClapConfig, ClapModel

    text = {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "projection_dim": WIDTH,
        "max_position_embeddings": 80,
    }
    audio = {
        "spec_size": 64,
        "window_size": 4,
        "num_mel_bins": 64,
        "intermediate_size": 32,
        "hidden_size": 32,
        "depths": [2, 2],
        "num_attention_heads": [2, 2],
        "num_hidden_layers": 2,
        "patch_size": 2,
        "patch_stride": 2,
        "patch_embed_input_channels": 4,
        "patch_embeds_hidden_size": 16,
        "projection_dim": WIDTH,
        "hidden_size_ratio": 1,
    }
    return ClapModel(ClapConfig(text_config=text, audio_config=audio, projection_dim=WIDTH))


def _gpt2() -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=256, n_embd=16, n_layer=2, n_head=2))


def _hifi_gan(**given: object) -> Any:
    from transformers import SpeechT5HifiGan, SpeechT5HifiGanConfig

    sizes = {
        "model_in_dim": 8,
        "sampling_rate": 16000,
        "upsample_initial_channel": 16,
        "upsample_rates": [2, 2],
        "upsample_kernel_sizes": [4, 4],
        "resblock_kernel_sizes": [3, 7],
        "resblock_dilation_sizes": [[1, 3, 5], [1, 3, 5]],
        "normalize_before": False,
    }
    return SpeechT5HifiGan(SpeechT5HifiGanConfig(**{**sizes, **given}))


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
    "CLIPTextModel": functools.partial(_clip_text, "CLIPTextModel"),
    "CLIPTextModelWithProjection": functools.partial(_clip_text, "CLIPTextModelWithProjection"),
    "CLIPVisionModel": functools.partial(model, "CLIPVisionModel", patch_size=8),
    "CLIPVisionModelWithProjection": functools.partial(model, "CLIPVisionModelWithProjection", patch_size=8),
    "ChatGLMModel": _chatglm,
    "ClapModel": _clap,
    "DPTForDepthEstimation": _dpt,
    "GPT2LMHeadModel": _gpt2,
    "Gemma2PreTrainedModel": functools.partial(model, "Gemma2Model"),
    "Gemma3ForConditionalGeneration": _gemma3,
    "GemmaPreTrainedModel": functools.partial(model, "GemmaModel"),
    "LlavaForConditionalGeneration": _llava,
    "Mistral3ForConditionalGeneration": functools.partial(_mistral3, "Mistral3ForConditionalGeneration"),
    "Mistral3Model": functools.partial(_mistral3, "Mistral3Model"),
    "MultilingualCLIP": _multilingual_clip,
    "PreTrainedModel": functools.partial(model, "Qwen3Model"),
    "Qwen2VLForConditionalGeneration": functools.partial(_qwen_vl, "Qwen2VLForConditionalGeneration", _QWEN2_VISION),
    "Qwen2_5_VLForConditionalGeneration": functools.partial(
        _qwen_vl, "Qwen2_5_VLForConditionalGeneration", _QWEN2_5_VISION
    ),
    "Qwen2_5_VLTextModel": _qwen2_5_vl_text,
    "Qwen3VLForConditionalGeneration": functools.partial(_qwen_vl, "Qwen3VLForConditionalGeneration", _QWEN3_VISION),
    "Qwen3VLModel": functools.partial(_qwen_vl, "Qwen3VLModel", _QWEN3_VISION),
    "Qwen3_5ForConditionalGeneration": functools.partial(
        _qwen_vl,
        "Qwen3_5ForConditionalGeneration",
        _QWEN3_VISION,
        layer_types=["linear_attention", "full_attention"],
    ),
    "Siglip2VisionModel": functools.partial(model, "Siglip2VisionModel", patch_size=8, num_patches=16),
    "SiglipVisionModel": functools.partial(model, "SiglipVisionModel", patch_size=8),
    "SpeechT5HifiGan": _hifi_gan,
    "T5Gemma2Encoder": _t5gemma2_encoder,
    "T5GemmaEncoder": _t5gemma_encoder,
    "T5GemmaEncoderModel": _t5gemma_encoder,
}


def _clip_images(side: int = IMAGE_SIZE) -> Any:
    return transformers.CLIPImageProcessor(size={"shortest_edge": side}, crop_size=side)


def _clip_processor() -> Any:
    return transformers.CLIPProcessor(image_processor=_clip_images(), tokenizer=tokenizers.clip())


def _siglip_images() -> Any:
    return transformers.SiglipImageProcessor(size={"height": IMAGE_SIZE, "width": IMAGE_SIZE})


def _siglip2_images() -> Any:
    return transformers.Siglip2ImageProcessor(patch_size=8, max_num_patches=16)


def _dpt_images() -> Any:
    return transformers.DPTImageProcessor(size={"height": IMAGE_SIZE, "width": IMAGE_SIZE})


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


PROCESSORS: Mapping[str, Callable[..., Any]] = {
    "CLIPImageProcessor": _clip_images,
    "CLIPProcessor": _clip_processor,
    "ClapFeatureExtractor": lambda: transformers.ClapFeatureExtractor(),
    "DPTImageProcessor": _dpt_images,
    "Qwen2VLProcessor": functools.partial(_qwen_processor, "Qwen2VL"),
    "Qwen2_5_VLProcessor": functools.partial(_qwen_processor, "Qwen2_5_VL"),
    "Qwen3VLProcessor": functools.partial(_qwen_processor, "Qwen3VL"),
    "Siglip2ImageProcessor": _siglip2_images,
    "SiglipImageProcessor": _siglip_images,
}
