"""Qwen2.5-Omni: thinker -> talker -> token2wav."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from omni_cli.config.families import PROCESSOR_FILES, CheckpointNeeds, Family, Machine, StageRole, ar_role

_HERE = "omni_cli.models.qwen2_5_omni"

FAMILY = Family(
    name="qwen2_5_omni",
    title="Qwen2.5-Omni",
    # The name in published checkpoints, and what transformers saves.
    architectures=("Qwen2_5OmniModel", "Qwen2_5OmniForConditionalGeneration"),
    roles=(
        ar_role(
            name="thinker",
            stage=f"{_HERE}.stages:ThinkerStage",
            makes="text",
            decoder="thinker_config",
            needed_files=(("tokenizer.json", "vocab.json"), PROCESSOR_FILES),
            needed_weights=("thinker.model.", "thinker.audio_tower.", "thinker.visual."),
        ),
        ar_role(
            name="talker",
            stage=f"{_HERE}.stages:TalkerStage",
            model=f"{_HERE}.stages:Qwen2_5OmniTalkerForConditionalGeneration",
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
            model=f"{_HERE}.token2wav.model:Qwen2_5OmniToken2WavForDiffusion",
            input="talker",
            makes="audio",
            settings=f"{_HERE}.settings:Token2WavConfig",
            needed_weights=("token2wav.code2wav_dit_model.", "token2wav.code2wav_bigvgan_model."),
        ),
    ),
    builtins={
        "tiny-omni": "omni_cli.checkpoints.tiny_qwen:tiny_omni",
        "small-omni": "omni_cli.checkpoints.tiny_qwen:small_omni",
    },
    # The language model inside the thinker.
    inner_architectures=("Qwen2ForCausalLM",),
    profile=f"{_HERE}.family:derive_stages",
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


# From the model card: speech is correct only with exactly this system prompt.
_SYSTEM_PROMPT = (
    "You are Qwen, a virtual human developed by the Qwen Team, Alibaba Group, capable of perceiving auditory and "
    "visual inputs, as well as generating text and speech."
)


def derive_stages(folder: Path, machine: Machine) -> dict[str, Any]:
    """Return the three stages with the released models' sampling."""
    from omni_cli.checkpoints.derive import decoder_settings, read_config

    config = read_config(folder)
    is_cpu = machine.device == "cpu"
    common = partial(decoder_settings, machine=machine, max_model_len={"cpu": 4096, "cuda": 32768})
    thinker = {"system_prompt": _SYSTEM_PROMPT, "sampling": {"temperature": 0.0, "max_tokens": 1024}}
    # Qwen2.5-Omni's own values, because greedy speech gets stuck.
    sampling = {"temperature": 0.9, "top_k": 40, "top_p": 0.8, "repetition_penalty": 1.05}
    sampling["max_tokens"] = 1024 if is_cpu else 4096
    return {
        "thinker": {**common(config["thinker_config"]["text_config"]), **thinker},
        "talker": {**common(config["talker_config"]), "sampling": sampling},
        "token2wav": {
            "max_num_seqs": 8,
            "num_inference_steps": 10,
            "guidance_scale": 0.5,
            "sway_coefficient": -1.0,
            "execution": "eager" if is_cpu else "cudagraph",
            "output_copy": "sync",
        },
    }
