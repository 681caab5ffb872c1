"""`omni serve`: the chain over OpenAI-compatible HTTP. No torch, no vLLM; nothing here computes."""
