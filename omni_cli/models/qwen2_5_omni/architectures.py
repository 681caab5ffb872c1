"""Qwen2.5-Omni's architecture names in vLLM."""

from __future__ import annotations

# The first is that of the published checkpoints, the second is what transformers saves.
OMNI = ("Qwen2_5OmniModel", "Qwen2_5OmniForConditionalGeneration")
# The language model inside the thinker.
INNER = ("Qwen2ForCausalLM",)
TALKER = "Qwen2_5OmniTalkerForConditionalGeneration"
TOKEN2WAV = "Qwen2_5OmniToken2WavForDiffusion"
