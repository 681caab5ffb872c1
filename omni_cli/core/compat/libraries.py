"""Imports of libraries: settings that they read, in one place for every process, and answers to what they ask."""

from __future__ import annotations

import contextlib
import inspect
import logging
import os
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from importlib import metadata
from typing import Any

from omni_cli.core.compat import replace_attributes
from omni_cli.core.compat.own_tokenizers import use_own_tokenizers
from omni_cli.core.compat.torchvision import ensure_torchvision_importable, lacks_cpu_mark


@contextlib.contextmanager
def quick_package_names() -> Iterator[None]:
    """Within this context `importlib.metadata.packages_distributions` does not look for each installed file.

    transformers and diffusers call it while they are imported. Since Python 3.12 it looks for every file that a RECORD
    lists, tens of thousands next to torch.
    """
    with replace_attributes(metadata, packages_distributions=packages_distributions):
        yield


def packages_distributions() -> dict[str, list[str]]:
    """Return the names of the distributions of each importable top-level name."""
    distributions: defaultdict[str, list[str]] = defaultdict(list)
    for distribution in metadata.distributions():
        declared = (distribution.read_text("top_level.txt") or "").split()
        for name in declared or _infer_names(distribution):
            distributions[name].append(distribution.metadata["Name"])
    return dict(distributions)


def _infer_names(distribution: metadata.Distribution) -> Iterable[str]:
    record = distribution.read_text("RECORD")
    if record is None:  # not from a wheel
        paths = [str(path) for path in distribution.files or ()]
    else:
        paths = [line.lstrip('"').partition(",")[0] for line in record.splitlines()]
    names = {_top_level(*path.partition("/")) for path in paths}
    return sorted(name for name in names if name and "." not in name)


def _top_level(first: str, slash: str, _: str) -> str:
    """Return the name of a folder or of a module; other files keep their names, which have a dot."""
    return first if slash else inspect.getmodulename(first) or first


class _Properties:
    """Properties of a device: its compute capability from NVML, anything else from torch when it is first read."""

    def __init__(self, index: int, usual: Any) -> None:
        import pynvml
        import torch

        self._index, self._usual = index, usual
        # With the devices that CUDA_VISIBLE_DEVICES leaves; torch has no public name for that.
        handle = torch.cuda._get_pynvml_handler(index)
        self.major, self.minor = pynvml.nvmlDeviceGetCudaComputeCapability(handle)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._usual(self._index), name)


@contextlib.contextmanager
def capabilities_by_nvml() -> Iterator[None]:
    """Within this context torch takes compute capabilities from NVML, until CUDA is initialised.

    torchao and bitsandbytes ask for them while they are imported, and transformers and diffusers import both wherever
    they are installed. By torch's own way that initialises CUDA, which processes forked later cannot use then. What
    imports keep of the replaced functions works on in the forks.
    """
    from torch import cuda
    from torch.cuda._utils import _get_device_index

    usual_properties, usual_device = cuda.get_device_properties, cuda.current_device

    def current_device() -> int:
        return usual_device() if cuda.is_initialized() else 0

    def get_device_properties(device: Any = None) -> Any:
        if cuda.is_initialized():
            return usual_properties(device)
        return _Properties(0 if device is None else _get_device_index(device), usual_properties)

    with replace_attributes(cuda, current_device=current_device, get_device_properties=get_device_properties):
        yield


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
