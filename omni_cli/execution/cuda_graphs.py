"""CUDA graphs of torch, behind the interface of `graphs.py`."""

from __future__ import annotations

import contextlib
import gc
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import torch

from omni_cli.execution.graph_inputs import map_tensors


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
