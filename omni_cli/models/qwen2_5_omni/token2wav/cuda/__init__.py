"""token2wav on a CUDA device: Triton kernels, sizes of CUDA graphs, and the vocoder over packed sequences."""
