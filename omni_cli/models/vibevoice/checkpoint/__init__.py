"""The built-in VibeVoice checkpoint."""
