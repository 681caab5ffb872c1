"""Count a runner's forward passes that replayed CUDA graphs, and the cost of capturing the graphs."""

from __future__ import annotations

from vllm.compilation.cuda_graph import CUDAGraphWrapper
from vllm.config import CUDAGraphMode
from vllm.forward_context import BatchDescriptor, get_forward_context


class GraphCounters:
    """Counters of one runner.

    vLLM stores a step's mode and batch shape in the forward context, and its wrappers replay the graph captured for
    that pair. So a step is a replay exactly if its pair was captured, whatever mode was requested: in `piecewise` mode
    a model without compiled parts runs eagerly and counts as eager.
    """

    def __init__(self) -> None:
        self._captured: frozenset[tuple[CUDAGraphMode, BatchDescriptor]] = frozenset()
        self._graphs_captured = 0
        self._graph_pool_bytes = 0
        self._capture_s = 0.0
        self._graph_replays = 0
        self._eager_calls = 0

    def captured(self, pool_bytes: int, seconds: float) -> None:
        """Record that vLLM captured its graphs, with their device memory and time."""
        graphs = [
            (wrapper.runtime_mode, shape)
            for wrapper in CUDAGraphWrapper._all_instances
            for shape, entry in wrapper.concrete_cudagraph_entries.items()
            if entry.cudagraph is not None
        ]
        self._captured = frozenset(graphs)
        self._graphs_captured = len(graphs)
        self._graph_pool_bytes = pool_bytes
        self._capture_s = seconds

    def count_step(self) -> bool:
        """Count a step in its forward context; return True if it is a replay."""
        replays = False
        if self._captured:
            context = get_forward_context()
            replays = (context.cudagraph_runtime_mode, context.batch_descriptor) in self._captured
        self._graph_replays += replays
        self._eager_calls += not replays
        return replays

    def as_dict(self) -> dict[str, float]:
        """Counters so far: forward passes, graphs, bytes of device memory, seconds."""
        return {
            "graphs_captured": self._graphs_captured,
            "graph_replays": self._graph_replays,
            "eager_calls": self._eager_calls,
            "graph_pool_bytes": self._graph_pool_bytes,
            "capture_s": self._capture_s,
        }
