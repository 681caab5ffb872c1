"""Released pipelines of further kinds with random weights: videos, a video with sound, images, an edited image, music.

Sizes of transformers and autoencoders are those of the published configurations: Wan 2.2 (5B, text to video; A14B, two
experts, text and image to video), LTX-2 (19B), Z-Image (6B), FLUX.2 klein (4B), Qwen-Image-Edit (20B), GLM-Image's
decoder (7B) and Stable Audio Open (1.1B). Calls have the sizes of the model cards and few steps; Wan 2.2's 5B and LTX-2
are called with fewer frames as well, so that enough calls fit into some minutes. As in `models`, there are no text
encoders: random embeddings replace their output, and random tokens those of GLM-Image's prior.
"""

from __future__ import annotations

from typing import Any

import diffusers
import torch
from diffusers.pipelines.ltx2.connectors import LTX2TextConnectors
from diffusers.pipelines.ltx2.vocoder import LTX2Vocoder
from diffusers.pipelines.stable_audio import StableAudioProjectionModel
from models import Model, PipelineModel, drawn_on
from random_weights import fill

_WAN = {
    "num_attention_heads": 24, "attention_head_dim": 128, "in_channels": 48, "out_channels": 48, "ffn_dim": 14336,
    "num_layers": 30,
}  # fmt: skip
_WAN_TINY = {
    "num_attention_heads": 2, "attention_head_dim": 16, "in_channels": 16, "out_channels": 16, "ffn_dim": 32,
    "num_layers": 2, "text_dim": 32, "freq_dim": 32,
}  # fmt: skip
_WAN_VAE = {
    "base_dim": 160, "decoder_base_dim": 256, "z_dim": 48, "is_residual": True, "in_channels": 12, "out_channels": 12,
    "patch_size": 2, "scale_factor_spatial": 16, "latents_mean": [0.0] * 48, "latents_std": [1.0] * 48,
}  # fmt: skip
_WAN_VAE_TINY = {"base_dim": 8, "dim_mult": [1, 2, 2, 2], "num_res_blocks": 1}

_LTX2_TINY = {
    "in_channels": 8, "out_channels": 8, "num_attention_heads": 2, "attention_head_dim": 16, "cross_attention_dim": 32,
    "audio_in_channels": 8, "audio_out_channels": 8, "audio_num_attention_heads": 2, "audio_attention_head_dim": 8,
    "audio_cross_attention_dim": 16, "num_layers": 2, "caption_channels": 32,
}  # fmt: skip
_LTX2_CONNECTORS_TINY = {
    "caption_channels": 32, "text_proj_in_factor": 3, "video_connector_num_attention_heads": 2,
    "video_connector_attention_head_dim": 16, "video_connector_num_layers": 1,
    "video_connector_num_learnable_registers": 8, "audio_connector_num_attention_heads": 2,
    "audio_connector_attention_head_dim": 16, "audio_connector_num_layers": 1,
    "audio_connector_num_learnable_registers": 8,
}  # fmt: skip
# As published: otherwise each of the four blocks would count as a spatial one.
_LTX2_VAE = {"spatial_compression_ratio": 32, "temporal_compression_ratio": 8}
_LTX2_VAE_TINY = {
    **_LTX2_VAE, "latent_channels": 8, "block_out_channels": (8, 16, 16, 16), "decoder_block_out_channels": (8, 16, 32),
    "layers_per_block": (1,) * 5, "decoder_layers_per_block": (1,) * 4,
}  # fmt: skip
_LTX2_AUDIO_TINY = {
    "base_channels": 8, "ch_mult": (1, 2, 2), "num_res_blocks": 1, "latent_channels": 2, "mel_bins": 16,
}  # fmt: skip

