"""Workers and model runners on top of vLLM's V1 runner, which override its hooks and copy no code. Imports nothing."""
