"""Tiny checkpoints of diffusers' pipeline classes, random weights, and a call for each."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from support.tiny_pipelines.build import TinyPipeline


@functools.cache
def declarations() -> Mapping[str, TinyPipeline]:
    """Every class that has a tiny checkpoint, by name."""
    from support.tiny_pipelines import images, modular, others, stable_diffusion, videos

    found = [tiny for module in (stable_diffusion, images, videos, others, modular) for tiny in module.declared()]
    return {tiny.name: tiny for tiny in found}


def build_named(name: str, folder: Path) -> None:
    """Write the checkpoint of a class to `folder`."""
    from support.tiny_pipelines.build import build

    build(declarations()[name], folder)