_Z_IMAGE_TINY = {
    "dim": 32, "n_layers": 2, "n_refiner_layers": 1, "n_heads": 2, "n_kv_heads": 2, "cap_feat_dim": 32,
    "axes_dims": [4, 6, 6],
}  # fmt: skip
_KL_BLOCKS = {"down_block_types": ("DownEncoderBlock2D",) * 4, "up_block_types": ("UpDecoderBlock2D",) * 4}
_Z_IMAGE_VAE = {
    **_KL_BLOCKS, "block_out_channels": (128, 256, 512, 512), "layers_per_block": 2, "latent_channels": 16,
    "scaling_factor": 0.3611, "shift_factor": 0.1159, "use_quant_conv": False, "use_post_quant_conv": False,
}  # fmt: skip
_SMALL_BLOCKS = {"block_out_channels": (8, 16, 16, 16), "layers_per_block": 1, "norm_num_groups": 4}

_KLEIN = {
    "num_layers": 5, "num_single_layers": 20, "num_attention_heads": 24, "joint_attention_dim": 7680,
    "guidance_embeds": False,
}  # fmt: skip
_KLEIN_TINY = {
    **_KLEIN, "in_channels": 16, "num_layers": 1, "num_single_layers": 1, "num_attention_heads": 2,
    "attention_head_dim": 16, "joint_attention_dim": 32, "axes_dims_rope": (4, 4, 4, 4),
}  # fmt: skip

_EDIT_TINY = {
    "num_layers": 2, "num_attention_heads": 2, "attention_head_dim": 16, "joint_attention_dim": 32,
    "axes_dims_rope": (2, 6, 8),
}  # fmt: skip
_GLM_TINY = {
    "num_layers": 2, "num_attention_heads": 2, "attention_head_dim": 32, "text_embed_dim": 32, "time_embed_dim": 32,
    "condition_dim": 16,
}  # fmt: skip
_GLM_VAE = {
    **_KL_BLOCKS, "block_out_channels": (128, 512, 1024, 1024), "layers_per_block": 3, "latent_channels": 16,
    "use_quant_conv": False, "use_post_quant_conv": False, "mid_block_add_attention": False,
    "latents_mean": [0.0] * 16, "latents_std": [1.0] * 16,
}  # fmt: skip
_GLM_SCHEDULER = {
    "use_dynamic_shifting": True, "time_shift_type": "linear", "base_shift": 0.25, "max_shift": 0.75,
    "max_image_seq_len": 4096,
}  # fmt: skip

_STABLE_AUDIO_TINY = {
    "sample_size": 16, "num_layers": 2, "num_attention_heads": 2, "num_key_value_attention_heads": 1,
    "attention_head_dim": 16, "in_channels": 8, "out_channels": 8, "cross_attention_dim": 32,
    "cross_attention_input_dim": 32, "global_states_input_dim": 64, "time_proj_dim": 16,
}  # fmt: skip
_OOBLECK_TINY = {
    "encoder_hidden_size": 8, "decoder_channels": 8, "decoder_input_channels": 8, "channel_multiples": [1, 1, 2, 2, 2],
}  # fmt: skip
_STABLE_AUDIO_SCHEDULER = {
    "sigma_min": 0.3, "sigma_max": 500.0, "sigma_data": 1.0, "solver_order": 2, "prediction_type": "v_prediction",
}  # fmt: skip
_NUM_TOKENS = 64
_STABLE_AUDIO_TOKENS = 128
_LTX2_TOKENS = 1024


