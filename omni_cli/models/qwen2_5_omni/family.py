"""Qwen2.5-Omni: thinker → talker → token2wav."""

from __future__ import annotations

from omni_cli.families import Family, StageRole

_HERE = "omni_cli.models.qwen2_5_omni"

FAMILY = Family(
    name="qwen2_5_omni",
    title="Qwen2.5-Omni",
    # The published checkpoints have the first name, those that transformers saves the second.
    architectures=("Qwen2_5OmniModel", "Qwen2_5OmniForConditionalGeneration"),
    roles=(
        StageRole(
            "thinker",
            "ar",
            "vllm",
            f"{_HERE}.stages:ThinkerStage",
            needed_files=(
                ("tokenizer.json", "vocab.json"),
                ("processor_config.json", "preprocessor_config.json"),
            ),
        ),
        StageRole(
            "talker",
            "ar",
            "vllm",
            f"{_HERE}.stages:TalkerStage",
            "thinker",
            f"{_HERE}.settings:TalkerConfig",
            needed_files=(("spk_dict.pt",),),
        ),
        StageRole(
            "token2wav",
            "diffusion",
            "vllm",
            f"{_HERE}.token2wav_stage:Token2WavStage",
            "talker",
            f"{_HERE}.settings:Token2WavConfig",
        ),
    ),
    vllm_models={
        "Qwen2_5OmniTalkerForConditionalGeneration": f"{_HERE}.talker:Qwen2_5OmniTalkerForConditionalGeneration",
        "Qwen2_5OmniToken2WavForDiffusion": f"{_HERE}.token2wav:Qwen2_5OmniToken2WavForDiffusion",
    },
)
