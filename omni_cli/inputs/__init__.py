"""What users hand in: files and JSONL lines, checked and decoded into requests. No torch, no vLLM."""
