"""Qwen3-Omni's names among vLLM's architectures."""

from __future__ import annotations

OMNI = "Qwen3OmniMoeForConditionalGeneration"
# The language model inside of the thinker.
INNER = ("Qwen3MoeForCausalLM",)
THINKER = "Qwen3OmniMoeThinkerForSpeech"
TALKER = "Qwen3OmniMoeTalkerForConditionalGeneration"
CODE2WAV = "Qwen3OmniMoeCode2WavForDiffusion"
