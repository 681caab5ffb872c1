"""Diffusion stages over a diffusers pipeline: one process, no workers, no vLLM.
 DiffusionRequest → DiffusersPipelineExecutor.resolve → DiffusionScheduler → execute_model → DiffusionOutput
 `requests` and `scheduler` import neither torch nor diffusers; `executor` imports them when it loads a
pipeline.
"""
