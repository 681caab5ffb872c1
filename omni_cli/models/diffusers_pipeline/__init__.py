"""A diffusers pipeline as a model family."""
