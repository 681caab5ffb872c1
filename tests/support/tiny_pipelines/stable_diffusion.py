"""Stable Diffusion 1, 2 and XL, and pipelines around their UNet."""

from __future__ import annotations

from collections.abc import Iterator

from support.tiny_pipelines.build import TinyPipeline, part
from support.tiny_pipelines.media import CONTROL, IMAGE, MASK, PROMPT, image, video

_CHANGED = {**PROMPT, "num_inference_steps": 4, **IMAGE, "strength": 0.5}
_INPAINTED = {**PROMPT, **IMAGE, **MASK}
_CONTROLLED = {**PROMPT, **IMAGE, "controlnet_conditioning_scale": 0.5}
_PAG = {"pag_scale": 2.0}
_TIMED = {"addition_embed_type": "text_time", "addition_time_embed_dim": 8, "cross_attention_dim": 64}
XL = {**_TIMED, "projection_class_embeddings_input_dim": 80, "transformer_layers_per_block": 1}
_XL_UNION = {**XL, "num_trans_head": 2}


def _sd() -> Iterator[TinyPipeline]:
    net = {"controlnet": part()}
    yield TinyPipeline("StableDiffusionPipeline", PROMPT)
    yield TinyPipeline("StableDiffusionImg2ImgPipeline", _CHANGED)
    yield TinyPipeline("StableDiffusionInpaintPipeline", _INPAINTED)
    yield TinyPipeline("StableDiffusionControlNetPipeline", _CONTROLLED, net)
    yield TinyPipeline("StableDiffusionControlNetImg2ImgPipeline", {**_CHANGED, **CONTROL}, net)
    yield TinyPipeline("StableDiffusionControlNetInpaintPipeline", {**_INPAINTED, **CONTROL}, net)
    yield TinyPipeline("StableDiffusionAdapterPipeline", {**PROMPT, **IMAGE}, {"adapter": part(downscale_factor=2)})
    yield TinyPipeline("StableDiffusionDepth2ImgPipeline", _CHANGED, {"unet": part(in_channels=5)})
    yield TinyPipeline("StableDiffusionInstructPix2PixPipeline", {**PROMPT, **IMAGE}, {"unet": part(in_channels=8)})
    yield TinyPipeline("StableDiffusionImageVariationPipeline", {**IMAGE, "num_inference_steps": 2})
    yield TinyPipeline(
        "StableDiffusionUpscalePipeline",
        {**PROMPT, **IMAGE},
        {"unet": part(in_channels=7, num_class_embeds=1000), "max_noise_level": 350},
    )
    yield TinyPipeline(
        "StableDiffusionLatentUpscalePipeline",
        {**PROMPT, **IMAGE},
        {"unet": part(in_channels=8, out_channels=5, time_cond_proj_dim=160)},
    )
    projection = {"class_embed_type": "projection", "projection_class_embeddings_input_dim": 64}
    normalizer = {"image_normalizer": part(embedding_dim=32), "unet": part(**projection)}
    yield TinyPipeline("StableUnCLIPImg2ImgPipeline", {**PROMPT, **IMAGE}, normalizer)
    yield TinyPipeline(
        "StableUnCLIPPipeline",
        {**PROMPT, "prior_num_inference_steps": 2},
        {**normalizer, "prior_scheduler": part("UnCLIPScheduler")},
    )
    yield TinyPipeline("StableDiffusionPAGPipeline", {**PROMPT, **_PAG})
    yield TinyPipeline("StableDiffusionPAGImg2ImgPipeline", {**_CHANGED, **_PAG})
    yield TinyPipeline("StableDiffusionPAGInpaintPipeline", {**_INPAINTED, **_PAG})
    yield TinyPipeline("StableDiffusionControlNetPAGPipeline", {**_CONTROLLED, **_PAG}, net)
    yield TinyPipeline("StableDiffusionControlNetPAGInpaintPipeline", {**_INPAINTED, **CONTROL, **_PAG}, net)
    conditioned = {"unet": part(time_cond_proj_dim=8)}
    yield TinyPipeline("LatentConsistencyModelPipeline", PROMPT, conditioned)
    yield TinyPipeline("LatentConsistencyModelImg2ImgPipeline", _CHANGED, conditioned)
    yield TinyPipeline("LEditsPPPipelineStableDiffusion", {"editing_prompt": ["a red cat"]})


