"""The results of one request of `omni generate`, which every rendering of a run is made from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from omni_cli.errors import OmniError
from omni_cli.outputs import Output, StageTrace


@dataclass(frozen=True)
class WrittenOutput:
    """An output and its file; `path` is None for text, which has none."""

    output: Output
    path: Path | None = None


@dataclass(frozen=True)
class RequestRecord:
    """`error` None means that the request is done; a failed one keeps the outputs that were whole before.

    `place` is FILE:LINE of a JSONL line; `total_s` is from submission to the end, as the user waits for it.
    `earlier` is what an earlier run has written of a request that this one need not run: an entry of `results`.
    """

    request_id: str
    outputs: tuple[WrittenOutput, ...] = ()
    stages: tuple[StageTrace, ...] = ()
    error: OmniError | None = None
    place: str | None = None
    total_s: float | None = None
    earlier: Mapping[str, object] | None = None
