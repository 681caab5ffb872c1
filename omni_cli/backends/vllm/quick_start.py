"""Parts of vLLM's start that take seconds of processor time and change nothing for a stage."""

from __future__ import annotations

import contextlib
import mmap
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from vllm.model_executor.model_loader import base_loader
from vllm.renderers import hf
from vllm.triton_utils import dispatcher

from omni_cli.core.compat import replace_attributes

_rebind, _find_online, _make_pool = (
    dispatcher._rebind_kernels,
    base_loader._get_online_quantization_config,
    hf.maybe_make_thread_pool,
)


@contextlib.contextmanager
def starting_quickly() -> Iterator[None]:
    """Make an engine within this context, once in a process."""
    with (
        replace_attributes(dispatcher, _rebind_kernels=_rebind_in_vllm),
        # The class to compare with imports compressed_tensors.
        replace_attributes(
            base_loader, _get_online_quantization_config=lambda config: config.quant_config and _find_online(config)
        ),
        # A copy of a tokenizer takes a quarter of a second; the pool makes a second one where two are used at a time.
        replace_attributes(hf, maybe_make_thread_pool=lambda tokenizer, _copies: _make_pool(tokenizer)),
    ):
        yield


def _rebind_in_vllm(overrides: list[Any]) -> None:
    """Replace Triton's kernels, which only vLLM's modules have, without a look at every object of all modules."""
    own = {name: module for name, module in sys.modules.items() if name.startswith("vllm.")}
    with replace_attributes(dispatcher, sys=SimpleNamespace(modules=own)):
        _rebind(overrides)


class PagesOnUse(TorchFunctionMode):
    """Within it, vLLM's KV cache on a CPU gets its memory, which has zeros, as it is used, and not all at once."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.zeros and kwargs.get("dtype") is torch.int8:
            with contextlib.suppress(OSError):  # torch's own refusal has a hint
                pages = mmap.mmap(-1, args[0], flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
                with contextlib.suppress(OSError, AttributeError):  # of a system without large pages
                    pages.madvise(mmap.MADV_HUGEPAGE)  # a third faster to attend to than pages of 4 KiB
                return torch.frombuffer(pages, dtype=torch.int8)
        return func(*args, **kwargs)
