"""Qwen3-Omni: thinker -> talker with a code predictor -> code2wav."""
