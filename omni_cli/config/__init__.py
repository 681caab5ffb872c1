"""YAML profiles in, one frozen `EngineConfig` out. Imports no torch, vLLM or diffusers."""
