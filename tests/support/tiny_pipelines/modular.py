"""Modular pipelines, which some models have instead of a pipeline class."""

from __future__ import annotations

from collections.abc import Iterator

from support.tiny_pipelines.build import TinyPipeline, part
from support.tiny_pipelines.media import image
from support.tiny_pipelines.sizes import DYNAMIC_SHIFT

_PROMPT = {"prompt": "a red cat", "num_inference_steps": 2}
_SIZE = {"height": 32, "width": 32}
_TEXT = {**_PROMPT, **_SIZE}
_IMAGE = {"image": image()}
_FRAMES = {**_TEXT, "num_frames": 5}
_SHIFTED = {"scheduler": part(**DYNAMIC_SHIFT)}
_FLOW = {**_SHIFTED, "vae": part(shift_factor=0.1)}


def _images() -> Iterator[TinyPipeline]:
    yield TinyPipeline("ZImageModularPipeline", _TEXT, _FLOW)
    yield TinyPipeline("FluxModularPipeline", {**_TEXT, "num_inference_steps": 4, **_IMAGE, "strength": 0.5}, _FLOW)
    yield TinyPipeline(
        "FluxKontextModularPipeline", {**_TEXT, **_IMAGE, "max_area": 1024, "_auto_resize": False}, _FLOW
    )
    layers = {"text_encoder_out_layers": [0, 1, 2]}
    yield TinyPipeline("Flux2KleinModularPipeline", {**_TEXT, "image": image(1, 64, 64), **layers}, _SHIFTED)
    yield TinyPipeline("Flux2KleinBaseModularPipeline", {**_TEXT, **layers}, _SHIFTED)
    wide = {"text_encoder_3": part(d_model=64), "vae": part(shift_factor=0.1)}
    yield TinyPipeline("StableDiffusion3ModularPipeline", _TEXT, wide)
    without_control = {**_SHIFTED, "controlnet": None}
    yield TinyPipeline("QwenImageModularPipeline", {**_TEXT, "negative_prompt": "blue"}, without_control)
    yield TinyPipeline("QwenImageEditModularPipeline", {**_TEXT, **_IMAGE}, _SHIFTED)
    yield TinyPipeline("QwenImageEditPlusModularPipeline", {**_TEXT, "image": [image(1), image(2)]}, _SHIFTED)
    layered = {**_SHIFTED, "transformer": part(use_additional_t_cond=True, use_layer3d_rope=True)}
    yield TinyPipeline("QwenImageLayeredModularPipeline", {**_PROMPT, **_IMAGE, "layers": 2}, layered)
    yield TinyPipeline("QwenImage21ModularPipeline", {**_TEXT, **_IMAGE, "output_resolution": 32}, _SHIFTED)
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
    yield TinyPipeline("HunyuanVideo15ModularPipeline", _FRAMES)
    large = {"height": 64, "width": 64, "num_frames": 9}
    yield TinyPipeline("LTXModularPipeline", {**_PROMPT, **large}, _SHIFTED)
    gemma = {"text_encoder": part("Gemma3ForConditionalGeneration"), "tokenizer": part("GemmaTokenizer")}
    optional = {"prompt_enhancer": None, "processor": None, "duration_head": None}
    sounding = {**gemma, **optional, **_SHIFTED, "vocoder": part("LTX2Vocoder")}
    yield TinyPipeline("LTX2ModularPipeline", {**_PROMPT, **large}, sounding)
    yield TinyPipeline("LTX25ModularPipeline", {**_PROMPT, "height": 96, "width": 96, "num_frames": 9}, sounding)
    # It makes 5 s or more, and reads the text encoder's 50th layer.
    parts = {"text_encoder": part(num_hidden_layers=51), "transformer_ref": None}
    yield TinyPipeline("MiniMaxH3ModularPipeline", {**_TEXT, "num_inference_steps": 3, "num_frames": 124}, parts)


def declared() -> Iterator[TinyPipeline]:
    yield from _images()
    yield from _videos()
