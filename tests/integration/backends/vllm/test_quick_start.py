"""An engine that starts with less has vLLM's logging, and on a CPU a KV cache that gets its memory as it is used."""

import mmap
import re
from pathlib import Path

import pytest
import torch
from vllm import logger
from vllm.config.logging import LoggingConfig

from omni_cli.backends.vllm.quick_start import PagesOnUse, starting_quickly


def test_an_engine_sets_up_logging_as_vllms_variables_say(monkeypatch: pytest.MonkeyPatch) -> None:
    applied: list[LoggingConfig] = []
    monkeypatch.setattr(logger, "_last_configured_logging_config", None)
    monkeypatch.setattr(logger, "configure_logging", applied.append)
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "DEBUG")
    with starting_quickly():
        logger.configure_logging_if_needed(LoggingConfig())  # as an engine does
    assert [config.log_level for config in applied] == ["DEBUG"]


def test_a_cache_has_zeros_that_can_be_replaced() -> None:
    with PagesOnUse():
        cache = torch.zeros(2 * mmap.PAGESIZE, dtype=torch.int8)
        other = torch.zeros(2, 3)
    assert not cache.any() and other.shape == (2, 3)
    cache.view(torch.float32)[-1] = 1.5
    assert cache.view(torch.float32).sum() == 1.5


@pytest.mark.skipif(not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="this system has no large pages")
def test_a_cache_asks_for_large_pages() -> None:
    with PagesOnUse():
        cache = torch.zeros(4 << 20, dtype=torch.int8)
    maps = re.findall(r"^([0-9a-f]+)-([0-9a-f]+) .*?^VmFlags:(.*?)$", Path("/proc/self/smaps").read_text(), re.M | re.S)
    (flags,) = [flags for begin, end, flags in maps if int(begin, 16) <= cache.data_ptr() < int(end, 16)]
    assert "hg" in flags.split()


def test_memory_that_a_host_refuses_is_refused_in_torchs_words_which_have_a_hint() -> None:
    with PagesOnUse(), pytest.raises(RuntimeError, match="DefaultCPUAllocator: can't allocate memory"):
        torch.zeros(1 << 46, dtype=torch.int8)
