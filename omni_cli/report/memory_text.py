"""The planned memory of a chain as a table."""

from __future__ import annotations

from collections.abc import Iterable

from omni_cli.machine import PlannedMemory
from omni_cli.report.tables import aligned
from omni_cli.report.units import memory

_HEADER = ("STAGE", "DEVICE", "WEIGHTS", "KV CACHE", "OTHER (ESTIMATE)")


def memory_lines(stages: Iterable[PlannedMemory]) -> list[str]:
    """Return the lines of the table, with a row per rank."""
    rows = [
        (
            stage.name,
            stage.device,
            memory(stage.weights_bytes) if stage.weights_bytes else "unknown",
            _cache(stage),
            "" if stage.share_bytes is not None else memory(stage.other_bytes),
        )
        for stage in stages
    ]
    return aligned([_HEADER, *rows], right=frozenset({2, 3, 4}))


def _cache(stage: PlannedMemory) -> str:
    if stage.share_bytes is not None:
        return f"the rest of {memory(stage.share_bytes)}"
    return "" if stage.kv_cache_bytes is None else memory(stage.kv_cache_bytes)