def kinds(*, tiny: bool) -> dict[str, Model]:
    """All models of this file, by name."""
    steps, side = (2, 64) if tiny else (4, 1024)
    side_a14b = (64, 64, 5) if tiny else (480, 832, 81)
    wan, ltx2 = ((64, 64, 5), (64, 64, 9)) if tiny else ((704, 1280, 121), (512, 768, 121))
    found = [
        *(
            PipelineModel(
                name, f"Wan 2.2, 5B, guided, {frames} frames", lambda device: make_wan(device, tiny=tiny), wan[0], 2, 8,
                width=wan[1], num_frames=frames,
            )
            for name, frames in (
                ("wan2.2-ti2v-5b-brief", 5 if tiny else 17),
                ("wan2.2-ti2v-5b-short", 5 if tiny else 33),
                ("wan2.2-ti2v-5b", wan[2]),
            )
        ),
        *(
            PipelineModel(
                f"wan2.2-{task}-a14b", f"Wan 2.2, two experts of 14B, guided, {task}",
                lambda device, of_image=of_image: make_wan_experts(device, of_image=of_image, tiny=tiny),
                side_a14b[0], 4, 8, width=side_a14b[1], num_frames=side_a14b[2], edits=of_image,
            )
            for task, of_image in (("t2v", False), ("i2v", True))
        ),
        *(
            PipelineModel(
                name, f"LTX-2, 19B, guided, {frames} frames with sound", lambda device: make_ltx2(device, tiny=tiny),
                ltx2[0], 2, 8, width=ltx2[1], num_frames=frames,
            )
            for name, frames in (("ltx-2-short", 9 if tiny else 49), ("ltx-2", ltx2[2]))
        ),
        PipelineModel(
            "z-image", "Z-Image, 6B, no guidance", lambda device: make_z_image(device, tiny=tiny), side, steps, 8,
            call={"guidance_scale": 0.0},
        ),
        PipelineModel(
            "flux.2-klein", "FLUX.2 klein, 4B, no guidance", lambda device: make_klein(device, tiny=tiny), side, steps,
            8, call={"guidance_scale": 1.0},
        ),
        PipelineModel(
            "qwen-image-edit", "Qwen-Image-Edit, 20B, one image, no guidance",
            lambda device: make_edit(device, tiny=tiny), side, steps, 8, edits=True, call={"true_cfg_scale": 1.0},
        ),
        PipelineModel(
            "glm-image", "GLM-Image's decoder, 7B, guided", lambda device: make_glm_decoder(device, side, tiny=tiny),
            side, steps, 8, call={"guidance_scale": 1.5},
        ),
        PipelineModel(
            "stable-audio", "Stable Audio Open, 1.1B, guided, stereo",
            lambda device: make_stable_audio(device, tiny=tiny), None, 2 if tiny else 20, 8, dtype="float16",
            call={"negative_prompt": "Low quality.", "audio_end_in_s": 0.5 if tiny else 10.0},
        ),
    ]  # fmt: skip
    return {model.name: model for model in found}


def make_wan(device: torch.device, *, tiny: bool) -> Any:
    """A `WanPipeline` as Wan 2.2's 5B model has it: a timestep per token, and its own autoencoder."""
    with drawn_on(device, torch.bfloat16):
        parts = {
            "vae": diffusers.AutoencoderKLWan(**(_WAN_VAE_TINY if tiny else _WAN_VAE)),
            "transformer": diffusers.WanTransformer3DModel(**(_WAN_TINY if tiny else _WAN)),
        }
        prompt = torch.randn(1, 512, parts["transformer"].config.text_dim)
    return _pipeline(
        diffusers.WanPipeline, (prompt, prompt), parts, scheduler=_wan_scheduler(), tokenizer=None, text_encoder=None,
        expand_timesteps=True,
    )  # fmt: skip


def make_wan_experts(device: torch.device, *, of_image: bool, tiny: bool) -> Any:
    """A `WanPipeline` or `WanImageToVideoPipeline` as Wan 2.2's A14B models have it, 56 GB of weights at its real size.

    The defaults of diffusers' classes are the published sizes.
    """
    channels = {"in_channels": 36} if of_image else {}  # noise, the image's latents, and a mask
    expert = {**(_WAN_TINY if tiny else {}), **channels}
    with drawn_on(device, torch.bfloat16):
        parts = {
            "vae": diffusers.AutoencoderKLWan(**(_WAN_VAE_TINY if tiny else {})),
            "transformer": diffusers.WanTransformer3DModel(**expert),
            "transformer_2": diffusers.WanTransformer3DModel(**expert),
        }
        prompt = torch.randn(1, 512, parts["transformer"].config.text_dim)
    kind = diffusers.WanImageToVideoPipeline if of_image else diffusers.WanPipeline
    others: dict[str, Any] = {"image_encoder": None, "image_processor": None} if of_image else {}
    return _pipeline(
        kind, (prompt, prompt), parts, scheduler=_wan_scheduler(), tokenizer=None, text_encoder=None,
        boundary_ratio=0.9 if of_image else 0.875, **others,
    )  # fmt: skip