def _xl() -> Iterator[TinyPipeline]:
    encoders = {name: part() for name in ("text_encoder", "text_encoder_2", "tokenizer", "tokenizer_2")}
    xl = {**encoders, "unet": part(**XL), "add_watermarker": False}
    net = {**xl, "controlnet": part(**XL)}
    yield TinyPipeline("StableDiffusionXLPipeline", PROMPT, xl)
    yield TinyPipeline("StableDiffusionXLImg2ImgPipeline", _CHANGED, xl)
    yield TinyPipeline("StableDiffusionXLInpaintPipeline", _INPAINTED, xl)
    instructed = {**xl, "unet": part(**XL, in_channels=8)}
    yield TinyPipeline("StableDiffusionXLInstructPix2PixPipeline", {**PROMPT, **IMAGE}, instructed)
    adapted = {key: value for key, value in xl.items() if key != "add_watermarker"}
    full_xl = part(adapter_type="full_adapter_xl")
    halved = {"down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D")}
    halved["up_block_types"] = ("CrossAttnUpBlock2D", "UpBlock2D")
    adapted["unet"] = part(**XL, **halved)
    yield TinyPipeline("StableDiffusionXLAdapterPipeline", {**PROMPT, **IMAGE}, {**adapted, "adapter": full_xl})
    yield TinyPipeline("StableDiffusionXLControlNetPipeline", _CONTROLLED, net)
    yield TinyPipeline("StableDiffusionXLControlNetImg2ImgPipeline", {**_CHANGED, **CONTROL}, net)
    yield TinyPipeline("StableDiffusionXLControlNetInpaintPipeline", {**_INPAINTED, **CONTROL}, net)
    union = {**xl, "controlnet": part(**_XL_UNION)}
    mode = {**CONTROL, "control_mode": 0}
    yield TinyPipeline("StableDiffusionXLControlNetUnionPipeline", {**PROMPT, **mode}, union)
    yield TinyPipeline("StableDiffusionXLControlNetUnionImg2ImgPipeline", {**_CHANGED, **mode}, union)
    yield TinyPipeline("StableDiffusionXLControlNetUnionInpaintPipeline", {**_INPAINTED, **mode}, union)
    yield TinyPipeline("StableDiffusionXLPAGPipeline", {**PROMPT, **_PAG}, xl)
    yield TinyPipeline("StableDiffusionXLPAGImg2ImgPipeline", {**_CHANGED, **_PAG}, xl)
    yield TinyPipeline("StableDiffusionXLPAGInpaintPipeline", {**_INPAINTED, **_PAG}, xl)
    yield TinyPipeline("StableDiffusionXLControlNetPAGPipeline", {**_CONTROLLED, **_PAG}, net)
    yield TinyPipeline("StableDiffusionXLControlNetPAGImg2ImgPipeline", {**_CHANGED, **CONTROL, **_PAG}, net)
    yield TinyPipeline("LEditsPPPipelineStableDiffusionXL", {"editing_prompt": ["a red cat"]}, xl)
    chatglm = {"unet": part(**{**XL, "cross_attention_dim": 32})}
    yield TinyPipeline("KolorsPipeline", PROMPT, chatglm)
    yield TinyPipeline("KolorsImg2ImgPipeline", _CHANGED, chatglm)
    yield TinyPipeline("KolorsPAGPipeline", {**PROMPT, **_PAG}, chatglm)


