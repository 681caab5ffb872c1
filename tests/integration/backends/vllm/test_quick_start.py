"""A KV cache on a CPU gets its memory as it is used."""

import mmap

import pytest
import torch

from omni_cli.backends.vllm.quick_start import PagesOnUse


def test_a_cache_has_zeros_that_can_be_replaced() -> None:
    with PagesOnUse():
        cache = torch.zeros(2 * mmap.PAGESIZE, dtype=torch.int8)
        other = torch.zeros(2, 3)
    assert not cache.any() and other.shape == (2, 3)
    cache.view(torch.float32)[-1] = 1.5
    assert cache.view(torch.float32).sum() == 1.5


def test_memory_that_a_host_refuses_is_refused_in_torchs_words_which_have_a_hint() -> None:
    with PagesOnUse(), pytest.raises(RuntimeError, match="DefaultCPUAllocator: can't allocate memory"):
        torch.zeros(1 << 46, dtype=torch.int8)
