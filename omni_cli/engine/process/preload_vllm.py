"""Imported once by the fork server, so that every stage on vLLM starts with the slow imports done.

Importing starts no thread pool and touches no device: processes are forked from here.
"""

from omni_cli.engine.process.slow_imports import slow_imports

# What vLLM imports while it loads a stage, and more of it where it compiles models.
_WHILE_LOADING = (
    "transformers.tokenization_mistral_common",
    "vllm.distributed.elastic_ep.elastic_execute",
    "vllm.model_executor.layers.quantization.online.base",
)
_WHILE_COMPILING = (
    "sympy.tensor.tensor",
    "torch._inductor.fx_passes.fuse_attention",
    "vllm.compilation.backends",
    "vllm.compilation.caching",
    "vllm.model_executor.warmup.kernel_warmup",
    "vllm.v1.attention.backends.flash_attn",
    "vllm.v1.attention.backends.flex_attention",
)

with slow_imports():
    import importlib

    import torch

    from omni_cli.vllm_integration.stage import VllmStage

    importlib.import_module(VllmStage.worker_cls("ar").rpartition(".")[0])
    for name in (*_WHILE_LOADING, *(_WHILE_COMPILING if torch.version.cuda else ())):
        importlib.import_module(name)
    if torch.version.cuda:
        from torch._inductor.codecache import torch_key, triton_key

        # Hashes of the libraries' sources for the keys of compiled code, which each process would compute.
        torch_key()
        triton_key()
