"""Imported once by the fork server, so that every stage on a diffusers pipeline starts with the slow imports done.

Importing starts no thread pool and touches no device: processes are forked from here.
"""

from omni_cli.engine.process.slow_imports import slow_imports

with slow_imports():
    from omni_cli.compat.torchvision import ensure_torchvision_importable
    from omni_cli.engine.process.host_allocator import keep_freed_memory

    keep_freed_memory()
    ensure_torchvision_importable()
    try:
        from diffusers import DiffusionPipeline  # noqa: F401

        import omni_cli.diffusers_integration.stage  # noqa: F401
    except ImportError:
        # A stage that needs diffusers says itself what is missing.
        pass
