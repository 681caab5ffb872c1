"""`omni serve`: the chain over OpenAI-compatible HTTP. No torch, no vLLM; no models run in this package."""
