"""Graph backends without a GPU: they record a callable and replay it by running it again on the same tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_leaves


class FakeGraph:
    """Like a CUDA graph, a replay overwrites the very tensors that the capture returned."""

    def __init__(self, backend: FakeBackend, run: Callable[[], Any], outputs: Any) -> None:
        self.backend = backend
        self.run = run
        self.outputs = tree_leaves(outputs)

    def replay(self) -> None:
        assert self in self.backend.graphs, "a graph was replayed after its release"
        self.backend.do(self._replay)

    def _replay(self) -> None:
        # A device's replay does not ask in which mode its tensors were made.
        with torch.inference_mode():
            for static, made in zip(self.outputs, tree_leaves(self.run()), strict=True):
                static.copy_(made)

    def release(self) -> None:
        self.backend.graphs.remove(self)
        self.outputs = []


class FakeBackend:
    """At once, unless `late`: then everything waits, in order, for `finish`. `fail` is raised out of a capture."""

    def __init__(self, *, late: bool = False, fail: Exception | None = None) -> None:
        self.late = late
        self.fail = fail
        self.graphs: list[FakeGraph] = []
        self.queue: list[Callable[[], None]] = []
        self.warm_ups = 0
        self.trims = 0

    def do(self, work: Callable[[], None]) -> None:
        self.queue.append(work)
        if not self.late:
            self.finish()

    def finish(self) -> None:
        queue, self.queue = self.queue, []
        for work in queue:
            work()

    def warm_up(self, run: Callable[[], Any]) -> None:
        self.finish()
        self.warm_ups += 1
        run()

    def capture(self, run: Callable[[], Any]) -> tuple[FakeGraph, Any]:
        self.finish()
        outputs = run()
        if self.fail is not None:
            raise self.fail
        graph = FakeGraph(self, run, outputs)
        self.graphs.append(graph)
        return graph, outputs

    def load(self, static, given) -> None:
        def copy() -> None:
            for target, source in zip(static, given, strict=True):
                target.copy_(source)

        self.do(copy)

    def clone(self, tensor: torch.Tensor) -> torch.Tensor:
        copy = torch.empty_like(tensor)
        self.do(lambda: copy.copy_(tensor))
        return copy

    def pool_bytes(self) -> int:
        return sum(tensor.nbytes for graph in self.graphs for tensor in graph.outputs)

    def trim(self) -> None:
        assert not self.graphs
        self.trims += 1
