"""Qwen3-Omni's names among vLLM's architectures."""

from __future__ import annotations

OMNI = "Qwen3OmniMoeForConditionalGeneration"
# The language model inside of the thinker.
INNER = ("Qwen3MoeForCausalLM",)
THINKER = "Qwen3OmniMoeThinkerForSpeech"
TALKER = "Qwen3OmniMoeTalkerForConditionalGeneration"
CODE2WAV = "Qwen3OmniMoeCode2WavForDiffusion"


def talker_config(config: object) -> object:
    """vLLM's `hf_overrides`: the talker's part of a Qwen3-Omni config.

    vLLM also calls it with an empty config, to check whether it changes the model type; that one is left unchanged.
    """
    if not hasattr(config, "talker_config"):
        return config
    talker = config.talker_config
    talker.architectures = [TALKER]
    return talker
