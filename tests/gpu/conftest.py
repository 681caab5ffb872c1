"""Tests that need a CUDA device, torch, transformers and diffusers, no vLLM; without a device they are skipped."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from omni_cli.core.compat.torchvision import ensure_torchvision_importable

ensure_torchvision_importable()

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.gpu)
            if not torch.cuda.is_available():
                item.add_marker(pytest.mark.skip(reason="needs a CUDA device, and this machine has none"))


@pytest.fixture(scope="session")
def folders(tmp_path_factory) -> dict[str, Path]:
    """Tiny checkpoints: a transformer with flow matching, a UNet with classifier-free guidance."""

    from support.tiny_pipelines import build_named

    from omni_cli.checkpoints.tiny_pipelines import tiny_image

    root = tmp_path_factory.mktemp("checkpoints")
    tiny_image(root / "qwen_image", 0)
    build_named("StableDiffusionPipeline", root / "stable_diffusion")
    return {name: root / name for name in ("qwen_image", "stable_diffusion")}


@pytest.fixture
def reserved() -> Callable[[], int]:
    """Bytes that torch has from the device, without what nobody uses."""

    def read() -> int:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        return torch.cuda.memory_reserved()

    return read
