"""Limits and outputs of a run, as `omni bench` and `omni loadtest` share them."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path

from omni_cli.errors import OutputError, UsageError

DEFAULT_BUDGET_S = 60.0


@dataclass(frozen=True)
class ReportFiles:
    """Files to write beside the terminal."""

    record: Path | None = None
    junit: Path | None = None
    markdown: Path | None = None

    def check_writable(self) -> None:
        """Raise `OutputError` now rather than after minutes of measuring."""
        for path in (self.record, self.junit, self.markdown):
            if path is None:
                continue
            if path.is_dir():
                raise OutputError(f"cannot write `{path}`: it is a folder")
            if not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
                raise OutputError(f"cannot write `{path}`: no folder `{path.parent}` that may be written to")


@dataclass(frozen=True)
class BenchSettings:
    """Limits of a run, and the ways to show it."""

    num_iters: int | None
    num_iters_warmup: int
    time_budget_s: float | None
    timeout_s: float | None
    files: ReportFiles
    as_json: bool
    verbose: bool
    quiet: bool


def read_budget(given: float | None, num_iters: int | None, num_variants: int) -> float | None:
    """Seconds for measuring; None where a number of iterations was given and no time. Raises `UsageError`."""
    if given is not None:
        if not (math.isfinite(given) and given > 0):
            raise UsageError("invalid value for `--time-budget`: expected a number of seconds greater than 0")
        return given
    if num_iters is not None:
        return None
    return DEFAULT_BUDGET_S * max(num_variants - 1, 1)
