"""User input: files and JSONL lines, checked and decoded into requests. Imports neither torch nor vLLM."""
