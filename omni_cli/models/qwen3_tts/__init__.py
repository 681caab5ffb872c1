"""Qwen3-TTS, 12 Hz: a talker with a code predictor generates codes of speech from a text -> code2wav."""
