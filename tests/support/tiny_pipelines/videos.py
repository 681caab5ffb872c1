"""Video pipelines, some of which make sound, too."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from support.tiny_pipelines.build import TinyPipeline, part
from support.tiny_pipelines.media import IMAGE, SIZE, image, masks, noise, video
from support.tiny_pipelines.safety import AcceptingChecker
from support.tiny_pipelines.sizes import DYNAMIC_SHIFT, EIGHTH

_PROMPT = {"prompt": "a red cat runs", "num_inference_steps": 2}
_TEXT = {**_PROMPT, **SIZE, "num_frames": 5}
_VIDEO = {"video": video(5)}
_SHIFTED = {"scheduler": part(**DYNAMIC_SHIFT)}


def _wan() -> Iterator[TinyPipeline]:
    wan = {"transformer": part()}
    yield TinyPipeline("WanPipeline", _TEXT, wan)
    seen = {"image_encoder": part(), "image_processor": part()}
    first_frame = {**wan, **seen, "transformer": part(in_channels=36, image_dim=32)}
    yield TinyPipeline("WanImageToVideoPipeline", {**_TEXT, **IMAGE}, first_frame)
    yield TinyPipeline("WanVideoToVideoPipeline", {**_PROMPT, **SIZE, **_VIDEO, "strength": 0.5})
    edited = {**_TEXT, **_VIDEO, "mask": masks(5), "reference_images": [image(3)]}
    yield TinyPipeline("WanVACEPipeline", edited, wan)
    poses = {"pose_video": video(5, seed=3), "face_video": video(5, seed=5), **IMAGE}
    yield TinyPipeline(
        "WanAnimatePipeline",
        {**_PROMPT, **SIZE, **poses, "segment_frame_length": 5},
        {"transformer": part(image_dim=32, added_kv_proj_dim=None)},
    )
    yield TinyPipeline("LucyEditPipeline", {**_TEXT, **_VIDEO}, {"transformer": part(in_channels=32)})
    yield TinyPipeline("ChronoEditPipeline", {**_TEXT, **IMAGE}, {"transformer": part(in_channels=36, image_dim=32)})
    yield TinyPipeline("AnyFlowPipeline", _TEXT)
    yield TinyPipeline("AnyFlowFARPipeline", {**_TEXT, "num_frames": 9, "chunk_partition": [1, 2]})
    shot = {**_TEXT, "num_frames": 9, "base_num_frames": 9}
    yield TinyPipeline("SkyReelsV2Pipeline", _TEXT, {"text_encoder": part("UMT5EncoderModel")})
    sky = {"text_encoder": part("UMT5EncoderModel"), "scheduler": part("UniPCMultistepScheduler")}
    yield TinyPipeline("SkyReelsV2DiffusionForcingPipeline", shot, sky)
    yield TinyPipeline("SkyReelsV2DiffusionForcingImageToVideoPipeline", {**shot, **IMAGE}, sky)
    longer = {**shot, **_VIDEO, "num_frames": 13, "overlap_history": 5}
    yield TinyPipeline("SkyReelsV2DiffusionForcingVideoToVideoPipeline", longer, sky)
    yield TinyPipeline(
        "SkyReelsV2ImageToVideoPipeline",
        {**_TEXT, **IMAGE},
        {**sky, "transformer": part(in_channels=36, image_dim=32)},
    )
    yield TinyPipeline(
        "HeliosPipeline", {**_TEXT, "num_frames": 33}, {"transformer": part(), "scheduler": part(stages=1)}
    )
    pyramid = {key: value for key, value in _TEXT.items() if key != "num_inference_steps"}
    yield TinyPipeline(
        "HeliosPyramidPipeline",
        {**pyramid, "height": 128, "width": 128, "num_frames": 33, "pyramid_num_inference_steps_list": [1, 1, 1]},
        {"transformer": part()},
    )
    guided = {"guider": part("ClassifierFreeGuidance"), "scheduler": part("FlowMatchEulerDiscreteScheduler")}
    yield TinyPipeline("MotifVideoPipeline", _TEXT, guided)
    yield TinyPipeline("MotifVideoImage2VideoPipeline", {**_TEXT, **IMAGE}, {**guided, "feature_extractor": part()})


def _cogvideo() -> Iterator[TinyPipeline]:
    ddim = {"scheduler": part("CogVideoXDDIMScheduler")}
    yield TinyPipeline("CogVideoXPipeline", _TEXT, ddim)
    wide = {**ddim, "transformer": part(in_channels=8)}
    yield TinyPipeline("CogVideoXImageToVideoPipeline", {**_TEXT, **IMAGE}, wide)
    changed = {**_PROMPT, **SIZE, **_VIDEO, "num_inference_steps": 4, "strength": 0.5}
    yield TinyPipeline("CogVideoXVideoToVideoPipeline", changed, ddim)
    yield TinyPipeline("CogVideoXFunControlPipeline", {**_PROMPT, **SIZE, "control_video": video(5)}, wide)
    yield TinyPipeline("ConsisIDPipeline", {**_TEXT, **IMAGE}, {"transformer": part(in_channels=8)})


def _hunyuan() -> Iterator[TinyPipeline]:
    template = {"prompt_template": {"template": "{}", "crop_start": 0}}
    yield TinyPipeline("HunyuanVideoPipeline", {**_TEXT, **template})
    sky = {"transformer": part(in_channels=8)}
    yield TinyPipeline("HunyuanSkyreelsImageToVideoPipeline", {**_TEXT, **template, **IMAGE}, sky)
    concat = {"transformer": part(in_channels=9, image_condition_type="latent_concat")}
    marked = {"template": "<image><|end_header_id|>{}<|end_header_id|>~~~~<|end_header_id|>", "crop_start": 3}
    places = {"image_emb_start": 1, "image_emb_end": 17, "image_emb_len": 16}
    shown = {**_TEXT, **IMAGE, "num_frames": 9, "prompt_template": {**marked, **places}}
    yield TinyPipeline("HunyuanVideoImageToVideoPipeline", shown, concat)
    yield TinyPipeline("HunyuanVideoFramepackPipeline", {**_TEXT, **template, **IMAGE, "latent_window_size": 2})
    yield TinyPipeline("HunyuanVideo15Pipeline", _TEXT)
    yield TinyPipeline("HunyuanVideo15ImageToVideoPipeline", {**_PROMPT, "num_frames": 5, **IMAGE})


def _ltx() -> Iterator[TinyPipeline]:
    size = {"height": 64, "width": 64}
    text = {**_TEXT, **size, "num_frames": 9}
    yield TinyPipeline("LTXPipeline", text, _SHIFTED)
    yield TinyPipeline("LTXImageToVideoPipeline", {**text, **IMAGE}, _SHIFTED)
    yield TinyPipeline("LTXConditionPipeline", {**text, **IMAGE})
    tiles = {"decode_horizontal_tiles": 2, "decode_vertical_tiles": 2, "decode_overlap": 1}
    shown = {**text, "height": 128, "width": 128, "cond_image": image(), **tiles}
    yield TinyPipeline("LTXI2VLongMultiPromptPipeline", shown, {"scheduler": part("LTXEulerAncestralRFScheduler")})
    yield TinyPipeline("LTXLatentUpsamplePipeline", {**size, "video": video(9, 64, 64)})
    flow = {**_SHIFTED, "vocoder": part("LTX2Vocoder")}
    blocks = {"spatio_temporal_guidance_blocks": [0]}
    sounding = {**text, **blocks}
    yield TinyPipeline("LTX2Pipeline", sounding, flow)
    yield TinyPipeline("LTX2ImageToVideoPipeline", {**sounding, **IMAGE}, flow)
    yield TinyPipeline("LTX2ConditionPipeline", sounding, flow)
    yield TinyPipeline("LTX2InContextPipeline", sounding, flow)
    yield TinyPipeline("LTX2HDRPipeline", text, flow)
    stepless = {key: value for key, value in text.items() if key != "num_inference_steps"}
    slots = {"vocoder": part("LTX2Vocoder"), "transformer": part(use_keyframes_abs_pos_embedding=True)}
    yield TinyPipeline("LTX2DFRPipeline", stepless, slots)
    earlier = {"latents": noise(1, 8, 2, 2, 2), "keyframes_latents": noise(1, 8, 1, 2, 2), "keyframe_positions": [8]}
    refined = {**stepless, **earlier, "audio_latents": noise(1, 2, 10, 4)}
    upsampler = {"temporal_latent_upsampler": part(spatial_upsample=False, temporal_upsample=True)}
    yield TinyPipeline("LTX2DFRTemporalRefinePipeline", refined, {**slots, **upsampler})
    decoded = {"latents": noise(1, 8, 2, 4, 4), "denormalize": False}
    scheduled = {"scheduler": part("FlowMatchEulerDiscreteScheduler")}
    yield TinyPipeline("LTX2VideoDiffusionDecodePipeline", decoded, scheduled)
    yield TinyPipeline("LTX2LatentUpsamplePipeline", {**size, "video": video(9, 64, 64), "num_frames": 9})


def _cosmos() -> Iterator[TinyPipeline]:
    safe = {"safety_checker": AcceptingChecker}
    karras = {"scheduler": part(use_karras_sigmas=True)}
    seen = {**safe, "transformer": part(in_channels=17)}
    longer = {**_TEXT, "num_frames": 9}
    yield TinyPipeline("CosmosTextToWorldPipeline", longer, safe)
    yield TinyPipeline("CosmosVideoToWorldPipeline", {**longer, **IMAGE}, seen)
    yield TinyPipeline("Cosmos2TextToImagePipeline", {**_PROMPT, **SIZE}, {**safe, **karras})
    yield TinyPipeline("Cosmos2VideoToWorldPipeline", {**_TEXT, **IMAGE}, {**seen, **karras})
    projected = {
        "use_crossattn_projection": True,
        "crossattn_proj_in_channels": 64,
        "encoder_hidden_states_channels": 32,
    }
    predicted = {**safe, "transformer": part(in_channels=17, **projected)}
    yield TinyPipeline("Cosmos2_5_PredictBasePipeline", {**_TEXT, **IMAGE}, predicted)
    yield TinyPipeline(
        "Cosmos2_5_TransferPipeline",
        {**_PROMPT, **SIZE, "controls": video(5), "num_frames_per_chunk": 5},
        {
            **safe,
            "transformer": part(in_channels=17, controlnet_block_every_n=2, **projected),
            "controlnet": part(**projected),
        },
    )


def _others() -> Iterator[TinyPipeline]:
    # Its autoencoder decodes in whole tiles, and not at all without.
    one_tile = {**_PROMPT, "num_frames": 24, "height": 128, "width": 128, "clean_caption": False}
    yield TinyPipeline("AllegroPipeline", one_tile, is_tiled=True)
    yield TinyPipeline("MochiPipeline", {**_TEXT, "num_frames": 7})
    yield TinyPipeline(
        "LattePipeline",
        {**_PROMPT, **SIZE, "video_length": 2, "clean_caption": False},
        {"text_encoder": part(), "tokenizer": part(), "vae": part(**EIGHTH)},
    )
    qwen = {"text_encoder": part("Qwen2VLForConditionalGeneration"), "tokenizer": part("Qwen2Tokenizer")}
    guided = {**_TEXT, "negative_prompt": "blue"}
    yield TinyPipeline("EasyAnimatePipeline", guided, qwen)
    control = {**qwen, "transformer": part(in_channels=8)}
    yield TinyPipeline("EasyAnimateControlPipeline", {**guided, "control_video": video(5)}, control)
    inpainted = {**qwen, "transformer": part(in_channels=12, resize_inpaint_mask_directly=False)}
    yield TinyPipeline("EasyAnimateInpaintPipeline", {**guided, **_inpainted()}, inpainted)
    sana = {**_PROMPT, **SIZE, "frames": 5, "use_resolution_binning": False}
    wan_vae = {"vae": part("AutoencoderKLWan"), "scheduler": part("FlowMatchEulerDiscreteScheduler")}
    yield TinyPipeline("SanaVideoPipeline", sana, wan_vae)
    yield TinyPipeline("SanaImageToVideoPipeline", {**sana, **IMAGE}, wan_vae)
    moved = {"action": "w-8", "intrinsics": [30.0, 30.0, 16.0, 16.0]}
    world = {**_TEXT, "num_frames": 9, "height": 64, "width": 64, **IMAGE, **moved}
    yield TinyPipeline("SanaWMPipeline", world)
    yield TinyPipeline("Kandinsky5T2VPipeline", _TEXT)
    yield TinyPipeline(
        "Kandinsky5I2VPipeline", {**_TEXT, **IMAGE, "num_frames": 21}, {"transformer": part(visual_cond=True)}
    )
    sound = {"audio_vae": part(), "vocoder": part(), "scheduler": part("FlowMatchEulerDiscreteScheduler")}
    yield TinyPipeline("Kandinsky6TI2VAPipeline", _TEXT, sound)
    yield TinyPipeline("Kandinsky6SRPipeline", _VIDEO, {"scheduler": part("FlowMatchEulerDiscreteScheduler")})
    unchecked = {"enable_safety_checker": False, "sound_tokenizer": part()}
    yield TinyPipeline("Cosmos3OmniPipeline", {**_TEXT, "enable_sound": True}, unchecked)
    # The image is resized to 224 pixels in any case.
    seen = {"image_encoder": part(image_size=224, patch_size=32), "feature_extractor": part(side=224)}
    yield TinyPipeline(
        "StableVideoDiffusionPipeline", {**SIZE, **IMAGE, "num_frames": 2, "num_inference_steps": 2}, seen
    )


def _inpainted() -> dict[str, Any]:
    """A video and its mask as the tensors that one pipeline asks for."""
    import torch

    frames = torch.rand(1, 3, 5, 32, 32, generator=torch.Generator().manual_seed(7))
    mask = torch.zeros(1, 1, 5, 32, 32)
    mask[..., 8:24, 4:20] = 255
    return {"video": frames, "mask_video": mask}


def declared() -> Iterator[TinyPipeline]:
    """Every class of these families."""
    for family in (_wan, _cogvideo, _hunyuan, _ltx, _cosmos, _others):
        yield from family()
