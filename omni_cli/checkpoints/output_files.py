"""Helpers of the builders: quiet libraries, file modes, and folders of pipelines."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import nn

from omni_cli.checkpoints.weights import fill


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Disable progress bars and warnings of transformers.

    They would report the talker's text ids outside its own vocabulary, which are intended.
    """
    from transformers.utils import logging

    verbosity, progress = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if progress:
            logging.enable_progress_bar()


def make_readable(folder: Path) -> None:
    """Set each file's mode from the umask, because safetensors makes its own readable to the owner only."""
    umask = os.umask(0)
    os.umask(umask)
    for file in folder.rglob("*"):
        if file.is_file():
            file.chmod(0o666 & ~umask)


def save_pipeline(
    output_dir: Path,
    pipeline: Callable[..., Any],
    models: Mapping[str, nn.Module],
    seed: int,
    gains: Mapping[str, float],
    **others: object,
) -> None:
    """Write a diffusers pipeline: `models`, on the meta device, with random weights, and `others` as they are."""
    filled = {name: fill(model, name, seed, gains) for name, model in models.items()}
    with quiet_transformers():
        pipeline(**filled, **others).save_pretrained(output_dir)
    make_readable(output_dir)
