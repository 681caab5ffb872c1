"""VibeVoice: each step of a Qwen2 backbone ends in a diffusion whose latent becomes sound at once."""
