"""GLM-Image as a model family: an autoregressive stage that generates image tokens, and a diffusion stage."""
