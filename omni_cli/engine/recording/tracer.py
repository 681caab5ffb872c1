"""torch's profiler around a stage's work."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from omni_cli.engine.recording.modules import ModuleMarks, annotating_marks


class Tracer:
    """One session of the profiler, with marks for the modules in `roots`.

    Operators have their inputs' shapes and types, and allocations their addresses, to tell copies and tensors apart.
    Nothing waits for a device between `start` and `stop`.
    """

    def __init__(self, roots: Mapping[str, nn.Module]) -> None:
        activities = [ProfilerActivity.CPU]
        if torch.cuda.is_initialized():
            activities.append(ProfilerActivity.CUDA)
        self._profile = profile(activities=activities, record_shapes=True, profile_memory=True, acc_events=False)
        self._roots = roots
        self._marks: ModuleMarks | None = None

    def start(self) -> None:
        self._profile.start()
        if self._roots:
            self._marks = annotating_marks(self._roots)

    def stop(self) -> None:
        if self._marks is not None:
            self._marks.close()
        self._profile.stop()

    def write(self, path: Path) -> None:
        """Write a Chrome trace as JSON. Raises `RuntimeError` or `OSError` if it cannot be written whole."""
        self._profile.export_chrome_trace(str(path))
