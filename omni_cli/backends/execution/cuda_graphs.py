"""CUDA graphs of torch, behind the interface of `graphs.py`, and functions of a batch's rows as such graphs."""

from __future__ import annotations

import contextlib
import gc
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import TypeAlias

import torch

from omni_cli.backends.execution.counters import ExecutionCounters
from omni_cli.backends.execution.graph_inputs import map_tensors
from omni_cli.backends.execution.graphs import NUM_WARMUPS, Captured, GraphBackend


class CudaGraph:
    def __init__(self, graph: torch.cuda.CUDAGraph, device: torch.device, released: Callable[[], None]) -> None:
        self._graph = graph
        self._device = device
        self._released = released

    def replay(self) -> None:
        self._graph.replay()

    def release(self) -> None:
        # The device may still be running the graph.
        torch.cuda.synchronize(self._device)
        self._graph.reset()
        self._released()


def _without_owning(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor on the same memory that does not keep it from graphs that are captured later."""
    owned = tensor.untyped_storage()
    storage = torch._C._construct_storage_from_data_pointer(owned.data_ptr(), tensor.device, owned.nbytes())
    empty = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return empty.set_(storage, tensor.storage_offset(), tensor.size(), tensor.stride())


@contextlib.contextmanager
def _without_collection() -> Iterator[None]:
    """Keep the garbage collector from freeing memory while the device only records.

    To collect before would take 0.6 s, ten times as long as to record.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class CudaGraphBackend:
    """Captures on a separate stream, into one memory pool.

    Graphs may share a pool, outputs included, because they run one after another and because outputs are read before
    another one runs. A pool is as large as its largest graph requires, and is freed with the last of them. After a
    failed capture, the next ones use another pool.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)
        self._pool: tuple[int, int] | None = None
        self._graphs_in: Counter[tuple[int, int]] = Counter()

    @contextlib.contextmanager
    def _on_own_stream(self) -> Iterator[None]:
        current = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        try:
            with torch.cuda.stream(self._stream):
                yield
        finally:
            current.wait_stream(self._stream)

    def warm_up(self, run: Callable[[], object]) -> None:
        with self._on_own_stream():
            run()
        self._stream.synchronize()

    def capture(self, run: Callable[[], object]) -> tuple[CudaGraph, object]:
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        pool = self._pool
        torch.cuda.synchronize(self._device)
        # What the warm-up has left on this stream, neither the pool nor another stream could use.
        torch.cuda.empty_cache()
        graph = torch.cuda.CUDAGraph()
        with self._on_own_stream(), _without_collection():
            # Other threads may use CUDA meanwhile.
            graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            try:
                outputs = run()
                graph.capture_end()
            except BaseException:
                self._abandon(graph, pool)
                raise
        torch.cuda.synchronize(self._device)
        self._graphs_in[pool] += 1
        return CudaGraph(graph, self._device, lambda: self._forget(pool)), map_tensors(_without_owning, outputs)

    def _abandon(self, graph: torch.cuda.CUDAGraph, pool: tuple[int, int]) -> None:
        """End a failed capture, restoring the stream, the allocator and random number generators."""
        self._pool = None
        try:
            graph.capture_end()
        except RuntimeError:
            # `capture_end` reports the failed capture, which is known, and skips its own clean-up.
            torch._C._cuda_endAllocateToPool(self._device.index, pool)
            torch._C._cuda_releasePool(self._device.index, pool)
            generator = torch.cuda.default_generators[self._device.index]
            generator.graphsafe_set_state(generator.clone_state())
        graph.reset()

    def _forget(self, pool: tuple[int, int]) -> None:
        self._graphs_in[pool] -= 1
        if not self._graphs_in[pool]:
            del self._graphs_in[pool]
            # A pool without graphs is freed, and its id must not be reused.
            self._pool = None if self._pool == pool else self._pool

    def load(self, inputs: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> None:
        if inputs:
            torch._foreach_copy_(inputs, values, non_blocking=True)

    def clone(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.clone()

    def pool_bytes(self) -> int:
        segments = torch.cuda.memory_snapshot()
        return sum(segment["total_size"] for segment in segments if segment["segment_pool_id"] in self._graphs_in)

    def trim(self) -> None:
        torch.cuda.empty_cache()


Function: TypeAlias = Callable[..., tuple[torch.Tensor, ...]]


class RowGraphs:
    """Calls functions of tensors that have one row per request; replays their graphs once these are captured.

    A function is captured under a `kind`, once per number of rows. Requests fill the first rows of the smallest graph
    that holds them. Rows are independent, so stale values in the rest are harmless; where a row names state that is
    written, the caller gives values for all `size` rows. All graphs share one memory pool, since they run one after
    another.
    """

    def __init__(self) -> None:
        self._backend: GraphBackend | None = None
        self._graphs: dict[Hashable, dict[int, Captured]] = {}
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
        self._graphs.setdefault(kind, {})[len(inputs[0])] = Captured(graph, inputs, outputs)
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
