"""`omni serve`: the chain over OpenAI-compatible HTTP. Imports neither torch nor vLLM and runs no model itself."""
