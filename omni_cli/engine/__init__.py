"""`OmniLLM`: a chain of stages in separate processes. Nothing here imports torch into the command's process."""
