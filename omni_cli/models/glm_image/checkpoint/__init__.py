"""Builder of GLM-Image checkpoints with random weights."""
