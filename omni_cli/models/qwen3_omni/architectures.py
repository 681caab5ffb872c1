"""Qwen3-Omni's architecture names in vLLM."""

from __future__ import annotations

OMNI = "Qwen3OmniMoeForConditionalGeneration"
# The language model inside the thinker.
INNER = ("Qwen3MoeForCausalLM",)
THINKER = "Qwen3OmniMoeThinkerForSpeech"
TALKER = "Qwen3OmniMoeTalkerForConditionalGeneration"
CODE2WAV = "Qwen3OmniMoeCode2WavForDiffusion"
