"""The options of `omni compare`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from omni_cli.cli.gate_options import (
    DEFAULT_MARGIN,
    AllowDifferenceOption,
    GateOptions,
    MarginOption,
    MaxMemoryRegressionOption,
)
from omni_cli.cli.options import argument, option


@dataclass(frozen=True, kw_only=True)
class CompareOptions(GateOptions):
    """Two records, and the limits to judge them by."""

    a: Annotated[Path, argument("A.json", "The record to compare with, or the file of another tool.")]
    b: Annotated[Path | None, argument("B.json", "The record to judge; without it, the variants of A.json.")] = None
    max_memory_regression: MaxMemoryRegressionOption = None
    margin: MarginOption = DEFAULT_MARGIN
    allow_difference: AllowDifferenceOption = None
    self_check: Annotated[
        bool,
        option(
            "--self-check",
            None,
            "Compare a single variant with itself: the smallest regression that its noise lets show; refuses limits "
            "below it.",
        ),
    ] = False
