"""Parts that Qwen2.5-Omni and Qwen3-Omni share."""
