"""The result of one request of `omni generate`, from which a run is rendered in every format."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from omni_cli.core.errors import OmniError
from omni_cli.requests.outputs import Output, StageTrace


def preview_path(video: Path) -> Path:
    """The preview of a video, beside it."""
    return video.with_suffix(".preview.webp")


@dataclass(frozen=True)
class WrittenOutput:
    """An output and its file; `path` is None for text."""

    output: Output
    path: Path | None = None


@dataclass(frozen=True)
class RequestRecord:
    """`error` is None for a finished request; a failed one keeps the outputs that were complete.

    `place` is FILE:LINE of a JSONL line; `total_s` is from submission to the end, as the user experiences it.
    `earlier` is the entry of `results` that an earlier run wrote for a request that need not run again. `notes` are
    sentences on what was changed about the request.
    """

    request_id: str
    outputs: tuple[WrittenOutput, ...] = ()
    stages: tuple[StageTrace, ...] = ()
    error: OmniError | None = None
    place: str | None = None
    total_s: float | None = None
    earlier: Mapping[str, object] | None = None
    notes: tuple[str, ...] = ()
