"""Imported once by the fork server, so that every stage on vLLM starts with the slow imports done.

Importing starts no thread pool and touches no device: processes are forked from here.
"""

from omni_cli.engine.process.slow_imports import slow_imports

with slow_imports():
    import importlib

    from omni_cli.vllm_integration.stage import VllmStage

    importlib.import_module(VllmStage.worker_cls("ar").rpartition(".")[0])
