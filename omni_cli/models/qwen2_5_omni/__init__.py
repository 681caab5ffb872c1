"""Qwen2.5-Omni: thinker -> talker -> token2wav. The thinker's model is vLLM's own."""
