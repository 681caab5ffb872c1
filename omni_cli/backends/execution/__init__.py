"""Execution of models in stages: eager, compiled or from CUDA graphs; device-to-host output copies."""
