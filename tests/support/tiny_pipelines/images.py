"""Image pipelines around a transformer."""

from __future__ import annotations

from collections.abc import Iterator

from omni_cli.checkpoints.tiny_pipelines import tiny_glm_image
from support.tiny_pipelines.build import TinyPipeline, part
from support.tiny_pipelines.media import CONTROL, IMAGE, MASK, PROMPT, SIZE, image, mask
from support.tiny_pipelines.sizes import DYNAMIC_SHIFT, EIGHTH

_TEXT = {**PROMPT, **SIZE}
_CHANGED = {**_TEXT, "num_inference_steps": 4, **IMAGE, "strength": 0.5}
_INPAINTED = {**_CHANGED, **MASK}
_SHIFTED = {"scheduler": part(**DYNAMIC_SHIFT), "vae": part(shift_factor=0.1)}


def _flux() -> Iterator[TinyPipeline]:
    net = {**_SHIFTED, "controlnet": part()}
    yield TinyPipeline("FluxPipeline", _TEXT, _SHIFTED)
    yield TinyPipeline("FluxImg2ImgPipeline", _CHANGED, _SHIFTED)
    yield TinyPipeline("FluxInpaintPipeline", _INPAINTED, _SHIFTED)
    control = {**_SHIFTED, "transformer": part(in_channels=32, out_channels=16)}
    yield TinyPipeline("FluxControlPipeline", {**_TEXT, **CONTROL}, control)
    yield TinyPipeline("FluxControlImg2ImgPipeline", {**_CHANGED, **CONTROL}, control)
    yield TinyPipeline("FluxControlInpaintPipeline", {**_INPAINTED, **CONTROL}, control)
    yield TinyPipeline("FluxControlNetPipeline", {**_TEXT, **CONTROL}, net)
    yield TinyPipeline("FluxControlNetImg2ImgPipeline", {**_CHANGED, **CONTROL}, net)
    yield TinyPipeline("FluxControlNetInpaintPipeline", {**_INPAINTED, **CONTROL}, net)
    fill = {**_SHIFTED, "transformer": part(in_channels=48, out_channels=16)}
    yield TinyPipeline("FluxFillPipeline", {**_TEXT, **IMAGE, **MASK}, fill)
    small = {"max_area": 1024, "_auto_resize": False}
    yield TinyPipeline("FluxKontextPipeline", {**_TEXT, **IMAGE, **small}, _SHIFTED)
    yield TinyPipeline("FluxKontextInpaintPipeline", {**_INPAINTED, **small}, _SHIFTED)
    yield TinyPipeline("FluxPriorReduxPipeline", IMAGE, {"image_embedder": part(redux_dim=32, txt_in_features=4096)})
    cloze = {"task_prompt": "a photo becomes a drawing", "content_prompt": "a red cat", "num_inference_steps": 2}
    rows = {"image": [[image(1), image(2)], [image(3), None]]}
    parts = {**fill, "resolution": 32}
    yield TinyPipeline("VisualClozeGenerationPipeline", {**cloze, **rows}, parts)
    upsampling = {"upsampling_height": 32, "upsampling_width": 32, "upsampling_strength": 0.5}
    yield TinyPipeline("VisualClozePipeline", {**cloze, **rows, **upsampling}, parts)
    yield TinyPipeline("ChromaPipeline", _TEXT, _SHIFTED)
    yield TinyPipeline("ChromaImg2ImgPipeline", _CHANGED, _SHIFTED)
    # The pipeline reads a key that its transformer's configuration has in published checkpoints alone.
    yield TinyPipeline(
        "ChromaInpaintPipeline",
        _INPAINTED,
        _SHIFTED,
        prepare=lambda pipeline: pipeline.transformer.register_to_config(guidance_embeds=False),
    )


def _flux2() -> Iterator[TinyPipeline]:
    shifted = {"scheduler": part(**DYNAMIC_SHIFT)}
    layers = {"text_encoder_out_layers": [0, 1, 2]}
    yield TinyPipeline("Flux2Pipeline", {**_TEXT, **layers}, shifted)
    yield TinyPipeline("Flux2KleinPipeline", {**_TEXT, "image": image(1, 64, 64), **layers}, shifted)
    yield TinyPipeline("Flux2KleinInpaintPipeline", {**_INPAINTED, **layers}, shifted)
    yield TinyPipeline("Flux2KleinKVPipeline", {**_TEXT, "image": image(1, 64, 64), **layers}, shifted)


