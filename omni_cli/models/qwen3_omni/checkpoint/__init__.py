"""Builds Qwen3-Omni checkpoints of any size, and nothing else: a built one is kept until a file here changes."""
