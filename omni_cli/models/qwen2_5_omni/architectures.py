"""Qwen2.5-Omni's names among vLLM's architectures."""

from __future__ import annotations

# The published checkpoints have the first name, those that transformers saves the second.
OMNI = ("Qwen2_5OmniModel", "Qwen2_5OmniForConditionalGeneration")
# The language model inside of the thinker.
INNER = ("Qwen2ForCausalLM",)
TALKER = "Qwen2_5OmniTalkerForConditionalGeneration"
TOKEN2WAV = "Qwen2_5OmniToken2WavForDiffusion"