def _wan_scheduler() -> Any:
    return diffusers.UniPCMultistepScheduler(flow_shift=5.0, prediction_type="flow_prediction", use_flow_sigmas=True)


def make_ltx2(device: torch.device, *, tiny: bool) -> Any:
    """An `LTX2Pipeline`, 40 GB of weights at its real size; classes of its own have the published sizes as defaults."""
    scheduler = diffusers.FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True)
    with drawn_on(device, torch.bfloat16):
        parts = {
            "vae": diffusers.AutoencoderKLLTX2Video(**(_LTX2_VAE_TINY if tiny else _LTX2_VAE)),
            "audio_vae": diffusers.AutoencoderKLLTX2Audio(**(_LTX2_AUDIO_TINY if tiny else {})),
            "connectors": LTX2TextConnectors(**(_LTX2_CONNECTORS_TINY if tiny else {})),
            "transformer": diffusers.LTX2VideoTransformer3DModel(**(_LTX2_TINY if tiny else {})),
            "vocoder": LTX2Vocoder(**({"in_channels": 32, "hidden_channels": 32} if tiny else {})),
        }
        config = parts["connectors"].config
        prompt = torch.randn(1, _LTX2_TOKENS, config.caption_channels * config.text_proj_in_factor)
        mask = torch.ones(1, _LTX2_TOKENS, dtype=torch.int64)
    return _pipeline(
        diffusers.LTX2Pipeline, (prompt, mask, prompt, mask), parts, scheduler=scheduler, tokenizer=None,
        text_encoder=None,
    )  # fmt: skip


def make_z_image(device: torch.device, *, tiny: bool) -> Any:
    """A `ZImagePipeline`; its transformer's defaults are the published sizes."""
    scheduler = diffusers.FlowMatchEulerDiscreteScheduler(shift=3.0)
    with drawn_on(device, torch.bfloat16):
        parts = {
            "vae": diffusers.AutoencoderKL(**{**_Z_IMAGE_VAE, **(_SMALL_BLOCKS if tiny else {})}),
            "transformer": diffusers.ZImageTransformer2DModel(**(_Z_IMAGE_TINY if tiny else {})),
        }
        prompt = torch.randn(_NUM_TOKENS, parts["transformer"].config.cap_feat_dim)
    return _pipeline(
        diffusers.ZImagePipeline, ([prompt], []), parts, scheduler=scheduler, tokenizer=None, text_encoder=None
    )


def make_klein(device: torch.device, *, tiny: bool) -> Any:
    """A `Flux2KleinPipeline` of 4B."""
    scheduler = diffusers.FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True)
    vae = {**_SMALL_BLOCKS, "latent_channels": 4} if tiny else {}
    with drawn_on(device, torch.bfloat16):
        parts = {
            "vae": diffusers.AutoencoderKLFlux2(**vae),
            "transformer": diffusers.Flux2Transformer2DModel(**(_KLEIN_TINY if tiny else _KLEIN)),
        }
        prompt = torch.randn(1, _NUM_TOKENS, parts["transformer"].config.joint_attention_dim)
    places = diffusers.Flux2KleinPipeline._prepare_text_ids(prompt).to(device)
    return _pipeline(
        diffusers.Flux2KleinPipeline, (prompt, places), parts, scheduler=scheduler, tokenizer=None, text_encoder=None,
        is_distilled=True,
    )  # fmt: skip


