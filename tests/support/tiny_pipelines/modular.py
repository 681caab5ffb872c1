"""Modular pipelines, which some models have instead of a pipeline class."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from support.tiny_pipelines.build import TinyPipeline, part
from support.tiny_pipelines.media import image, video
from support.tiny_pipelines.sizes import DYNAMIC_SHIFT
from support.tiny_pipelines.stable_diffusion import XL

_PROMPT = {"prompt": "a red cat", "num_inference_steps": 2}
_SIZE = {"height": 32, "width": 32}
_TEXT = {**_PROMPT, **_SIZE}
_IMAGE = {"image": image()}
_FRAMES = {**_TEXT, "num_frames": 5}
_SHIFTED = {"scheduler": part(**DYNAMIC_SHIFT)}
_FLOW = {**_SHIFTED, "vae": part(shift_factor=0.1)}
# Some blocks read certain layers of the text encoder of the released checkpoint, and so count them.
_DEEP_KREA2 = {"text_encoder": part("Qwen3VLModel", num_hidden_layers=36), "transformer": part(num_text_layers=12)}


def _with(**config: object) -> Callable[[Any], None]:
    """Settings of the pipeline itself, in its index."""
    return lambda pipeline: pipeline.register_to_config(**config)


def _images() -> Iterator[TinyPipeline]:
    yield TinyPipeline("ZImageModularPipeline", _TEXT, _FLOW)
    yield TinyPipeline("FluxModularPipeline", {**_TEXT, "num_inference_steps": 4, **_IMAGE, "strength": 0.5}, _FLOW)
    yield TinyPipeline(
        "FluxKontextModularPipeline", {**_TEXT, **_IMAGE, "max_area": 1024, "_auto_resize": False}, _FLOW
    )
    layers = {"text_encoder_out_layers": [0, 1, 2]}
    yield TinyPipeline("Flux2KleinModularPipeline", {**_TEXT, "image": image(1, 64, 64), **layers}, _SHIFTED)
    yield TinyPipeline("Flux2KleinBaseModularPipeline", {**_TEXT, **layers}, _SHIFTED)
    yield TinyPipeline("Flux2ModularPipeline", {**_TEXT, **layers}, _SHIFTED)
    upsampled = {"prompt_upsampler_processor": part("Qwen3VLProcessor"), "tokenizer": part("Qwen3VLProcessor")}
    upsampled["text_encoder"] = part(num_hidden_layers=33)
    few = {**_TEXT, "max_new_tokens": 4}
    yield TinyPipeline("Flux3ModularPipeline", few, upsampled)
    yield TinyPipeline("Flux3DistilledModularPipeline", few, {**upsampled, "transformer": part(flow_map=True)})
    yield TinyPipeline("AnimaModularPipeline", _TEXT)
    krea2 = {**_SHIFTED, **_DEEP_KREA2, "tokenizer": part("Qwen2Tokenizer")}
    yield TinyPipeline("Krea2ModularPipeline", _TEXT, krea2)
    yield TinyPipeline("Krea2TurboModularPipeline", _TEXT, krea2)
    xl = {"controlnet": None, "image_encoder": None, "unet": part(**XL)}
    yield TinyPipeline("StableDiffusionXLModularPipeline", _TEXT, xl)
    wide = {"text_encoder_3": part(d_model=64), "vae": part(shift_factor=0.1)}
    yield TinyPipeline("StableDiffusion3ModularPipeline", _TEXT, wide)
    without_control = {**_SHIFTED, "controlnet": None}
    yield TinyPipeline("QwenImageModularPipeline", {**_TEXT, "negative_prompt": "blue"}, without_control)
    yield TinyPipeline("QwenImageEditModularPipeline", {**_TEXT, **_IMAGE}, _SHIFTED)
    yield TinyPipeline("QwenImageEditPlusModularPipeline", {**_TEXT, "image": [image(1), image(2)]}, _SHIFTED)
    layered = {**_SHIFTED, "transformer": part(use_additional_t_cond=True, use_layer3d_rope=True)}
    yield TinyPipeline("QwenImageLayeredModularPipeline", {**_PROMPT, **_IMAGE, "layers": 2}, layered)
    sized = {**_TEXT, **_IMAGE, "output_resolution": 32}
    yield TinyPipeline("QwenImage21ModularPipeline", sized, _SHIFTED)
    yield TinyPipeline("QwenImage21TurboModularPipeline", sized, _SHIFTED)
    encoder = part("Qwen3VLModel", num_hidden_layers=36)
    mistral = {"pe": None, "pe_tokenizer": None, "tokenizer": part("LlamaTokenizer")}
    yield TinyPipeline("ErnieImageModularPipeline", _TEXT, mistral)
    deep = {"text_encoder": encoder, "prompt_enhancer_head": None}
    yield TinyPipeline("Ideogram4ModularPipeline", {**_TEXT, "guidance_schedule": [7.0, 7.0]}, deep)


def _videos() -> Iterator[TinyPipeline]:
    wan = {"tokenizer": part("T5Tokenizer")}
    yield TinyPipeline("WanModularPipeline", _FRAMES, wan)
    yield TinyPipeline("Wan22ModularPipeline", _FRAMES, wan)
    first_frame = {**wan, "transformer": part(in_channels=36, image_dim=32)}
    yield TinyPipeline("WanImage2VideoModularPipeline", {**_FRAMES, **_IMAGE}, first_frame)
    twice = {**wan, **{name: part(in_channels=36) for name in ("transformer", "transformer_2")}}
    yield TinyPipeline("Wan22Image2VideoModularPipeline", {**_FRAMES, **_IMAGE}, twice)
    vace = {**wan, "transformer": part("WanVACETransformer3DModel")}
    yield TinyPipeline("Wan22VaceModularPipeline", _FRAMES, vace)
    # The features of the image are 1,280 wide in any case.
    seen = {"image_encoder": part(image_size=224, patch_size=32, hidden_size=1280, num_attention_heads=4)}
    animated = {**wan, **seen, "scheduler": part("FlowMatchEulerDiscreteScheduler")}
    driven = {**_TEXT, **_IMAGE, "driving_video": video(5), "segment_frame_length": 5}
    yield TinyPipeline("WanAnimate2ModularPipeline", driven, animated)
    yield TinyPipeline("WanAnimate2DistilledModularPipeline", driven, animated)
    helios = {**_FRAMES, "num_frames": 33}
    yield TinyPipeline("HeliosModularPipeline", helios, {**wan, "scheduler": part(stages=1)})
    steps = {"pyramid_num_inference_steps_list": [1, 1, 1]}
    pyramid = {"prompt": "a red cat", "height": 128, "width": 128, "num_frames": 33, **steps}
    yield TinyPipeline("HeliosPyramidModularPipeline", pyramid, wan)
    yield TinyPipeline(
        "HeliosPyramidDistilledModularPipeline", pyramid, {**wan, "scheduler": part("HeliosDMDScheduler")}
    )
    yield TinyPipeline("Cosmos3OmniModularPipeline", _FRAMES, prepare=_with(enable_safety_checker=False))
    yield TinyPipeline(
        "Cosmos3DistilledModularPipeline",
        {"prompt": "a red cat", **_SIZE, "num_frames": 5},
        {"text_tokenizer": part("Qwen2Tokenizer")},
        _with(enable_safety_checker=False, distilled_sigmas=[1.0, 0.5]),
    )
    yield TinyPipeline("HunyuanVideo15ModularPipeline", _FRAMES)
    large = {"height": 64, "width": 64, "num_frames": 9}
    yield TinyPipeline("LTXModularPipeline", {**_PROMPT, **large}, _SHIFTED)
    gemma = {"text_encoder": part("Gemma3ForConditionalGeneration"), "tokenizer": part("GemmaTokenizer")}
    optional = {"prompt_enhancer": None, "processor": None, "duration_head": None}
    sounding = {**gemma, **optional, **_SHIFTED, "vocoder": part("LTX2Vocoder")}
    yield TinyPipeline("LTX2ModularPipeline", {**_PROMPT, **large}, sounding)
    yield TinyPipeline("LTX25ModularPipeline", {**_PROMPT, "height": 96, "width": 96, "num_frames": 9}, sounding)
    echo = {"text_encoder": gemma["text_encoder"], "tokenizer": gemma["tokenizer"]}
    yield TinyPipeline("EchoModularPipeline", {"prompt": "a red cat", "height": 96, "width": 96, "num_frames": 9}, echo)
    # It makes 5 s or more, and reads the text encoder's 50th layer.
    parts = {"text_encoder": part(num_hidden_layers=51), "transformer_ref": None}
    yield TinyPipeline("MiniMaxH3ModularPipeline", {**_TEXT, "num_inference_steps": 3, "num_frames": 124}, parts)


def _audio() -> Iterator[TinyPipeline]:
    sung = {**_PROMPT, "lyrics": "la la", "audio_duration": 0.2}
    # The tokens of its sound follow those of the released vocabulary.
    speaker = {"vocab_size": 152_699, "hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2}
    yield TinyPipeline(
        "MiniMaxMusic3ModularPipeline",
        sung,
        {"language_model": part(**speaker, num_hidden_layers=2, num_key_value_heads=2, head_dim=8)},
    )


def declared() -> Iterator[TinyPipeline]:
    yield from _images()
    yield from _videos()
    yield from _audio()
