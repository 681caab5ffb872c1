"""Qwen3-Omni: thinker -> talker with a code predictor -> code2wav."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from omni_cli.config.families import PROCESSOR_FILES, CheckpointNeeds, Family, Machine, ar_role
from omni_cli.models.codec import codec_role

_HERE = "omni_cli.models.qwen3_omni"
# In config.json; the thinking variant has only the thinker.
_SPEAKS = "enable_audio_output"

FAMILY = Family(
    name="qwen3_omni",
    title="Qwen3-Omni",
    architectures=("Qwen3OmniMoeForConditionalGeneration",),
    roles=(
        ar_role(
            name="thinker",
            stage=f"{_HERE}.stages:Qwen3ThinkerStage",
            model=f"{_HERE}.model:Qwen3OmniMoeThinkerForSpeech",
            makes="text",
            transcribes=True,
            chats=True,
            decoder="thinker_config",
            needed_files=(("tokenizer.json", "vocab.json"), PROCESSOR_FILES),
            needed_weights=("thinker.model.", "thinker.audio_tower.", "thinker.visual.", "thinker.lm_head."),
        ),
        ar_role(
            name="talker",
            stage=f"{_HERE}.stages:Qwen3TalkerStage",
            model=f"{_HERE}.model:Qwen3OmniMoeTalkerForConditionalGeneration",
            input="thinker",
            decoder="talker_config",
            settings="omni_cli.models.qwen_omni.settings:OmniTalkerConfig",
            needed_weights=tuple(
                f"talker.{part}."
                for part in ("model", "code_predictor", "codec_head", "hidden_projection", "text_projection")
            ),
            enabled_key=_SPEAKS,
        ),
        codec_role(
            name="code2wav",
            model=f"{_HERE}.model:Qwen3OmniMoeCode2WavForDiffusion",
            input="talker",
            needed_weights=("code2wav.",),
            enabled_key=_SPEAKS,
        ),
    ),
    builtins={"tiny-qwen3-omni": "omni_cli.checkpoints.tiny_qwen3:tiny_qwen3_omni"},
    # The language model inside the thinker.
    inner_architectures=("Qwen3MoeForCausalLM",),
    profile=f"{_HERE}.family:derive_stages",
    # The talker's prompt repeats the users' turns and ends with the head of the assistant's turn.
    prompt_frame=("<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n"),
    published={
        "Qwen/Qwen3-Omni-30B-A3B-Instruct": CheckpointNeeds(
            71 * 10**9, {"thinker": 31_723 * 10**6, "talker": 3325 * 10**6, "code2wav": 216 * 10**6}
        ),
        "Qwen/Qwen3-Omni-30B-A3B-Thinking": CheckpointNeeds(64 * 10**9, {"thinker": 31_723 * 10**6}),
    },
    reference=f"{_HERE}.reference:Qwen3OmniReference",
)


def derive_stages(folder: Path, machine: Machine) -> dict[str, Any]:
    """Return all three stages, or the thinker if the checkpoint has no talker, with transformers' sampling."""
    from omni_cli.checkpoints.derive import decoder_settings, read_config

    config = read_config(folder)
    is_cpu = machine.device == "cpu"
    speaks = bool(config.get("enable_audio_output", True))
    common = partial(decoder_settings, machine=machine, max_model_len={"cpu": 4096, "cuda": 32768})
    sampling = {"temperature": 0.0, "max_tokens": 1024}
    thinker = {**common(config["thinker_config"]["text_config"]), "sampling": sampling}
    if not speaks:
        return {"thinker": thinker}
    talker = common(config["talker_config"]["text_config"])
    length = 1024 if is_cpu else 4096
    talker["sampling"] = {"temperature": 0.9, "top_k": 50, "repetition_penalty": 1.05, "max_tokens": length}
    execution = "eager" if is_cpu else "cudagraph"
    code2wav = {"max_num_seqs": talker["max_num_seqs"], "execution": execution, "output_copy": "async"}
    return {"thinker": thinker, "talker": talker, "code2wav": code2wav}
