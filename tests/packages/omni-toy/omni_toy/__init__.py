"""A model family for omni-cli: a small language model whose words a diffusion stage paints."""
