"""Read YAML profiles into one frozen `EngineConfig`. Imports no torch, vLLM or diffusers."""
