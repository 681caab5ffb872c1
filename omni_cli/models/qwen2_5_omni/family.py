"""Qwen2.5-Omni: thinker -> talker -> token2wav."""

from __future__ import annotations

from omni_cli.families import CheckpointNeeds, Family, StageRole

_HERE = "omni_cli.models.qwen2_5_omni"
# Architecture names in vLLM.
TALKER = "Qwen2_5OmniTalkerForConditionalGeneration"
TOKEN2WAV = "Qwen2_5OmniToken2WavForDiffusion"

FAMILY = Family(
    name="qwen2_5_omni",
    title="Qwen2.5-Omni",
    # The name in published checkpoints, and what transformers saves.
    architectures=("Qwen2_5OmniModel", "Qwen2_5OmniForConditionalGeneration"),
    roles=(
        StageRole(
            name="thinker",
            kind="ar",
            backend="vllm",
            stage=f"{_HERE}.stages:ThinkerStage",
            makes="text",
            decoder="thinker_config",
            needed_files=(
                ("tokenizer.json", "vocab.json"),
                ("processor_config.json", "preprocessor_config.json"),
            ),
            needed_weights=("thinker.model.", "thinker.audio_tower.", "thinker.visual."),
        ),
        StageRole(
            name="talker",
            kind="ar",
            backend="vllm",
            stage=f"{_HERE}.stages:TalkerStage",
            input="thinker",
            # Speech is made from the thinker's hidden states, which depend on the system prompt.
            takes=("instructions",),
            settings=f"{_HERE}.settings:TalkerConfig",
            decoder="talker_config",
            needed_files=(("spk_dict.pt",),),
            needed_weights=("talker.model.", "talker.thinker_to_talker_proj.", "talker.codec_head."),
        ),
        StageRole(
            name="token2wav",
            kind="diffusion",
            backend="vllm",
            stage=f"{_HERE}.token2wav.stage:Token2WavStage",
            input="talker",
            makes="audio",
            settings=f"{_HERE}.settings:Token2WavConfig",
            needed_weights=("token2wav.code2wav_dit_model.", "token2wav.code2wav_bigvgan_model."),
        ),
    ),
    vllm_models={
        TALKER: f"{_HERE}.talker:Qwen2_5OmniTalkerForConditionalGeneration",
        TOKEN2WAV: f"{_HERE}.token2wav.model:Qwen2_5OmniToken2WavForDiffusion",
    },
    builtins={
        "tiny-omni": "omni_cli.checkpoints.tiny_qwen:tiny_omni",
        "small-omni": "omni_cli.checkpoints.tiny_qwen:small_omni",
    },
    # The language model inside the thinker.
    inner_architectures=("Qwen2ForCausalLM",),
    profile=f"{_HERE}.profile:derive_stages",
    published={
        "Qwen/Qwen2.5-Omni-3B": CheckpointNeeds(
            12 * 10**9, {"thinker": 4703 * 10**6, "talker": 385 * 10**6, "token2wav": 449 * 10**6}
        ),
        "Qwen/Qwen2.5-Omni-7B": CheckpointNeeds(
            22 * 10**9, {"thinker": 8932 * 10**6, "talker": 1351 * 10**6, "token2wav": 449 * 10**6}
        ),
    },
    reference=f"{_HERE}.reference:Qwen2_5OmniReference",
)
