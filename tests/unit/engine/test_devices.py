"""Settings that need a CUDA device, on a machine without one."""

from __future__ import annotations

import pytest

from omni_cli.config.loader import load_profile
from omni_cli.core.errors import StageError
from omni_cli.engine import devices


def test_sleep_mode_needs_a_cuda_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "has_cuda_device", lambda: False)
    with pytest.raises(StageError, match="stage `talker`: `enable_sleep_mode: true` needs a CUDA device") as caught:
        devices.check_devices(load_profile("tiny-omni", ["talker.enable_sleep_mode=true"]))
    assert caught.value.hint == "--set talker.enable_sleep_mode=false"
