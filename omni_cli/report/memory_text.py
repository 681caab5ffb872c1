"""The planned memory of a chain as a table."""

from __future__ import annotations

from collections.abc import Iterable

from omni_cli.machine import PlannedMemory
from omni_cli.report.tables import aligned
from omni_cli.report.units import memory

_ADAPTERS = "ADAPTERS"
_HEADER = ("STAGE", "DEVICE", "WEIGHTS", _ADAPTERS, "KV CACHE", "OTHER (ESTIMATE)")


def memory_lines(stages: Iterable[PlannedMemory]) -> list[str]:
    """Return the lines of the table, with a row per rank; adapters have a column if there are any."""
    rows = [
        (
            stage.name,
            stage.device,
            memory(stage.weights_bytes) if stage.weights_bytes else "unknown",
            _adapters(stage),
            _cache(stage),
            "" if stage.share_bytes is not None else memory(stage.other_bytes),
        )
        for stage in stages
    ]
    shown = [index for index, name in enumerate(_HEADER) if name != _ADAPTERS or any(row[index] for row in rows)]
    lines = [[row[index] for index in shown] for row in (_HEADER, *rows)]
    return aligned(lines, right=frozenset(range(2, len(shown))))


def _adapters(stage: PlannedMemory) -> str:
    if stage.adapters_bytes is None:
        return "unknown"
    return memory(stage.adapters_bytes) if stage.adapters_bytes else ""


def _cache(stage: PlannedMemory) -> str:
    if stage.share_bytes is not None:
        return f"the rest of {memory(stage.share_bytes)}"
    return "" if stage.kv_cache_bytes is None else memory(stage.kv_cache_bytes)
