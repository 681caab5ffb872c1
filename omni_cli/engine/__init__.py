"""Stages in processes of their own, and `OmniLLM`, the chain of them. The command's process imports no torch here."""
