"""vLLM, diffusers and the modes of execution under them."""
