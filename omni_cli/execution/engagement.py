"""Counters of how a module ran. Imports nothing heavy."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass
class ExecutionCounters:
    """Counters of one module since it was loaded; `graph_pool_bytes` and `compiled_regions` are current values.

    `eager_calls` ran as plain PyTorch, `graph_replays` from a CUDA graph. `capture_s` includes the warm-up runs before
    each capture, and `graph_pool_bytes` the static inputs and outputs. `recompiles` are the `compiled_graphs` of code
    that was compiled before, for other shapes or constants; `compile_s` is the time of all.
    """

    graphs_captured: int = 0
    graphs_evicted: int = 0
    graph_replays: int = 0
    eager_calls: int = 0
    graph_pool_bytes: int = 0
    capture_s: float = 0.0
    compiled_regions: int = 0
    compiled_graphs: int = 0
    recompiles: int = 0
    compile_s: float = 0.0

    def as_dict(self) -> dict[str, float]:
        return asdict(self)
