"""CSM: backbone with a depth decoder -> Mimi."""

from __future__ import annotations

from omni_cli.families import CheckpointNeeds, Family, StageRole

_HERE = "omni_cli.models.csm"
# Architecture names in vLLM.
BACKBONE = "CsmBackboneForCodes"
CODEC = "CsmCodecForDiffusion"

FAMILY = Family(
    name="csm",
    title="CSM",
    architectures=("CsmForConditionalGeneration",),
    roles=(
        StageRole(
            name="backbone",
            kind="ar",
            backend="vllm",
            stage=f"{_HERE}.stages:BackboneStage",
            takes=("sampling", "max_tokens", "temperature", "raw"),
            needed_files=(("tokenizer.json",), ("processor_config.json", "preprocessor_config.json")),
            needed_weights=("backbone_model.", "depth_decoder.", "embed_text_tokens.", "lm_head."),
        ),
        StageRole(
            name="codec",
            kind="diffusion",
            backend="vllm",
            stage=f"{_HERE}.stages:MimiStage",
            input="backbone",
            makes="audio",
            settings="omni_cli.models.codec.settings:CodecConfig",
            needed_weights=("codec_model.",),
        ),
    ),
    vllm_models={BACKBONE: f"{_HERE}.backbone:CsmBackbone", CODEC: f"{_HERE}.codec:CsmCodec"},
    builtins={"tiny-csm": "omni_cli.checkpoints.tiny_speech:tiny_csm"},
    profile=f"{_HERE}.profile:derive_stages",
    published={"sesame/csm-1b": CheckpointNeeds(7 * 10**9, {"backbone": 1553 * 10**6, "codec": 79 * 10**6})},
    reference=f"{_HERE}.reference:CsmReference",
)