def _animated() -> Iterator[TinyPipeline]:
    motion = {"motion_adapter": part()}
    call = {**PROMPT, "num_frames": 3}
    frames = {"video": video(3)}
    conditions = {"conditioning_frames": video(3, seed=5)}
    net = {**motion, "controlnet": part()}
    yield TinyPipeline("AnimateDiffPipeline", call, motion)
    yield TinyPipeline("AnimateDiffPAGPipeline", {**call, **_PAG}, motion)
    yield TinyPipeline("AnimateDiffControlNetPipeline", {**call, **conditions}, net)
    yield TinyPipeline("AnimateDiffVideoToVideoPipeline", {**PROMPT, **frames, "strength": 0.5}, motion)
    yield TinyPipeline(
        "AnimateDiffVideoToVideoControlNetPipeline", {**PROMPT, **frames, **conditions, "strength": 0.5}, net
    )
    yield TinyPipeline(
        "AnimateDiffSparseControlNetPipeline",
        {**call, "conditioning_frames": [image(5)], "controlnet_frame_indices": [0]},
        {**motion, "controlnet": part()},
    )
    encoders = {name: part() for name in ("text_encoder", "text_encoder_2", "tokenizer", "tokenizer_2")}
    yield TinyPipeline("AnimateDiffSDXLPipeline", call, {**encoders, **motion, "unet": part(**XL)})


def _predicted() -> Iterator[TinyPipeline]:
    call = {**IMAGE, "num_inference_steps": 2, "processing_resolution": 0}
    yield TinyPipeline("MarigoldDepthPipeline", call, {"unet": part(in_channels=8), "prediction_type": "depth"})
    yield TinyPipeline("MarigoldNormalsPipeline", call, {"unet": part(in_channels=8), "prediction_type": "normals"})
    yield TinyPipeline(
        "MarigoldIntrinsicsPipeline",
        call,
        {
            "unet": part(in_channels=12, out_channels=8),
            "prediction_type": "intrinsics",
            "target_properties": {
                "target_names": ["albedo", "roughness"],
                "albedo": {"prediction_space": "srgb"},
                "roughness": {"prediction_space": "linear"},
            },
        },
    )


def _pixels() -> Iterator[TinyPipeline]:
    """DeepFloyd IF: no VAE; the UNet predicts its variance, too."""
    unet = {"in_channels": 3, "out_channels": 6, "encoder_hid_dim": 32}
    encoders = {"text_encoder": part(), "tokenizer": part()}
    noise = part(variance_type="learned_range", thresholding=True)
    first = {**encoders, "unet": part(**unet), "scheduler": noise, "requires_safety_checker": False}
    yield TinyPipeline("IFPipeline", {**PROMPT, "height": 16, "width": 16}, first)
    yield TinyPipeline("IFImg2ImgPipeline", _CHANGED, first)
    yield TinyPipeline("IFInpaintingPipeline", {**_INPAINTED, "num_inference_steps": 4, "strength": 0.5}, first)
    larger = {
        **first,
        "unet": part(**{**unet, "in_channels": 6}, class_embed_type="timestep", sample_size=32),
        "image_noising_scheduler": part(),
        "watermarker": part(),
    }
    size = {"height": 32, "width": 32, **IMAGE}
    yield TinyPipeline("IFSuperResolutionPipeline", {**PROMPT, **size, "image": image(1, 16, 16)}, larger)
    original = {"original_image": image(2)}
    changed = {**_CHANGED, "image": image(1, 16, 16), **original}
    yield TinyPipeline("IFImg2ImgSuperResolutionPipeline", changed, larger)
    yield TinyPipeline("IFInpaintingSuperResolutionPipeline", {**changed, **MASK}, larger)


def declared() -> Iterator[TinyPipeline]:
    """Every class of these families."""
    yield from _sd()
    yield from _xl()
    yield from _animated()
    yield from _predicted()
    yield from _pixels()
