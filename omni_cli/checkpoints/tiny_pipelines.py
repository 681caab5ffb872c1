"""Recipes of pipelines of diffusers: Qwen-Image, FLUX.2 klein, Wan, Stable Audio and GLM-Image.

Gains are large enough for the prompt to affect the result next to the initial noise. Schedulers are the released ones.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import diffusers
import transformers
from tokenizers import AddedToken, decoders
from tokenizers.models import BPE
from transformers.models.glm_image.image_processing_glm_image import GlmImageImageProcessor

from omni_cli.checkpoints.tiny import ROPE, Checkpoint, DecoderSizes, RandomModel, State, builder
from omni_cli.checkpoints.tokenizer import byte_level_tokenizer, train_bpe, train_tokenizer

_VOCAB_SIZE, _TEXT_SIZE = 1024, 64
_GAINS = {"to_out": 2.0, "proj_out": 3.0}
_BLOCKS = dict(num_layers=2, num_attention_heads=2, attention_head_dim=32)


def image() -> Checkpoint:
    """Qwen-Image, whose text encoder has the smallest vision tower, because the pipeline reads text only."""
    tokenizer, gains = train_tokenizer(_VOCAB_SIZE, 4096), {**_GAINS, "add_v_proj": 4.0}
    text, token_id = DecoderSizes(_TEXT_SIZE, 128, 2, 2, 1, 32), tokenizer.convert_tokens_to_ids
    vision = dict(hidden_size=32, intermediate_size=64, depth=1, num_heads=1, out_hidden_size=_TEXT_SIZE)
    encoder = {
        "text_config": {**text.config_of_whole_heads, **_text_keys(tokenizer, 4096), "rope_parameters": text.mrope},
        "vision_config": {**vision, "fullatt_block_indexes": [0]},
        "image_token_id": token_id("<|IMAGE|>"),
        "video_token_id": token_id("<|VIDEO|>"),
        "vision_start_token_id": token_id("<|vision_bos|>"),
        "vision_end_token_id": token_id("<|vision_eos|>"),
    }
    # Of the rotary pairs for time, height and width, Qwen-Image's own proportions.
    transformer = dict(_BLOCKS, joint_attention_dim=_TEXT_SIZE, axes_dims_rope=(4, 14, 14))
    vae = dict(base_dim=16, dim_mult=[1, 2, 2, 2], num_res_blocks=1)
    models = {
        "transformer": RandomModel(diffusers.QwenImageTransformer2DModel, transformer, gains),
        "vae": RandomModel(diffusers.AutoencoderKLQwenImage, vae, gains),
        "text_encoder": RandomModel(transformers.Qwen2_5_VLForConditionalGeneration, encoder, gains),
    }
    scheduler = diffusers.FlowMatchEulerDiscreteScheduler(
        max_image_seq_len=8192, max_shift=0.9, shift_terminal=0.02, use_dynamic_shifting=True
    )
    return Checkpoint(models, tokenizer, pipeline=diffusers.QwenImagePipeline, others={"scheduler": scheduler})


def _text_keys(tokenizer: Any, length: int) -> dict[str, int]:
    """Return the keys that the configurations of language models share."""
    pad, end = tokenizer.pad_token_id, tokenizer.eos_token_id
    ids = {"bos_token_id": pad, "eos_token_id": end, "pad_token_id": pad}
    return {"vocab_size": _VOCAB_SIZE, "max_position_embeddings": length, **ids}


def _t5(tokenizer: Any) -> dict[str, int]:
    sizes = dict(vocab_size=_VOCAB_SIZE, d_model=_TEXT_SIZE, d_kv=16, d_ff=128, num_layers=2, num_heads=4)
    return {**sizes, "pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id}


def edit() -> Checkpoint:
    """FLUX.2 klein, which makes and edits images."""
    tokenizer, gains, latent_channels = train_tokenizer(_VOCAB_SIZE, 512), {**_GAINS, "to_add_out": 2.0}, 8
    # The turns of Qwen3, with an empty thought before the answer, as `enable_thinking=False` has it.
    tokenizer.chat_template = (
        "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n\n</think>\n\n{% endif %}"
    )
    text = {**DecoderSizes(_TEXT_SIZE, 128, 3, 2, 1, 32)._asdict(), **_text_keys(tokenizer, 1024)}
    transformer = dict(
        {**_BLOCKS, "num_layers": 1, "num_single_layers": 2},
        in_channels=4 * latent_channels,  # four latent pixels are one token
        joint_attention_dim=3 * _TEXT_SIZE,  # the pipeline joins the hidden states of three layers of the text encoder
        timestep_guidance_channels=32,
        axes_dims_rope=(8, 8, 8, 8),
        guidance_embeds=False,
    )
    blocks = dict(block_out_channels=(16, 32, 32, 32), layers_per_block=1, norm_num_groups=8)
    vae = dict(blocks, latent_channels=latent_channels, sample_size=64)
    models = {
        "text_encoder": RandomModel(transformers.Qwen3ForCausalLM, text, gains),
        "transformer": RandomModel(diffusers.Flux2Transformer2DModel, transformer, gains),
        "vae": RandomModel(diffusers.AutoencoderKLFlux2, vae, gains),
    }
    scheduler = diffusers.FlowMatchEulerDiscreteScheduler(shift=3.0, use_dynamic_shifting=True)
    others = {"scheduler": scheduler, "is_distilled": True}
    return Checkpoint(models, tokenizer, pipeline=diffusers.Flux2KleinPipeline, others=others)


def video(pipeline: str = "WanPipeline") -> Checkpoint:
    """Wan: text to video with the two experts of Wan 2.2, image to video, or video to video with one expert."""
    tokenizer = train_tokenizer(_VOCAB_SIZE, 512)
    is_from_image, is_from_video = pipeline == "WanImageToVideoPipeline", pipeline == "WanVideoToVideoPipeline"
    gains = {**_GAINS, "decoder.conv_out": 0.4}  # pixels in [-1, 1]
    transformer = dict(_BLOCKS, text_dim=_TEXT_SIZE, freq_dim=64, ffn_dim=128)
    if is_from_image:
        # Beside the noise, the latents of an image, and a mask of the frames that it gives, four per latent frame.
        transformer["in_channels"] = 16 + 16 + 4
    # Frames become one latent frame per four, and one for the first, of an eighth of their size.
    vae = dict(base_dim=8, dim_mult=[1, 2, 2, 2], num_res_blocks=1)
    models = {
        "text_encoder": RandomModel(transformers.UMT5EncoderModel, _t5(tokenizer), gains),
        "vae": RandomModel(diffusers.AutoencoderKLWan, vae, gains),
    }
    for name in ("transformer",) if is_from_video else ("transformer", "transformer_2"):
        models[name] = RandomModel(diffusers.WanTransformer3DModel, transformer, gains)
    scheduler = diffusers.UniPCMultistepScheduler(
        flow_shift=3.0, prediction_type="flow_prediction", use_flow_sigmas=True
    )
    others = {"scheduler": scheduler}
    if not is_from_video:
        others["boundary_ratio"] = 0.875  # the share of the noise above which the first expert denoises
    if is_from_image:
        others |= {"image_encoder": None, "image_processor": None}
    return Checkpoint(models, tokenizer, pipeline=getattr(diffusers, pipeline), others=others)


def audio() -> Checkpoint:
    """Stable Audio; stereo at 44.1 kHz."""
    tokenizer, latent_channels = train_tokenizer(_VOCAB_SIZE, 128), 8
    gains = {**_GAINS, "decoder.conv2": 1e-3}  # samples in [-1, 1]
    projection = dict(text_encoder_dim=_TEXT_SIZE, conditioning_dim=_TEXT_SIZE, min_value=0, max_value=512)
    blocks = dict(num_layers=2, attention_head_dim=16, num_attention_heads=4, num_key_value_attention_heads=2)
    conditions = dict(cross_attention_dim=_TEXT_SIZE, cross_attention_input_dim=_TEXT_SIZE)
    transformer = dict(
        **blocks,
        **conditions,
        global_states_input_dim=2 * _TEXT_SIZE,
        time_proj_dim=64,
        sample_size=172,
        in_channels=latent_channels,
        out_channels=latent_channels,
    )
    strides = dict(downsampling_ratios=[2, 4, 8, 8], channel_multiples=[1, 1, 2, 2])
    vae = dict(strides, encoder_hidden_size=16, decoder_channels=16, decoder_input_channels=latent_channels)
    models = {
        "text_encoder": RandomModel(transformers.T5EncoderModel, _t5(tokenizer), gains),
        "projection_model": RandomModel(diffusers.StableAudioProjectionModel, projection, gains),
        "transformer": RandomModel(diffusers.StableAudioDiTModel, transformer, gains),
        "vae": RandomModel(diffusers.AutoencoderOobleck, vae, gains),
    }
    scheduler = diffusers.EDMDPMSolverMultistepScheduler(
        sigma_min=0.3, sigma_max=500, sigma_data=1.0, prediction_type="v_prediction"
    )
    return Checkpoint(models, tokenizer, pipeline=diffusers.StableAudioPipeline, others={"scheduler": scheduler})


_GLM_GRIDS = {"grid_bos_token": "<sop>", "grid_eos_token": "<eop>"}
_GLM_TOKENS = ("<|endoftext|>", "[gMASK]", *_GLM_GRIDS.values(), "<|user|>", "<|assistant|>", "<|image|>")
_GLM_TEMPLATE = (
    "{%- for message in messages -%}"
    "{%- if message.content is string -%}{{- message.content -}}{%- else -%}"
    "{%- for part in message.content -%}"
    "{%- if part.type == 'image' -%}{{- bos_token + '<|image|>' + eos_token -}}"
    "{%- else -%}{{- part.text -}}{%- endif -%}"
    "{%- endfor -%}{%- endif -%}{%- endfor -%}"
)
_GLM_PATCH_SIZE, _GLM_LENGTH = 16, 8192
_GLM_PAINTER_GAINS = {"prior_token_embedding": 2.0, "glyph_projector": 2.0, **_GAINS}
# Large enough for the prompt to determine the tokens.
_GLM_PRIOR_GAINS = {"embed_tokens": 4.0, "lm_head": 4.0, "q_proj": 2.0, "k_proj": 2.0, "o_proj": 2.0, "down_proj": 2.0}


class GlmImageSizes(NamedTuple):
    """A GLM-Image pipeline. The defaults are `tiny-glm-image`'s; the ids of image tokens are the released model's.

    `num_text_tokens` is the size of the vocabulary for text, which follows the `vision_vocab_size` ids for images.
    """

    num_text_tokens: int = 768
    num_image_tokens: int = 16384
    vision_vocab_size: int = 16512
    decoder: DecoderSizes = DecoderSizes(64, 128, 2, 2, 1, 32)
    vision_hidden_size: int = 64
    glyph_size: int = 64
    vae_width: int = 16


def glm_image(sizes: GlmImageSizes) -> Checkpoint:
    """GLM-Image: a language model whose tokens a diffusion transformer paints."""
    tokenizer, size, gains = _glm_tokenizer(sizes), sizes.glyph_size, _GLM_PAINTER_GAINS
    glyphs = dict(vocab_size=384, d_model=size, d_kv=32, d_ff=2 * size, num_layers=2, num_heads=2)
    transformer = dict(
        _BLOCKS,
        text_embed_dim=size,
        time_embed_dim=64,
        condition_dim=32,
        prior_vq_quantizer_codebook_size=sizes.num_image_tokens,
    )
    vae = dict(
        block_out_channels=[sizes.vae_width * factor for factor in (1, 1, 2, 2)],
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        norm_num_groups=8,
        latent_channels=16,
        sample_size=1024,
        use_quant_conv=False,
        use_post_quant_conv=False,
        mid_block_add_attention=False,
        latents_mean=[0.05 * channel - 0.4 for channel in range(16)],
        latents_std=[1.0 + 0.05 * channel for channel in range(16)],
    )
    models = {
        "text_encoder": RandomModel(transformers.T5EncoderModel, {**glyphs, "feed_forward_proj": "gated-gelu"}, gains),
        "vae": RandomModel(diffusers.AutoencoderKL, vae, gains),
        "transformer": RandomModel(diffusers.GlmImageTransformer2DModel, transformer, gains),
        "vision_language_encoder": _glm_prior(sizes, tokenizer),
    }
    # The area that condition images are scaled to, before they become tokens.
    area = {"shortest_edge": 64 * 64, "longest_edge": 2048 * 2048}
    images = GlmImageImageProcessor(patch_size=_GLM_PATCH_SIZE, merge_size=1, temporal_patch_size=1, size=area)
    scheduler = diffusers.FlowMatchEulerDiscreteScheduler(
        base_shift=0.25, max_shift=0.75, time_shift_type="linear", use_dynamic_shifting=True
    )
    processor = transformers.GlmImageProcessor(images, tokenizer, chat_template=_GLM_TEMPLATE)
    others = {"scheduler": scheduler, "processor": processor}
    return Checkpoint(models, transformers.ByT5Tokenizer(), pipeline=diffusers.GlmImagePipeline, others=others)


def _glm_tokenizer(sizes: GlmImageSizes) -> Any:
    """Train a tokenizer whose first ids are image tokens."""
    text, merges = train_bpe(sizes.num_text_tokens)
    names = [f"<|dit_token_{index}|>" for index in range(sizes.vision_vocab_size)] + [*text, *_GLM_TOKENS]
    backend = byte_level_tokenizer()
    backend.model = BPE(vocab={name: index for index, name in enumerate(names)}, merges=merges)
    backend.decoder = decoders.ByteLevel()
    bos, eos = names[sizes.num_image_tokens], names[sizes.num_image_tokens + 1]
    backend.add_special_tokens([AddedToken(token, special=True) for token in (bos, eos, *_GLM_TOKENS)])
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token=bos,
        eos_token=eos,
        pad_token="<|endoftext|>",
        extra_special_tokens={"image_token": "<|image|>", **_GLM_GRIDS},
        model_max_length=_GLM_LENGTH,
        clean_up_tokenization_spaces=False,
    )


def _glm_prior(sizes: GlmImageSizes, tokenizer: Any) -> RandomModel:
    end, pad, width = sizes.num_image_tokens + 1, tokenizer.pad_token_id, sizes.vision_hidden_size
    vision = dict(depth=2, hidden_size=width, intermediate_size=2 * width, num_heads=2, image_size=128)
    mrope = [size // 2 for size in sizes.decoder.mrope_section]  # half of each head has positions
    config = {
        "text_config": {
            **sizes.decoder.config_of_whole_heads,
            "vocab_size": len(tokenizer),
            "vision_vocab_size": sizes.vision_vocab_size,
            "max_position_embeddings": _GLM_LENGTH,
            "rope_parameters": {**ROPE, "rope_theta": 1e4, "partial_rotary_factor": 0.5, "mrope_section": mrope},
            "eos_token_id": end,
            "pad_token_id": pad,
        },
        "vision_config": {**vision, "patch_size": _GLM_PATCH_SIZE},
        "vq_config": dict(embed_dim=32, num_embeddings=sizes.num_image_tokens, latent_channels=width),
        "image_token_id": tokenizer.convert_tokens_to_ids("<|image|>"),
        "image_start_token_id": sizes.num_image_tokens,
        "image_end_token_id": end,
        "architectures": ["GlmImageForConditionalGeneration"],
    }
    # The released model's sampling.
    generation = dict(do_sample=True, temperature=0.9, top_p=0.75, eos_token_id=end, pad_token_id=pad)
    kind = transformers.GlmImageForConditionalGeneration
    return RandomModel(kind, config, _GLM_PRIOR_GAINS, adjust=_never_end, generation=generation)


def _never_end(state: State, config: Any, _draw: object) -> None:
    """Make ids other than image tokens improbable, as training does, so that no image ends early.

    One dimension of the residual stream is constant and lowers the logits of those ids.
    """
    state["model.language_model.embed_tokens.weight"][:, 0] = 4.0
    for name, weight in state.items():
        if name.endswith(("post_self_attn_layernorm.weight", "post_mlp_layernorm.weight")):
            weight[0] = 0.0
    head = state["lm_head.weight"]
    head[:, 0] = 0.0
    head[config.image_start_token_id :] = 0.0
    head[config.image_start_token_id :, 0] = -100.0


tiny_image, tiny_edit, tiny_video, tiny_audio = builder(image), builder(edit), builder(video), builder(audio)
tiny_glm_image = builder(glm_image, GlmImageSizes())
