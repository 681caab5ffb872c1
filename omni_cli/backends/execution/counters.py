"""Execution counters: graphs replayed, calls that ran eagerly, regions compiled. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

LEVELS = frozenset({
    "graph_pool_bytes", "predictor_graph_pool_bytes", "compiled_regions", "loaded_weight_bytes", "weight_bytes",
    "channels_last_convolutions",
})  # fmt: skip
"""Counters of a level, such as a number of graphs, and not of events."""


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


def since(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """Return the difference of counts, and levels as they are afterwards."""
    return {name: value if name in LEVELS else value - before.get(name, 0.0) for name, value in after.items()}
