"""Settings that libraries read when they are imported, in one place for every process that imports them."""

from __future__ import annotations

import logging
import os
import sys

from omni_cli.compat.own_tokenizers import use_own_tokenizers
from omni_cli.compat.package_names import quick_package_names
from omni_cli.compat.torchvision import ensure_torchvision_importable, lacks_cpu_mark

# diffusers imports torchao and bitsandbytes wherever they are installed, and they then warn of their own kernels for
# other devices and of how they use torch; diffusers warns of types that this version no longer has.
_WARN_AT_IMPORT = (
    "torchao", "bitsandbytes", "torch.utils._pytree", "diffusers.quantizers.torchao.torchao_quantizer",
)  # fmt: skip


# Like torchvision's, PyPI's builds are linked against CUDA. vLLM's CPU build requires them and works without.
_CUDA_LINKED = ("torchaudio", "torchcodec")


def prepare_libraries() -> None:
    """Set the environment variables of vLLM, Ray and cache-dit, quieten others, and make torchvision importable.

    From then on, tokenizers give the ids of their files.

    Packages that do not load beside a CPU build of torch are hidden from transformers, which imports what it finds.

    Call it once per process, before anything imports vLLM, diffusers or transformers. Processes that are forked or
    spawned afterwards inherit the variables.
    """
    # Each stage has its own process, so the engine core stays in it.
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    # Our runners derive from the V1 model runner, which is not the default on CUDA.
    os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "0"
    # NaN logits would otherwise become ordinary tokens. Counted on the device, read with the tokens.
    os.environ.setdefault("VLLM_COMPUTE_NANS_IN_LOGITS", "1")
    # Read by Ray when vLLM imports it: a Ray that a stage starts for its ranks requires a token.
    if not os.environ.get("RAY_ADDRESS"):
        os.environ["RAY_AUTH_MODE"] = "token"
    # cache-dit writes its progress to stdout.
    os.environ.setdefault("CACHE_DIT_LOG_LEVEL", "ERROR")
    for name in _WARN_AT_IMPORT:
        logging.getLogger(name).setLevel(logging.ERROR)
    ensure_torchvision_importable()
    _hide_cuda_linked()
    with quick_package_names():
        use_own_tokenizers()


def _hide_cuda_linked() -> None:
    import torch

    if torch.version.cuda is not None or sys.platform != "linux":
        return
    for name in _CUDA_LINKED:
        if lacks_cpu_mark(name) and name not in sys.modules:
            sys.modules[name] = None  # type: ignore[assignment]  # not installed, as far as imports can tell
