"""Functions of a batch's rows as graphs, captured for a few numbers of rows."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch

from omni_cli.execution.counters import ExecutionCounters
from omni_cli.execution.graphs import NUM_WARMUPS, Graph, GraphBackend

Function: TypeAlias = Callable[..., tuple[torch.Tensor, ...]]


@dataclass(frozen=True)
class _Captured:
    graph: Graph
    inputs: list[torch.Tensor]
    outputs: tuple[torch.Tensor, ...]


class RowGraphs:
    """Calls functions of tensors that have one row per request; replays their graphs once these are captured.

    A function is captured under a `kind`, once per number of rows. Requests fill the first rows of the smallest graph
    that holds them. Rows are independent, so stale values in the rest are harmless; where a row names state that is
    written, the caller gives values for all `size` rows. All graphs share one memory pool, since they run one after
    another.
    """

    def __init__(self) -> None:
        self._backend: GraphBackend | None = None
        self._graphs: dict[Hashable, dict[int, _Captured]] = {}
        self.counters = ExecutionCounters()

    @property
    def is_captured(self) -> bool:
        return self._backend is not None

    @torch.inference_mode()
    def capture(self, backend: GraphBackend, kind: Hashable, function: Function, inputs: list[torch.Tensor]) -> None:
        """Capture `function` for as many rows as `inputs` have; the graph keeps these and overwrites them."""
        began_s = time.perf_counter()
        self._backend = backend

        def run() -> tuple[torch.Tensor, ...]:
            return function(*inputs)

        for _ in range(NUM_WARMUPS):
            backend.warm_up(run)
        graph, outputs = backend.capture(run)
        assert isinstance(outputs, tuple)
        self._graphs.setdefault(kind, {})[len(inputs[0])] = _Captured(graph, inputs, outputs)
        all_captured = [captured for sizes in self._graphs.values() for captured in sizes.values()]
        self.counters.graphs_captured = len(all_captured)
        self.counters.graph_pool_bytes = backend.pool_bytes() + sum(
            tensor.nbytes for captured in all_captured for tensor in captured.inputs
        )
        self.counters.capture_s += time.perf_counter() - began_s

    def size(self, kind: Hashable, count: int) -> int:
        """Return the number of rows that a call for `count` requests computes."""
        return min(size for size in self._graphs[kind] if size >= count) if self.is_captured else count

    def run(
        self, kind: Hashable, function: Function, count: int, values: Sequence[torch.Tensor]
    ) -> tuple[torch.Tensor, ...]:
        """Return `function(*values)` for `count` requests; the results belong to the caller.

        Each value has `count` or `size` rows, and may be on the host.
        """
        if self._backend is None:
            self.counters.eager_calls += 1
            return function(*values)
        captured = self._graphs[kind][self.size(kind, count)]
        inputs = [tensor[: len(value)] for tensor, value in zip(captured.inputs, values, strict=True)]
        self._backend.load(inputs, values)
        captured.graph.replay()
        self.counters.graph_replays += 1
        return tuple(self._backend.clone(tensor[:count]) for tensor in captured.outputs)
