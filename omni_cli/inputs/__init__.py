"""User input: files and JSONL lines, checked and decoded into requests. No torch, no vLLM."""
