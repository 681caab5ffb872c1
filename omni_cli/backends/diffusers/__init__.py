"""Diffusion stages over a diffusers pipeline: one process, no workers, no vLLM.

    DiffusionRequest → executor.resolve → DiffusionScheduler → executor.execute_model → DiffusionOutput

Importing any of these modules imports neither torch nor diffusers; creating an executor does.
"""
