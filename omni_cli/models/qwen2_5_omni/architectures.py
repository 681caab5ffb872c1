"""Qwen2.5-Omni's names among vLLM's architectures."""

from __future__ import annotations

# The published checkpoints have the first name, those that transformers saves the second.
OMNI = ("Qwen2_5OmniModel", "Qwen2_5OmniForConditionalGeneration")
# The language model inside of the thinker.
INNER = ("Qwen2ForCausalLM",)
TALKER = "Qwen2_5OmniTalkerForConditionalGeneration"
TOKEN2WAV = "Qwen2_5OmniToken2WavForDiffusion"


def talker_config(config: object) -> object:
    """vLLM's `hf_overrides`: the talker's part of a Qwen2.5-Omni config.

    vLLM also calls it with an empty config, to check whether it changes the model type; that one is left unchanged.
    """
    if not hasattr(config, "talker_config"):
        return config
    talker = config.talker_config
    talker.architectures = [TALKER]
    return talker
