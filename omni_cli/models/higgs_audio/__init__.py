"""Higgs Audio v2: a Llama with a second feed-forward network for sound generates delayed codes of all codebooks."""