def _sd3() -> Iterator[TinyPipeline]:
    wide = {"text_encoder_3": part(d_model=64), "vae": part(shift_factor=0.1)}
    net = {**wide, "controlnet": part()}
    masked = {**wide, "controlnet": part(extra_conditioning_channels=1)}
    pag = {**wide, "pag_applied_layers": "blocks.1"}
    yield TinyPipeline("StableDiffusion3Pipeline", _TEXT, wide)
    yield TinyPipeline("StableDiffusion3Img2ImgPipeline", _CHANGED, wide)
    channels = {"vae": part(shift_factor=0.1, latent_channels=16), "transformer": part(in_channels=16, out_channels=16)}
    yield TinyPipeline("StableDiffusion3InpaintPipeline", _INPAINTED, {**wide, **channels})
    yield TinyPipeline("StableDiffusion3ControlNetPipeline", {**_TEXT, **CONTROL}, net)
    yield TinyPipeline(
        "StableDiffusion3ControlNetInpaintingPipeline", {**_TEXT, **CONTROL, "control_mask": mask()}, masked
    )
    yield TinyPipeline("StableDiffusion3PAGPipeline", {**_TEXT, "pag_scale": 2.0}, pag)
    yield TinyPipeline("StableDiffusion3PAGImg2ImgPipeline", {**_CHANGED, "pag_scale": 2.0}, pag)


def _qwen() -> Iterator[TinyPipeline]:
    guided = {"negative_prompt": "blue", "true_cfg_scale": 2.0}
    shifted = {"scheduler": part(**DYNAMIC_SHIFT)}
    net = {**shifted, "controlnet": part()}
    yield TinyPipeline("QwenImagePipeline", {**_TEXT, **guided}, shifted)
    yield TinyPipeline("QwenImageImg2ImgPipeline", _CHANGED, shifted)
    yield TinyPipeline("QwenImageInpaintPipeline", _INPAINTED, shifted)
    yield TinyPipeline("QwenImageControlNetPipeline", {**_TEXT, **CONTROL}, net)
    masked = {**shifted, "controlnet": part(extra_condition_channels=4)}
    yield TinyPipeline("QwenImageControlNetInpaintPipeline", {**_TEXT, **CONTROL, "control_mask": mask()}, masked)
    edited = {**PROMPT, **IMAGE, **MASK, "strength": 0.5}
    yield TinyPipeline("QwenImageEditPipeline", {**_TEXT, **IMAGE}, shifted)
    yield TinyPipeline("QwenImageEditInpaintPipeline", edited, shifted)
    yield TinyPipeline("QwenImageEditPlusPipeline", {**_TEXT, "image": [image(1), image(2)]}, shifted)
    layered = {**shifted, "transformer": part(use_additional_t_cond=True, use_layer3d_rope=True)}
    yield TinyPipeline("QwenImageLayeredPipeline", {**PROMPT, **IMAGE, "layers": 2}, layered)
    yield TinyPipeline("QwenImage21Pipeline", {**_TEXT, **IMAGE, "output_resolution": 32}, shifted)
    yield TinyPipeline("Krea2Pipeline", _TEXT, {**shifted, "text_encoder_select_layers": [0, 1, 2]})
    yield TinyPipeline("NucleusMoEImagePipeline", {**_TEXT, "return_index": -1}, shifted)
    yield TinyPipeline("JoyImageEditPipeline", {**PROMPT, **IMAGE})
    yield TinyPipeline("JoyImageEditPlusPipeline", {**_TEXT, "images": [image(1), image(2)]})
    yield TinyPipeline("BriaFibo2Pipeline", _TEXT, {**shifted, "text_encoder": part(num_hidden_layers=36)})
    yield TinyPipeline("DreamLitePipeline", {**_TEXT, **IMAGE})
    yield TinyPipeline("DreamLiteMobilePipeline", {**_TEXT, **IMAGE})


def _z_image() -> Iterator[TinyPipeline]:
    net = {**_SHIFTED, "controlnet": part()}
    yield TinyPipeline("ZImagePipeline", _TEXT, _SHIFTED)
    yield TinyPipeline("ZImageImg2ImgPipeline", _CHANGED, _SHIFTED)
    yield TinyPipeline("ZImageInpaintPipeline", _INPAINTED, _SHIFTED)
    masked = {**_SHIFTED, "controlnet": part(control_in_dim=9)}
    yield TinyPipeline("ZImageControlNetPipeline", {**_TEXT, **CONTROL}, net)
    yield TinyPipeline("ZImageControlNetInpaintPipeline", {**_TEXT, **IMAGE, **MASK, **CONTROL}, masked)
    omni = {**_SHIFTED, "transformer": part(siglip_feat_dim=32)}
    # It converts its images to bfloat16.
    yield TinyPipeline("ZImageOmniPipeline", {**_TEXT, "image": image(1, 64, 64)}, omni, dtype="bfloat16")


def _sana() -> Iterator[TinyPipeline]:
    size = {**_TEXT, "use_resolution_binning": False}
    flow = {"scheduler": part("FlowMatchEulerDiscreteScheduler")}
    yield TinyPipeline("SanaPipeline", size, flow)
    yield TinyPipeline("SanaPAGPipeline", {**size, "pag_scale": 2.0}, {**flow, "pag_applied_layers": "blocks.1"})
    yield TinyPipeline("SanaControlNetPipeline", {**size, **CONTROL}, {**flow, "controlnet": part()})
    sprint = {
        "scheduler": part("SCMScheduler"),
        "transformer": part(guidance_embeds=True, qk_norm="rms_norm_across_heads"),
    }
    yield TinyPipeline("SanaSprintPipeline", size, sprint)
    yield TinyPipeline("SanaSprintImg2ImgPipeline", {**size, **IMAGE, "strength": 0.5}, sprint)


