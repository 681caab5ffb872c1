"""Workers and model runners over vLLM's V1 runner: hooks overridden, no body copied. Importing this imports nothing."""
