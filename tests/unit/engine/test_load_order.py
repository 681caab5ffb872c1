"""Which stages of a CUDA device load beside each other."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from omni_cli.config.loader import load_profile
from omni_cli.engine import load_order

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
    monkeypatch.setattr(load_order, "has_cuda_device", lambda: True)
    stages = load_profile("qwen2.5-omni-7b", settings).stages
    clients = [SimpleNamespace(spec=SimpleNamespace(stage=stage)) for stage in stages]
    groups = load_order.load_groups(clients)
    assert [[[client.spec.stage.name for client in wave] for wave in waves] for waves in groups] == order


def test_without_a_cuda_device_all_stages_load_in_parallel(monkeypatch):
    monkeypatch.setattr(load_order, "has_cuda_device", lambda: False)
    assert load_order.load_groups(["thinker", "talker"]) == [[["thinker", "talker"]]]
