"""Constructor arguments that make diffusers' models small.

A text encoder is 32 wide (`language.WIDTH`). Rotary axes add up to the size of a head.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Sizes = Mapping[str, Any]

# Of every class whose constructor has the argument, unless its row below has another value.
SMALL: Sizes = {
    **dict.fromkeys(("cap_feat_dim", "caption_channels", "caption_projection_dim", "context_in_dim"), 32),
    **dict.fromkeys(("cross_attention_dim", "cross_attention_dim_t5", "image_embed_dim", "in_text_dim"), 32),
    **dict.fromkeys(("in_text_dim2", "joint_attention_dim", "pooled_projection_dim", "text_dim"), 32),
    **dict.fromkeys(("text_embed_2_dim", "text_embed_dim", "text_hidden_dim", "dim", "ff_dim", "ffn_dim"), 32),
    **dict.fromkeys(("freq_dim", "hidden_size", "intermediate_size", "model_dim"), 32),
    **dict.fromkeys(("num_cross_attention_heads", "depth", "motion_num_attention_heads", "n_heads", "n_kv_heads"), 2),
    **dict.fromkeys(("num_attention_heads", "num_heads", "num_hidden_layers", "num_key_value_heads"), 2),
    **dict.fromkeys(("attention_head_dim", "head_dim", "mel_bins", "multiple_of", "sample_size", "time_dim"), 16),
    **dict.fromkeys(("condition_dim", "adaln_lora_dim", "base_dim", "in_visual_dim", "latent_channels"), 4),
    **dict.fromkeys(("norm_num_groups", "out_visual_dim", "sample_height", "sample_width"), 4),
    **dict.fromkeys(("num_text_blocks", "layers_per_block", "n_refiner_layers", "num_refiner_layers"), 1),
    **dict.fromkeys(("num_res_blocks", "num_single_layers", "num_visual_blocks"), 1),
    **dict.fromkeys(("cross_attention_head_dim", "latent_dim", "time_embed_dim"), 8),
    **dict.fromkeys(("axes_dims", "axes_dims_rope", "rope_axes_dim"), (4, 6, 6)),
    "num_layers": 2,
    "sample_frames": 5,
    "rope_max_seq_len": 64,
    "block_out_channels": (16, 32),
    "encoder_block_out_channels": (8, 8),
    "dim_mult": [1] * 4,
    "axes_lens": (512, 64, 64),
    "conditioning_embedding_out_channels": (8, 16),
    "vocab_size": 1024,
    "max_size": (16, 32, 32),
    "rope_dim_list": [4, 6, 6],
}

_LATENTS: Sizes = dict(in_channels=4, out_channels=4)
_KL: Sizes = dict(
    block_out_channels=(8, 16), down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2
)
_UNET: Sizes = dict(norm_num_groups=8, attention_head_dim=8, num_attention_heads=None)
_SD3: Sizes = dict(
    in_channels=4, out_channels=4, joint_attention_dim=64, pooled_projection_dim=64, pos_embed_max_size=32
)

SIZES: Mapping[str, Sizes] = {
    "AceStepConditionEncoder": dict(
        timbre_hidden_dim=8, num_lyric_encoder_hidden_layers=1, num_timbre_encoder_hidden_layers=1
    ),
    "AceStepTransformer1DModel": dict(in_channels=24, audio_acoustic_hidden_dim=8),
    "AllegroTransformer3DModel": dict(attention_head_dim=24, cross_attention_dim=48),
    "AnimaTextConditioner": dict(source_dim=32, target_dim=32, num_layers=1),
    "AnyFlowFARTransformer3DModel": dict(attention_head_dim=12),
    "AnyFlowTransformer3DModel": dict(attention_head_dim=12),
    "AudioLDM2UNet2DConditionModel": dict(
        sample_size=None,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        block_out_channels=(8, 16),
        norm_num_groups=8,
        cross_attention_dim=1280,
        attention_head_dim=4,
        num_attention_heads=None,
    ),
    "AuraFlowTransformer2DModel": dict(num_mmdit_layers=1, num_single_dit_layers=1, pos_embed_max_size=256),
    "AutoencoderDC": dict(
        attention_head_dim=2,
        encoder_block_types=("ResBlock", "EfficientViTBlock"),
        decoder_block_types=("ResBlock", "EfficientViTBlock"),
        decoder_block_out_channels=(8, 8),
        encoder_layers_per_block=(1, 1),
        decoder_layers_per_block=(1, 1),
        encoder_qkv_multiscales=((), (5,)),
        decoder_qkv_multiscales=((), (5,)),
        scaling_factor=0.41407,
    ),
    "AutoencoderKL": dict(_KL, sample_size=32),
    "AutoencoderKLAllegro": dict(block_out_channels=(8, 8, 8, 8), sample_size=128),
    "AutoencoderKLCogVideoX": dict(block_out_channels=(8, 8, 8, 8), sample_height=32, sample_width=32),
    "AutoencoderKLCosmos": dict(
        latent_channels=16,
        encoder_block_out_channels=(8, 8, 8, 8),
        decode_block_out_channels=(8, 8, 8, 8),
        attention_resolutions=(8,),
        resolution=64,
        num_layers=1,
    ),
    "AutoencoderKLFlux2": dict(_KL, layers_per_block=2, sample_size=32),
    "AutoencoderKLHunyuanImage": dict(
        in_channels=3,
        out_channels=3,
        block_out_channels=(32, 32),
        spatial_compression_ratio=2,
        sample_size=32,
        scaling_factor=0.75,
    ),
    "AutoencoderKLHunyuanImageRefiner": dict(
        block_out_channels=(32, 32), spatial_compression_ratio=2, temporal_compression_ratio=1
    ),
    "AutoencoderKLHunyuanVideo": dict(block_out_channels=(8, 8, 8, 8)),
    "AutoencoderKLHunyuanVideo15": dict(block_out_channels=(32,) * 5),
    "AutoencoderKLLTX2Audio": dict(base_channels=8, ch_mult=(1, 1, 1), latent_channels=2),
    "AutoencoderKLLTX2Video": dict(
        latent_channels=8,
        block_out_channels=(8, 16, 32, 64),
        decoder_block_out_channels=(8, 16, 32),
        layers_per_block=(1,) * 5,
        decoder_layers_per_block=(1, 1, 1, 1),
        spatial_compression_ratio=32,
        temporal_compression_ratio=8,
    ),
    "AutoencoderKLLTXVideo": dict(
        latent_channels=8,
        block_out_channels=(8, 8, 8, 8),
        decoder_block_out_channels=(8, 8, 8, 8),
        layers_per_block=(1,) * 5,
        decoder_layers_per_block=(1,) * 5,
    ),
    "AutoencoderKLMagvit": dict(block_out_channels=(8, 8, 8, 8)),
    "AutoencoderKLMiniMaxH3": dict(
        latent_channels=24,
        block_out_channels=(8,) * 6,
        decoder_num_layers=1,
        decoder_num_attention_heads=2,
        decoder_attention_head_dim=16,
    ),
    "AutoencoderKLMiniMaxH3Audio": dict(
        encoder_dim=4,
        latent_dim=64,
        latent_channels=32,
        decoder_dim=128,
        latents_mean=[0.0] * 32,
        latents_std=[1.0] * 32,
    ),
    "AutoencoderKLMochi": dict(
        encoder_block_out_channels=(32,) * 4,
        decoder_block_out_channels=(32,) * 4,
        latent_channels=12,
        layers_per_block=(1,) * 5,
    ),
    "AutoencoderKLQwenImage21": dict(decoder_base_dim=4, dim_mult=[1] * 5),
    "AutoencoderKLTemporalDecoder": dict(
        down_block_types=("DownEncoderBlock2D",) * 2, block_out_channels=(32, 32), sample_size=32
    ),
    "AutoencoderOobleck": dict(
        encoder_hidden_size=8,
        downsampling_ratios=[2, 4, 8, 8],
        channel_multiples=[1, 1, 2, 2],
        decoder_channels=8,
        decoder_input_channels=8,
    ),
    "AutoencoderSAME": dict(
        patch_size=64,
        encoder_channels=16,
        encoder_c_mults=(2,),
        encoder_strides=(4,),
        encoder_transformer_depths=(1,),
        dim_heads=16,
    ),
    "AutoencoderTiny": dict(decoder_block_out_channels=(8, 8), num_encoder_blocks=(1, 1), num_decoder_blocks=(1, 1)),
    "BriaFibo2Transformer2DModel": dict(
        in_channels=4,
        n_layers=5,
        cap_feat_dim=96,
        injection_layer_ids=(0, 1, 2, 3, 4),
        perceiver_num_layers=1,
        min_num_gist_tokens=4,
        max_num_gist_tokens=8,
        gist_step=2,
        gist_min_text_len=8,
        gist_max_text_len=64,
        axes_lens=(256, 64, 64),
    ),
    "BriaFiboTransformer2DModel": dict(
        in_channels=16, joint_attention_dim=64, pooled_projection_dim=None, text_encoder_dim=32
    ),
    "BriaTransformer2DModel": dict(in_channels=16, pooled_projection_dim=None),
    "ChromaTransformer2DModel": dict(
        in_channels=16, approximator_num_channels=8, approximator_hidden_dim=16, approximator_layers=1
    ),
    "ChronoEditTransformer3DModel": dict(attention_head_dim=12),
    "CogVideoXTransformer3DModel": _LATENTS,
    "CogView3PlusTransformer2DModel": dict(_LATENTS, pos_embed_max_size=16),
    "CogView4Transformer2DModel": dict(_LATENTS, sample_size=128, rope_axes_dim=(16, 16)),
    "ConsisIDTransformer3DModel": _LATENTS,
    "ControlNetModel": dict(_UNET, down_block_types=("CrossAttnDownBlock2D", "DownBlock2D")),
    "ControlNetUnionModel": dict(
        _UNET,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        num_trans_channel=16,
        num_trans_head=2,
        num_proj_channel=16,
    ),
    "Cosmos3AVAEAudioTokenizer": dict(vocoder_input_dim=8, dec_dim=8, encoder_enabled=False),
    "Cosmos3OmniTransformer": dict(
        dtype="float32",
        latent_channel=16,
        patch_latent_dim=64,
        rope_scaling={"mrope_section": [2, 3, 3]},
        sound_dim=8,
        sound_gen=True,
        rope_axes_dim=None,
    ),
    "CosmosControlNetModel": dict(n_controlnet_blocks=1, latent_channels=18, model_channels=32),
    "DiTTransformer2DModel": dict(out_channels=8, norm_num_groups=32),
    "DreamLiteUNetModel": dict(
        _UNET,
        down_block_types=("DreamLiteCrossAttnNoSelfAttnDownBlock2D", "DreamLiteCrossAttnDownBlock2D"),
        up_block_types=("DreamLiteCrossAttnUpBlock2D", "DreamLiteUpBlock2D"),
    ),
    "EasyAnimateTransformer3DModel": dict(
        _LATENTS, patch_size=2, sample_width=90, sample_height=60, mmdit_layers=1, add_norm_text_encoder=True
    ),
    "ErnieImageTransformer2DModel": dict(ffn_hidden_size=32, in_channels=16, out_channels=16, text_in_dim=32),
    "Flux2Transformer2DModel": dict(
        in_channels=16, joint_attention_dim=96, timestep_guidance_channels=16, axes_dims_rope=(4, 4, 4, 4)
    ),
    "Flux3Transformer2DModel": dict(
        in_channels=16,
        cond_in_channels=16,
        num_layers=1,
        joint_attention_dim=256,
        timestep_channels=8,
        axes_dims_rope=(4, 4, 4, 4),
    ),
    "FluxControlNetModel": dict(in_channels=16),
    "FluxTransformer2DModel": dict(in_channels=16),
    "HeliosTransformer3DModel": dict(attention_head_dim=12, rope_dim=(4, 4, 4)),
    "HiDreamImageTransformer2DModel": dict(
        _LATENTS,
        patch_size=2,
        num_layers=1,
        caption_channels=[32, 32],
        text_emb_dim=64,
        axes_dims_rope=(8, 4, 4),
        max_resolution=(32, 32),
        llama_layers=[0, 1],
    ),
    "HunyuanDiT2DControlNetModel": dict(
        in_channels=4, patch_size=2, transformer_num_layers=2, pooled_projection_dim=16
    ),
    "HunyuanDiT2DModel": dict(in_channels=4, patch_size=2, pooled_projection_dim=16),
    "HunyuanImageTransformer2DModel": dict(_LATENTS, num_layers=1, rope_axes_dim=(8, 8)),
    "HunyuanVideo15Transformer3DModel": dict(in_channels=9, out_channels=4, num_layers=1, target_size=32),
    "HunyuanVideoFramepackTransformer3DModel": dict(
        _LATENTS, num_layers=1, has_image_proj=True, image_proj_dim=32, has_clean_x_embedder=True
    ),
    "HunyuanVideoTransformer3DModel": dict(_LATENTS, num_layers=1),
    "Ideogram4Transformer2DModel": dict(in_channels=16, adaln_dim=16, llm_features_dim=416, mrope_section=(4, 2, 2)),
    "Kandinsky3UNet": dict(
        time_embedding_dim=32, groups=2, layers_per_block=2, block_out_channels=(32, 64), encoder_hid_dim=32
    ),
    "Kandinsky6SRTransformer3DModel": dict(tile_sizes=((64, 64),)),
    "Kandinsky6SRVAE": dict(encoder_block_out_channels=(8, 8, 8, 8), decoder_block_out_channels=(8, 8, 8, 8)),
    "Kandinsky6Transformer3DModel": dict(in_audio_dim=4, out_audio_dim=4),
    "Krea2Transformer2DModel": dict(
        timestep_embed_dim=16,
        num_text_layers=3,
        text_num_attention_heads=2,
        text_num_key_value_heads=2,
        text_intermediate_size=32,
        num_layerwise_text_blocks=1,
        num_refiner_text_blocks=1,
    ),
    "LTX2LatentUpsamplerModel": dict(in_channels=8, mid_channels=32, num_blocks_per_stage=1),
    "LTX2TextConnectors": dict(
        text_proj_in_factor=3,
        video_connector_num_attention_heads=2,
        video_connector_attention_head_dim=16,
        video_connector_num_layers=1,
        video_connector_num_learnable_registers=16,
        audio_connector_num_attention_heads=2,
        audio_connector_attention_head_dim=16,
        audio_connector_num_layers=1,
        audio_connector_num_learnable_registers=16,
        video_hidden_dim=32,
        audio_hidden_dim=32,
    ),
    "LTX2VideoDiffusionDecoderModel": dict(
        latent_channels=8,
        decoder_head_dim=8,
        decoder_stage_channels=(64, 32, 16, 16, 8),
        decoder_stage_depths=(1,) * 5,
        decoder_stage_kernels=((1, 3, 3),) * 4,
        decoder_stage5_kernel=(3, 3, 3),
        decoder_t_emb_dim=16,
    ),
    "LTX2VideoTransformer3DModel": dict(
        in_channels=8,
        out_channels=8,
        audio_in_channels=8,
        audio_out_channels=8,
        audio_num_attention_heads=2,
        audio_attention_head_dim=8,
        audio_cross_attention_dim=16,
    ),
    "LTX2Vocoder": dict(
        in_channels=32,
        hidden_channels=32,
        upsample_kernel_sizes=[4, 4],
        upsample_factors=[2, 2],
        resnet_kernel_sizes=[3],
        resnet_dilations=[[1, 3, 5]],
        output_sampling_rate=16000,
    ),
    "LTXLatentUpsamplerModel": dict(in_channels=8, mid_channels=32, num_blocks_per_stage=1),
    "LTXVideoTransformer3DModel": dict(in_channels=8, out_channels=8),
    "LatteTransformer3DModel": dict(
        in_channels=4,
        out_channels=8,
        attention_bias=True,
        sample_size=4,
        patch_size=2,
        activation_fn="gelu-approximate",
        num_embeds_ada_norm=1000,
        norm_type="ada_norm_single",
        norm_elementwise_affine=False,
        video_length=2,
    ),
    "LongCatAudioDiTTransformer": dict(dit_dim=32, dit_depth=2, dit_heads=2, dit_text_dim=32),
    "LongCatAudioDiTVae": dict(
        channels=8, c_mults=[1, 1, 1], strides=[2, 4, 8], encoder_latent_dim=16, downsampling_ratio=64
    ),
    "Lumina2Transformer2DModel": dict(in_channels=4, num_kv_heads=2, axes_dim_rope=(4, 6, 6)),
    "LuminaNextDiT2DModel": dict(num_kv_heads=2),
    "MMAudioVAE": dict(hidden_channels=16),
    "MMAudioVocoder": dict(num_mels=16, upsample_initial_channel=64),
    "MiniMaxH3Transformer3DModel": dict(time_embed_hidden_dim=32, time_embed_dim=16, rope_freq_dim=2),
    "MiniMaxMusic3ConditionEncoder": dict(condition_hidden_dim=16, out_dim=16),
    "MiniMaxMusic3RVQDepthDecoder": dict(hidden_size=16, num_layers=1, intermediate_size=16),
    "MiniMaxMusic3Transformer1DModel": dict(
        in_channels=8, condition_dim=16, num_layers=1, ff_inner_dim=16, rotary_dim=8, fourier_embedding_dim=16
    ),
    "MiniMaxMusic3Vocoder": dict(latent_channels=8, decoder_input_dim=8, decoder_hidden_dim=16),
    "MochiTransformer3DModel": dict(time_embed_dim=16),
    "MotifVideoTransformer3DModel": dict(num_layers=1),
    "MotionAdapter": dict(motion_layers_per_block=1, motion_norm_num_groups=4),
    "NucleusMoEImageTransformer2DModel": dict(
        out_channels=16, num_key_value_heads=None, num_experts=4, moe_intermediate_dim=16, capacity_factors=[8.0, 8.0]
    ),
    "OmniGenTransformer2DModel": dict(
        pad_token_id=4,
        rope_scaling={"long_factor": [1.0] * 8, "short_factor": [1.0] * 8},
        pos_embed_max_size=64,
        time_step_dim=16,
    ),
    "OvisImageTransformer2DModel": dict(in_channels=16, out_channels=16),
    "PRXTransformer2DModel": dict(in_channels=4, axes_dim=[8, 8]),
    "PixArtTransformer2DModel": dict(norm_num_groups=32),
    "PriorTransformer": dict(embedding_dim=32, time_embed_dim=None),
    "SD3ControlNetModel": dict(_SD3, num_layers=1),
    "SD3Transformer2DModel": _SD3,
    "SanaControlNetModel": dict(_LATENTS, attention_head_dim=8, cross_attention_dim=16),
    "SanaTransformer2DModel": dict(_LATENTS, attention_head_dim=8, cross_attention_dim=16),
    "SanaVideoTransformer3DModel": dict(
        attention_head_dim=12, cross_attention_head_dim=12, cross_attention_dim=24, sample_size=4
    ),
    "SanaWMTransformer3DModel": dict(in_channels=8, linear_head_dim=16, chunk_plucker_post_attn_blocks=1),
    "SkyReelsV2Transformer3DModel": dict(attention_head_dim=12),
    "SparseControlNetModel": dict(_UNET, down_block_types=("CrossAttnDownBlockMotion", "DownBlockMotion")),
    "StableAudio3DiTModel": dict(
        io_channels=8,
        embed_dim=32,
        cond_token_dim=32,
        global_cond_dim=32,
        local_add_cond_dim=9,
        timestep_features_dim=16,
        num_memory_tokens=4,
    ),
    "StableAudio3DurationEmbedder": dict(output_dim=32, fourier_dim=16),
    "StableAudioDiTModel": dict(
        sample_size=172,
        in_channels=8,
        num_key_value_attention_heads=2,
        out_channels=8,
        time_proj_dim=16,
        global_states_input_dim=64,
        cross_attention_input_dim=32,
    ),
    "StableCascadeUNet": dict(block_out_channels=(2048, 2048)),
    "T2IAdapter": dict(channels=[16, 32], downscale_factor=4),
    "UNet2DConditionModel": dict(
        _UNET,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
    ),
    "UNet2DModel": dict(
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        block_out_channels=(8, 16),
        attention_head_dim=8,
    ),
    "UNetSpatioTemporalConditionModel": dict(
        down_block_types=("CrossAttnDownBlockSpatioTemporal", "DownBlockSpatioTemporal"),
        up_block_types=("UpBlockSpatioTemporal", "CrossAttnUpBlockSpatioTemporal"),
        block_out_channels=(32, 32),
        addition_time_embed_dim=8,
        projection_class_embeddings_input_dim=24,
        num_attention_heads=(2, 2),
    ),
    "VQModel": dict(_KL, sample_size=32, num_vq_embeddings=16, vq_embed_dim=4),
    "WanAnimateTransformer3DModel": dict(
        attention_head_dim=12,
        latent_channels=16,
        image_dim=32,
        motion_encoder_channel_sizes={"4": 8, "8": 8, "16": 8},
        motion_encoder_size=16,
        motion_style_dim=8,
        motion_dim=4,
        motion_encoder_dim=16,
        face_encoder_hidden_dim=16,
        face_encoder_num_heads=2,
        inject_face_latents_blocks=2,
    ),
    "WanTransformer3DModel": dict(attention_head_dim=12),
    "WanVACETransformer3DModel": dict(attention_head_dim=12, vace_layers=[0]),
    "ZImageControlNetModel": dict(control_layers_places=[0], control_refiner_layers_places=[0], control_in_dim=4),
    "ZImageTransformer2DModel": dict(in_channels=4, n_layers=2),
}

DYNAMIC_SHIFT = {"use_dynamic_shifting": True, "base_shift": 0.5, "max_shift": 1.15}
_SCALED = {"beta_schedule": "scaled_linear", "beta_start": 0.00085, "beta_end": 0.012}
# With the default gamma, 1/3, the noise's covariance is singular in float32, and some processors cannot factorize it.
_REGULAR = {"gamma": 0.25}
SCHEDULERS: Mapping[str, Sizes] = {
    "HeliosScheduler": _REGULAR,
    "HeliosDMDScheduler": _REGULAR,
    "UnCLIPScheduler": {"variance_type": "fixed_small_log", "prediction_type": "sample", "clip_sample_range": 5.0},
    "DDIMScheduler": {**_SCALED, "clip_sample": False, "steps_offset": 1},
    "EulerDiscreteScheduler": {**_SCALED, "steps_offset": 1},
    "LCMScheduler": _SCALED,
}
# For pipelines that choose the size themselves, or that count on eight pixels per latent.
EIGHTH = {
    "block_out_channels": (8,) * 4,
    "down_block_types": ("DownEncoderBlock2D",) * 4,
    "up_block_types": ("UpDecoderBlock2D",) * 4,
}