def make_edit(device: torch.device, *, tiny: bool) -> Any:
    """A `QwenImageEditPipeline`; defaults of its parts are the published sizes."""
    scheduler = diffusers.FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True)
    with drawn_on(device, torch.bfloat16):
        parts = {
            "vae": diffusers.AutoencoderKLQwenImage(**({"base_dim": 16, "num_res_blocks": 1} if tiny else {})),
            "transformer": diffusers.QwenImageTransformer2DModel(**(_EDIT_TINY if tiny else {})),
        }
        prompt = torch.randn(1, _NUM_TOKENS, parts["transformer"].config.joint_attention_dim)
    return _pipeline(
        diffusers.QwenImageEditPipeline, (prompt, None), parts, scheduler=scheduler, tokenizer=None, text_encoder=None,
        processor=None,
    )  # fmt: skip


def make_glm_decoder(device: torch.device, side: int, *, tiny: bool) -> Any:
    """A `GlmImagePipeline` for images of `side` pixels each way without its prior; its transformer has the defaults."""
    with drawn_on(device, torch.bfloat16):
        parts = {
            "vae": diffusers.AutoencoderKL(**{**_GLM_VAE, **(_SMALL_BLOCKS if tiny else {})}),
            "transformer": diffusers.GlmImageTransformer2DModel(**(_GLM_TINY if tiny else {})),
        }
        config = parts["transformer"].config
        prompt, negative = torch.randn(2, 1, _NUM_TOKENS, config.text_embed_dim)
        # One per patch of 16 pixels, as the pipeline upsamples the tokens of its prior.
        tokens = torch.randint(config.prior_vq_quantizer_codebook_size, (1, (side // 16) ** 2))
    made = _pipeline(
        diffusers.GlmImagePipeline, (prompt, negative), parts,
        scheduler=diffusers.FlowMatchEulerDiscreteScheduler(**_GLM_SCHEDULER), tokenizer=None, processor=None,
        text_encoder=None, vision_language_encoder=None,
    )  # fmt: skip
    type(made).generate_prior_tokens = lambda self, *_args, **_named: (tokens, None, None)
    return made


def make_stable_audio(device: torch.device, *, tiny: bool) -> Any:
    """A `StableAudioPipeline`; defaults of its parts are the published sizes.

    Its scheduler is the one that needs no further package; the released one adds noise in each step by `torchsde`.
    """
    with drawn_on(device, torch.float16):
        transformer = diffusers.StableAudioDiTModel(**(_STABLE_AUDIO_TINY if tiny else {}))
        size = transformer.config.cross_attention_dim
        parts = {
            "vae": diffusers.AutoencoderOobleck(**(_OOBLECK_TINY if tiny else {})),
            "transformer": transformer,
            "projection_model": StableAudioProjectionModel(size, size, min_value=0, max_value=512),
        }
        prompts = torch.randn(2, _STABLE_AUDIO_TOKENS, size)  # without and with the prompt
    return _pipeline(
        diffusers.StableAudioPipeline, prompts, parts,
        scheduler=diffusers.EDMDPMSolverMultistepScheduler(**_STABLE_AUDIO_SCHEDULER), tokenizer=None,
        text_encoder=None,
    )  # fmt: skip


def _pipeline(kind: type[Any], prompt: object, parts: dict[str, torch.nn.Module], **others: Any) -> Any:
    """A pipeline of that class whose `encode_prompt` returns `prompt`; its weights are those of `random_weights`."""
    diffusers.utils.logging.set_verbosity_error()  # about defaults that have no effect, at every call
    for part, module in parts.items():
        module.eval().requires_grad_(False)
        for name, values in module.named_parameters():
            fill(f"{part}.{name}", values.data)
    # Its own name: the frame rate of a video is looked up by it.
    answering = type(kind.__name__, (kind,), {"encode_prompt": lambda self, *_args, **_named: prompt})
    pipeline = answering(**parts, **others)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline
