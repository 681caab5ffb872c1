"""Imported once by the fork server, so that every stage on vLLM starts with the slow imports done.

Importing starts no thread pool and touches no device: processes are forked from here.
"""

import contextlib

from omni_cli.engine.process.preload import hashed_beside, left_out, preloading

# What vLLM imports where it compiles models.
_WHILE_COMPILING = (
    "sympy.tensor.tensor",
    "torch._inductor.fx_passes.fuse_attention",
    "vllm.compilation.backends",
    "vllm.compilation.caching",
    "vllm.model_executor.warmup.kernel_warmup",
    "vllm.v1.attention.backends.flash_attn",
    "vllm.v1.attention.backends.flex_attention",
)

# What torch, transformers and vLLM import for what no stage does: the function that they name of it, if they use it.
_RARELY_USED = {
    "networkx": "DiGraph",
    "opentelemetry": None,  # for traces
    "scipy.optimize": "linear_sum_assignment",
    "scipy.signal": "resample_poly",
    "sklearn.metrics": "roc_curve",
    "vllm.models.deepseek_v4.common.eplb_util": "dspark_draft_supports_eplb",
}

with preloading(), left_out(_RARELY_USED), contextlib.ExitStack() as beside:
    import importlib

    import pydantic
    import torch
    import vllm  # noqa: F401  # torch's compiler, with vLLM's settings

    from omni_cli.core.compat import replace_attributes

    if torch.version.cuda:
        from torch._inductor.codecache import torch_key, triton_key

        # Hashes of the libraries' sources for the keys of compiled code, which each process would compute.
        beside.enter_context(hashed_beside(torch_key))

    # A class for a server's requests is then built when it is first used, and most of them never.
    with replace_attributes(pydantic.BaseModel, model_config={"defer_build": True}):
        from omni_cli.backends.vllm.text_stage import TextStage

    importlib.import_module(TextStage.worker_cls("ar").rpartition(".")[0])
    if torch.version.cuda:
        for name in _WHILE_COMPILING:
            importlib.import_module(name)
        triton_key()
