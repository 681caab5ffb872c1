"""`OmniLLM`, a chain of stages in separate processes. The command's process imports no torch here."""
