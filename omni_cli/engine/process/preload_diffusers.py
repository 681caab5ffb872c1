"""Imported once by the fork server, so that every stage on a diffusers pipeline starts with the slow imports done.

Importing starts no thread pool and touches no device: processes are forked from here.
"""

from omni_cli.engine.process.preload import preloading

with preloading():
    from diffusers import DiffusionPipeline  # noqa: F401

    import omni_cli.backends.diffusers.stage  # noqa: F401
