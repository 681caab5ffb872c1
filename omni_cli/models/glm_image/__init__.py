"""GLM-Image as a model family: an autoregressive stage that writes an image's tokens, and a diffusion stage."""