def _small_text() -> Iterator[TinyPipeline]:
    """Pipelines that a T5, a Gemma or another small text encoder conditions."""
    plain = {**_TEXT, "use_resolution_binning": False}
    t5 = {"text_encoder": part(), "tokenizer": part()}
    yield TinyPipeline("PixArtAlphaPipeline", plain, t5)
    sigma = {**t5, "transformer": part(use_additional_conditions=False)}
    perturbed = {"pag_applied_layers": "blocks.1"}
    yield TinyPipeline("PixArtSigmaPipeline", plain, sigma)
    yield TinyPipeline("PixArtSigmaPAGPipeline", {**plain, "pag_scale": 2.0}, {**sigma, **perturbed})
    yield TinyPipeline("AuraFlowPipeline", _TEXT)
    yield TinyPipeline("LuminaPipeline", {**_TEXT, "negative_prompt": "blue"}, {"vae": part(**EIGHTH)})
    yield TinyPipeline("Lumina2Pipeline", _TEXT, {**_SHIFTED, "vae": part(**EIGHTH, shift_factor=0.1)})
    second = {"text_encoder_2": part(), "tokenizer_2": part()}
    bert = {**t5, **second, "vae": part(**EIGHTH), "requires_safety_checker": False}
    yield TinyPipeline("HunyuanDiTPipeline", plain, bert)
    yield TinyPipeline("HunyuanDiTPAGPipeline", {**plain, "pag_scale": 2.0}, {**bert, **perturbed})
    yield TinyPipeline("HunyuanDiTControlNetPipeline", {**plain, **CONTROL}, {**bert, "controlnet": part()})
    yield TinyPipeline("CogView3PlusPipeline", _TEXT, {"scheduler": part("CogVideoXDDIMScheduler")})
    guided = {**_TEXT, "negative_prompt": "blue"}
    yield TinyPipeline("CogView4Pipeline", guided)
    yield TinyPipeline("CogView4ControlPipeline", {**guided, **CONTROL}, {"transformer": part(in_channels=8)})
    yield TinyPipeline("BriaPipeline", _TEXT, _SHIFTED)
    patched = part(patch_size=2, in_channels=12, out_channels=12, scale_factor_spatial=16)
    known = {"text_encoder": part(vocab_size=128256), "vae": patched}
    yield TinyPipeline("BriaFiboPipeline", {**_TEXT, "prompt": '{"a": "red cat"}'}, known)
    edit = {**_TEXT, **IMAGE, "prompt": '{"edit_instruction": "a red cat"}', "_auto_resize": False}
    yield TinyPipeline("BriaFiboEditPipeline", edit, known)
    yield TinyPipeline("PRXPipeline", plain, {"vae": part("AutoencoderKL", shift_factor=0.1)})
    yield TinyPipeline("PRXPixelPipeline", plain, {"transformer": part(in_channels=3)})
    yield TinyPipeline("OvisImagePipeline", _TEXT, _SHIFTED)
    large = {**_SHIFTED, "vae": part(**EIGHTH, latent_channels=16, shift_factor=0.1)}
    yield TinyPipeline("LongCatImagePipeline", {**_TEXT, "enable_prompt_rewrite": False}, large)
    yield TinyPipeline("LongCatImageEditPipeline", {**PROMPT, **IMAGE}, large)
    yield TinyPipeline("ErnieImagePipeline", {**_TEXT, "use_pe": False})
    long = {name: part(max_position_embeddings=256) for name in ("text_encoder", "text_encoder_2")}
    yield TinyPipeline("HiDreamImagePipeline", PROMPT, {**_SHIFTED, **long})
    yield TinyPipeline("HunyuanImagePipeline", _TEXT)
    frames = {"in_channels": 16, "out_channels": 8, "patch_size": (1, 1, 1), "rope_axes_dim": (4, 6, 6)}
    yield TinyPipeline("HunyuanImageRefinerPipeline", {**_TEXT, **IMAGE}, {"transformer": part(**frames)})
    deep = {"text_encoder": part("Qwen3VLModel", num_hidden_layers=36)}
    yield TinyPipeline("Ideogram4Pipeline", {**_TEXT, "guidance_schedule": [7.0, 7.0]}, deep)
    yield TinyPipeline("OmniGenPipeline", _TEXT, {"vae": part(**EIGHTH)})
    yield TinyPipeline("GlmImagePipeline", _TEXT, write=lambda folder: tiny_glm_image(folder, 0))
    yield TinyPipeline("Kandinsky5T2IPipeline", PROMPT, {"vae": part(**EIGHTH)})
    changed = {"vae": part(**EIGHTH), "transformer": part(visual_cond=True)}
    yield TinyPipeline("Kandinsky5I2IPipeline", {**PROMPT, **IMAGE}, changed)


def declared() -> Iterator[TinyPipeline]:
    """Every class of these families."""
    for family in (_flux, _flux2, _sd3, _qwen, _z_image, _sana, _small_text):
        yield from family()
