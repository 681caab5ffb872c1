"""Sound, pixels without text, Kandinsky 2 and 3, and what else is neither an image transformer nor a video."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from support.tiny_pipelines import tokenizers
from support.tiny_pipelines.build import TinyPipeline, part
from support.tiny_pipelines.language import WIDTH
from support.tiny_pipelines.media import IMAGE, MASK, PROMPT, SIZE, noise, sound
from support.tiny_pipelines.sizes import EIGHTH


def _sounds() -> Iterator[TinyPipeline]:
    rain = {"prompt": "rain", "num_inference_steps": 2}
    edm = part(sigma_min=0.3, sigma_max=500, sigma_data=1.0, solver_order=2, prediction_type="v_prediction")
    projection = part(text_encoder_dim=WIDTH, conditioning_dim=WIDTH, min_value=0, max_value=512)
    stable = {"scheduler": edm, "projection_model": projection}
    yield TinyPipeline("StableAudioPipeline", {**rain, "audio_end_in_s": 0.25}, stable)
    short = {**rain, "duration": 0.25}
    yield TinyPipeline("StableAudio3Pipeline", short)
    given = {"audio": sound(0.25, 44100)[None]}
    yield TinyPipeline("StableAudio3AudioToAudioPipeline", {**short, **given, "init_noise_level": 0.5})
    between = {"mask_start_seconds": 0.05, "mask_end_seconds": 0.2}
    yield TinyPipeline("StableAudio3InpaintPipeline", {**short, **given, **between})
    # A position per transformer of a block: the language model's states, then T5's.
    unet = {"cross_attention_dim": [[None, 16, 32, 32]] * 2}
    yield TinyPipeline(
        "AudioLDM2Pipeline",
        {**rain, "audio_length_in_s": 0.2, "max_new_tokens": 4},
        {
            "unet": part(**unet),
            "projection_model": part(text_encoder_dim=WIDTH, text_encoder_1_dim=WIDTH, langauge_model_dim=16),
            "vae": part(in_channels=1, out_channels=1),
            "text_encoder_2": part("T5EncoderModel"),
            "tokenizer_2": part("T5Tokenizer"),
        },
    )
    yield TinyPipeline("AceStepPipeline", {**rain, "audio_duration": 0.4})
    yield TinyPipeline("LongCatAudioDiTPipeline", {**rain, "audio_duration_s": 0.2})


def _unconditional() -> Iterator[TinyPipeline]:
    steps = {"num_inference_steps": 2}
    yield TinyPipeline("DDPMPipeline", steps)
    yield TinyPipeline("DDIMPipeline", steps)
    yield TinyPipeline("ConsistencyModelPipeline", steps)
    yield TinyPipeline("DiTPipeline", {**steps, "class_labels": [1]})
    yield TinyPipeline(
        "LDMSuperResolutionPipeline",
        {**steps, **IMAGE},
        {
            "unet": part(in_channels=6),
            "vqvae": part(latent_channels=3, vq_embed_dim=3),
            "scheduler": part("DDIMScheduler"),
        },
    )
    yield TinyPipeline(
        "LDMTextToImagePipeline",
        {**PROMPT, **SIZE},
        {
            "vqvae": part("AutoencoderKL", **EIGHTH),
            "bert": _ldm_bert,
            "unet": part("UNet2DConditionModel"),
            "scheduler": part("DDIMScheduler"),
        },
    )


def _ldm_bert() -> Any:
    from diffusers.pipelines.latent_diffusion.pipeline_latent_diffusion import LDMBertConfig, LDMBertModel

    config = LDMBertConfig(
        vocab_size=len(tokenizers.bert()),
        d_model=WIDTH,
        encoder_layers=2,
        encoder_ffn_dim=32,
        encoder_attention_heads=2,
        head_dim=16,
    )
    return LDMBertModel(config)


_SIMPLE = {
    "out_channels": 8,
    "encoder_hid_dim": WIDTH,
    "resnet_time_scale_shift": "scale_shift",
    "down_block_types": ("ResnetDownsampleBlock2D", "SimpleCrossAttnDownBlock2D"),
    "up_block_types": ("SimpleCrossAttnUpBlock2D", "ResnetUpsampleBlock2D"),
    "mid_block_type": "UNetMidBlock2DSimpleCrossAttn",
}
_MOVQ = {
    "block_out_channels": (32, 32),
    "norm_num_groups": 32,
    "norm_type": "spatial",
    "down_block_types": ("DownEncoderBlock2D", "AttnDownEncoderBlock2D"),
    "up_block_types": ("AttnUpDecoderBlock2D", "UpDecoderBlock2D"),
}
# The same for a pipeline that counts on eight pixels per latent.
_MOVQ_8 = {
    **_MOVQ,
    "block_out_channels": (32,) * 4,
    "down_block_types": ("DownEncoderBlock2D",) * 3 + ("AttnDownEncoderBlock2D",),
    "up_block_types": ("AttnUpDecoderBlock2D",) + ("UpDecoderBlock2D",) * 3,
}


def _kandinsky() -> Iterator[TinyPipeline]:
    image_embeds = {"image_embeds": noise(1, WIDTH, seed=1), "negative_image_embeds": noise(1, WIDTH, seed=2)}
    prior = {"prior_num_inference_steps": 2}
    scheduler = {"scheduler": part("DDIMScheduler"), "movq": part(**_MOVQ)}
    first = {**_SIMPLE, "encoder_hid_dim_type": "text_image_proj", "addition_embed_type": "text_image"}
    text = {**scheduler, "unet": part(**first)}
    painted = {**scheduler, "unet": part(**first, in_channels=9)}
    call = {**PROMPT, **SIZE}
    changed = {**call, "num_inference_steps": 4, **IMAGE, "strength": 0.5}
    yield TinyPipeline("KandinskyPipeline", {**call, **image_embeds}, text)
    yield TinyPipeline("KandinskyImg2ImgPipeline", {**changed, **image_embeds}, text)
    yield TinyPipeline("KandinskyInpaintPipeline", {**call, **IMAGE, **MASK, **image_embeds}, painted)
    yield TinyPipeline("KandinskyCombinedPipeline", {**call, **prior}, text)
    yield TinyPipeline("KandinskyImg2ImgCombinedPipeline", {**changed, **prior}, text)
    yield TinyPipeline("KandinskyInpaintCombinedPipeline", {**call, **IMAGE, **MASK, **prior}, painted)
    yield TinyPipeline("KandinskyPriorPipeline", PROMPT)
    second = {**_SIMPLE, "encoder_hid_dim_type": "image_proj", "addition_embed_type": "image"}
    ddpm = {"scheduler": part("DDPMScheduler"), "movq": part(**_MOVQ)}
    plain = {**ddpm, "unet": part(**second)}
    masked = {**ddpm, "unet": part(**second, in_channels=9)}
    hinted = {**ddpm, "unet": part(**{**second, "addition_embed_type": "image_hint"}, in_channels=8)}
    wordless = {key: value for key, value in call.items() if key != "prompt"}
    resized = {key: value for key, value in changed.items() if key != "prompt"}
    hint = {"hint": noise(1, 3, 128, 128)}
    yield TinyPipeline("KandinskyV22Pipeline", {**wordless, **image_embeds}, plain)
    yield TinyPipeline("KandinskyV22Img2ImgPipeline", {**resized, **image_embeds}, plain)
    yield TinyPipeline("KandinskyV22InpaintPipeline", {**wordless, **IMAGE, **MASK, **image_embeds}, masked)
    yield TinyPipeline("KandinskyV22ControlnetPipeline", {**wordless, **hint, **image_embeds}, hinted)
    yield TinyPipeline("KandinskyV22ControlnetImg2ImgPipeline", {**resized, **hint, **image_embeds}, hinted)
    yield TinyPipeline("KandinskyV22CombinedPipeline", {**call, **prior}, plain)
    yield TinyPipeline("KandinskyV22Img2ImgCombinedPipeline", {**changed, **prior}, plain)
    yield TinyPipeline("KandinskyV22InpaintCombinedPipeline", {**call, **IMAGE, **MASK, **prior}, masked)
    yield TinyPipeline("KandinskyV22PriorPipeline", PROMPT)
    yield TinyPipeline(
        "KandinskyV22PriorEmb2EmbPipeline", {**PROMPT, "num_inference_steps": 4, **IMAGE, "strength": 0.5}
    )
    third = {"movq": part(**_MOVQ_8)}
    yield TinyPipeline("Kandinsky3Pipeline", {**call, "height": 64, "width": 64}, third)
    resized = {key: value for key, value in changed.items() if key not in SIZE}
    yield TinyPipeline("Kandinsky3Img2ImgPipeline", resized, third)


def _shapes() -> Iterator[TinyPipeline]:
    prior = part(
        num_layers=1,
        embedding_dim=16,
        num_embeddings=32,
        embedding_proj_dim=WIDTH,
        time_embed_dim=64,
        clip_embed_dim=32,
        additional_embeddings=0,
        time_embed_act_fn="gelu",
        norm_in_type="layer",
        encoder_hid_proj_type=None,
        added_emb_type=None,
    )
    renderer = part(
        param_shapes=((8, 93), (8, 8), (8, 8), (8, 8)),
        d_latent=16,
        d_hidden=8,
        n_output=12,
        background=(0.1, 0.1, 0.1),
    )
    heun = part(
        beta_schedule="exp",
        num_train_timesteps=1024,
        prediction_type="sample",
        use_karras_sigmas=True,
        clip_sample=True,
        clip_sample_range=1.0,
    )
    parts = {"prior": prior, "shap_e_renderer": renderer, "scheduler": heun}
    call = {"num_inference_steps": 2, "frame_size": 32}
    yield TinyPipeline("ShapEPipeline", {"prompt": "a shark", **call}, parts)
    yield TinyPipeline("ShapEImg2ImgPipeline", {**IMAGE, **call}, parts)


_CASCADE = {
    "conditioning_dim": WIDTH,
    "num_attention_heads": (2, 2),
    "down_num_layers_per_block": (1, 1),
    "up_num_layers_per_block": (1, 1),
    "clip_text_pooled_in_channels": WIDTH,
    "block_out_channels": (32, 32),
    "timestep_ratio_embedding_dim": 16,
}


def _cascade() -> Iterator[TinyPipeline]:
    prior = part(
        **_CASCADE,
        switch_level=(False,),
        clip_text_in_channels=WIDTH,
        clip_image_in_channels=768,
    )
    decoder = part(**_CASCADE, in_channels=4, out_channels=4, effnet_in_channels=16, pixel_mapper_in_channels=3)
    vqgan = part(bottleneck_blocks=1, embed_dim=16, num_vq_embeddings=16)
    size = {**PROMPT, "height": 128, "width": 128}
    yield TinyPipeline("StableCascadePriorPipeline", size, {"prior": prior})
    embeddings = {"image_embeddings": noise(1, 16, 4, 4)}
    yield TinyPipeline("StableCascadeDecoderPipeline", {**PROMPT, **embeddings}, {"decoder": decoder, "vqgan": vqgan})
    both = {"prior_prior": prior, "decoder": decoder, "vqgan": vqgan}
    yield TinyPipeline("StableCascadeCombinedPipeline", {**size, "prior_num_inference_steps": 2}, both)


def _texts() -> Iterator[TinyPipeline]:
    call = {"prompt": "a red cat", "gen_length": 8, "num_inference_steps": 2}
    parts = {"model": part("Qwen3ForCausalLM"), "tokenizer": _masked_tokenizer, "scheduler": part()}
    yield TinyPipeline("LLaDA2Pipeline", {**call, "block_length": 4, "use_chat_template": False}, parts)
    gemma = {"model": part("DiffusionGemmaForBlockDiffusion"), "processor": part("GemmaTokenizer")}
    yield TinyPipeline("DiffusionGemmaPipeline", call, {**gemma, "scheduler": part("EntropyBoundScheduler")})


def _masked_tokenizer() -> Any:
    tokenizer = tokenizers.qwen2()
    tokenizer.mask_token = "<|vision_pad|>"
    return tokenizer


def declared() -> Iterator[TinyPipeline]:
    """Every class of these families."""
    for family in (_sounds, _unconditional, _kandinsky, _shapes, _cascade, _texts):
        yield from family()
