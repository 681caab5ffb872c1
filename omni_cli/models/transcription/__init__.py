"""Speech recognition with vLLM's models, as a model family of one stage."""
