"""Qwen2.5-Omni's talker and token2wav for vLLM; the thinker is vLLM's own."""
