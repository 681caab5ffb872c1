"""Which stages of a CUDA device load beside each other."""

from __future__ import annotations

import pytest

from omni_cli.config.loader import load_profile
from omni_cli.engine import devices

SHARE = "thinker.kv_cache_memory_bytes=null"


@pytest.mark.parametrize(
    ("settings", "order"),
    [
        ((), [[["thinker", "talker", "token2wav"]]]),
        ((SHARE,), [[["talker", "token2wav"], ["thinker"]]]),
        ((SHARE, "talker.kv_cache_memory_bytes=null"), [[["token2wav"], ["thinker"], ["talker"]]]),
        ((SHARE, "thinker.devices='1'"), [[["thinker"]], [["talker", "token2wav"]]]),
    ],
)
def test_stages_sized_by_free_memory_load_alone(settings, order, monkeypatch):
    monkeypatch.setattr(devices, "has_cuda_device", lambda: True)
    stages = load_profile("qwen2.5-omni-7b", settings).stages
    assert devices.load_groups(stages) == order


def test_without_a_cuda_device_all_stages_load_in_parallel(monkeypatch):
    monkeypatch.setattr(devices, "has_cuda_device", lambda: False)
    stages = load_profile("qwen2.5-omni-7b", (SHARE,)).stages
    assert devices.load_groups(stages) == [[["thinker", "talker", "token2wav"]]]
