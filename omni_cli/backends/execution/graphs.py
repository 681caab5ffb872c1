"""A module's forward, captured once per kind of call and then replayed."""

from __future__ import annotations

import functools
import inspect
import time
import traceback
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes, _get_current_dispatch_mode
from torch.utils._pytree import tree_leaves, tree_map_only

from omni_cli.backends.execution.counters import ExecutionCounters
from omni_cli.backends.execution.graph_inputs import (
    UnsupportedError,
    argument_leaves,
    changed_arguments,
    check_outputs,
    describe_leaf,
    graph_key,
    map_tensors,
)
from omni_cli.config.schema import Execution
from omni_cli.core.errors import StageError
from omni_cli.stage.failures import first_line


class OperationWatch(TorchDispatchMode):
    """Sees each operation of a model on `device`.

    `external` are the storages that operations read and none of them created: weights, and tensors that the model
    keeps between calls. A graph reads their addresses, so they must live as long as the graph.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.external: dict[int, torch.UntypedStorage] = {}
        self._device = device
        self._made: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        inputs = [leaf for leaf in _tensors((args, kwargs)) if leaf.device == self._device]
        result = func(*args, **(kwargs or {}))
        self.note(inputs, result)
        return result

    def note(self, inputs: list[torch.Tensor], result: object) -> None:
        """Record what an operation, or a region of several, read and made."""
        for tensor in inputs:
            storage = tensor.untyped_storage()
            if storage._cdata not in self._made:
                self.external[storage._cdata] = storage
        for tensor in _tensors(result):
            if tensor.untyped_storage()._cdata not in self.external:
                self._made.add(tensor.untyped_storage()._cdata)


def hide_operations(region: Callable[..., object]) -> Callable[..., object]:
    """Return compiled code that hides its operations from a watch: under one, torch would run them uncompiled.

    The watch sees what goes in and comes out. Weights that only the region reads must live as long as its module.
    """

    @functools.wraps(region)
    def run(*args: object, **kwargs: object) -> object:
        watch = _get_current_dispatch_mode()
        if not isinstance(watch, OperationWatch):
            return region(*args, **kwargs)
        with _disable_current_modes():
            result = region(*args, **kwargs)
        watch.note(_tensors((args, kwargs)), result)
        return result

    return run


def _tensors(value: object) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]


MAX_GRAPHS = 8
# Runs before the first capture, in which libraries choose kernels and allocate workspaces, and models fill caches.
NUM_WARMUPS = 2


def batch_sizes(largest: int, smallest: int = 1) -> list[int]:
    """Return the numbers of requests to capture graphs for: `largest`, and powers of two below it from `smallest`."""
    sizes = [largest]
    while sizes[-1] > smallest:
        sizes.append(max(smallest, 1 << ((sizes[-1] - 1).bit_length() - 1)))
    return sizes


class Graph(Protocol):
    """A recorded graph; its replays are ordered with the device's other work."""

    def replay(self) -> None: ...

    def release(self) -> None:
        """Free its memory for graphs that are captured later."""


class GraphBackend(Protocol):
    """Device operations, which run in call order; none waits unless documented."""

    def warm_up(self, run: Callable[[], object]) -> None:
        """Call `run` where captures happen, and wait for it."""

    def capture(self, run: Callable[[], object]) -> tuple[Graph, object]:
        """Record `run` into the shared pool; return its result, tensors that each replay of any graph overwrites.

        Exceptions of `run` or of the recording propagate, and the device remains usable.
        """

    def load(self, inputs: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> None:
        """Copy `values`, which may be on the host, over `inputs`."""

    def clone(self, tensor: torch.Tensor) -> torch.Tensor: ...

    def pool_bytes(self) -> int:
        """Device memory held by the pool of all graphs."""

    def trim(self) -> None:
        """Return unused memory to the device; called when no graph is left."""


@dataclass
class Captured:
    graph: Graph
    inputs: list[torch.Tensor]
    outputs: Any
    # The model's tensors that the graph reads at their captured addresses.
    external: Sequence[torch.UntypedStorage] = ()


class GraphManager:
    """Replaces `forward`: each call replays the graph for its key, which is captured on first use.

    A key is the `graph_key` of all arguments: shapes, strides, dtypes and devices of the tensors, the values of
    everything else. Tensors are copied, from the host as well, into memory that all graphs share. At most `max_graphs`
    graphs are kept; the least recently used one is dropped first, and its memory is reused.

    A graph's outputs are tensors that the next call overwrites, and schedulers keep what they receive, so a caller
    gets copies, which costs one write and one read of the outputs per call on the device. Without `clone_outputs` it
    gets the graph's own tensors, and reads them before the next call. A module may write into the graph's copies of its
    arguments `overwritten`, and return them.

    Raises `StageError`, and never falls back to eager, if a forward cannot be captured, with torch's reason; and if
    `max_graphs` graphs in a row were captured and none replayed, naming the arguments that keep changing.
    Inference only: outputs have no gradients.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        backend: GraphBackend,
        *,
        stage: str,
        device: torch.device,
        counters: ExecutionCounters,
        max_graphs: int = MAX_GRAPHS,
        clone_outputs: bool = True,
        execution: Execution = "cudagraph",
    ) -> None:
        self._module = module
        self._forward: Callable[..., object] = module.forward
        self._overwritten: frozenset[str] = getattr(module, "overwritten", frozenset())
        self._parameters = tuple(inspect.signature(self._forward).parameters)
        self._backend = backend
        self._stage = stage
        self._device = device
        self._counters = counters
        self._max_graphs = max_graphs
        self._clone_outputs = clone_outputs
        self._execution = execution
        self._graphs: OrderedDict[Hashable, Captured] = OrderedDict()
        # The memory of each input, by position, as large as the largest yet.
        self._inputs: dict[int, torch.UntypedStorage] = {}
        self._captures_in_a_row = 0
        self._last_captured: dict[str, str] = {}

    def __len__(self) -> int:
        """The number of graphs."""
        return len(self._graphs)

    def __call__(self, *args: object, **kwargs: object) -> object:
        tensors: list[torch.Tensor] = []
        try:
            key = (graph_key((args, kwargs), tensors), _autocast(self._device.type))
        except UnsupportedError:
            raise self._unsupported_argument(args, kwargs) from None
        with torch.no_grad():
            captured = self._graphs.get(key)
            if captured is None:
                captured = self._capture(key, tensors, args, kwargs)
            else:
                self._graphs.move_to_end(key)
                self._captures_in_a_row = 0
            self._backend.load(captured.inputs, tensors)
            captured.graph.replay()
            self._counters.graph_replays += 1
            return map_tensors(self._backend.clone, captured.outputs) if self._clone_outputs else captured.outputs

    def clear(self) -> None:
        """Drop all graphs and free their memory; weights may move after this. The next call captures again."""
        while self._graphs:
            self._release_oldest()
        self._inputs.clear()
        self._captures_in_a_row = 0
        self._backend.trim()
        self._counters.graph_pool_bytes = 0

    def _capture(self, key: Hashable, tensors: list[torch.Tensor], args: Any, kwargs: Any) -> Captured:
        self._check_runaway(args, kwargs)
        start = time.perf_counter()
        while len(self._graphs) >= self._max_graphs:
            self._release_oldest()
            self._counters.graphs_evicted += 1
        inputs = self._static_inputs(tensors)
        following = iter(inputs)  # in the order of `graph_key`
        static_args, static_kwargs = tree_map_only(torch.Tensor, lambda _: next(following), (args, kwargs))

        def run() -> Any:
            return self._forward(*static_args, **static_kwargs)

        watch = OperationWatch(self._device)

        def run_watched() -> Any:
            with watch:
                return run()

        try:
            # A request waits for the graph of an unseen shape.
            for _ in range(1 if self._graphs else NUM_WARMUPS):
                self._backend.warm_up(run)
            if not self._graphs:
                self._rehearse(run, inputs, args, kwargs)
            graph, outputs = self._backend.capture(run_watched)
        except StageError:
            raise  # a compiled region of the module failed
        except Exception as error:  # noqa: BLE001 - models and CUDA raise anything; converted to the stage's error
            # The cause is dropped, because the frames in its traceback hold the calls' tensors.
            raise self._capture_error(error) from None
        captured = Captured(graph, inputs, outputs, list(watch.external.values()))
        self._graphs[key] = captured
        self._counters.graphs_captured += 1
        inputs_of_all = (tensor.untyped_storage() for other in self._graphs.values() for tensor in other.inputs)
        sizes = {storage.data_ptr(): storage.nbytes() for storage in inputs_of_all}
        self._counters.graph_pool_bytes = self._backend.pool_bytes() + sum(sizes.values())
        self._counters.capture_s += time.perf_counter() - start
        return captured

    def _release_oldest(self) -> None:
        _, oldest = self._graphs.popitem(last=False)
        oldest.graph.release()

    def _static_inputs(self, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        # Tensors created in inference mode could not be written to outside of it.
        with torch.inference_mode(False), torch.no_grad():
            inputs = [self._static_input(position, tensor) for position, tensor in enumerate(tensors)]
        self._backend.load(inputs, tensors)  # for the warm-ups, which may overwrite some
        return inputs

    def _static_input(self, position: int, given: torch.Tensor) -> torch.Tensor:
        like = torch.empty_like(given, device="meta", requires_grad=False)
        num_bytes = like.untyped_storage().nbytes()
        storage = self._inputs.get(position)
        if storage is None or storage.nbytes() < num_bytes:
            storage = self._inputs[position] = torch.UntypedStorage(num_bytes, device=self._device)
        return torch.empty(0, dtype=given.dtype, device=self._device).set_(storage, 0, like.size(), like.stride())

    def _rehearse(self, run: Callable[[], object], inputs: list[torch.Tensor], args: object, kwargs: object) -> None:
        """Run once more to find what torch captures, but a replay would not repeat."""
        versions = [tensor._version for tensor in inputs]
        generators = self._generator_states()
        self._backend.warm_up(lambda: check_outputs(run()))
        if not all(map(torch.equal, generators, self._generator_states())):
            raise UnsupportedError("draws random numbers")
        names = [name for name, leaf in self._leaves(args, kwargs) if isinstance(leaf, torch.Tensor)]
        for name, tensor, version in zip(names, inputs, versions, strict=True):
            if tensor._version != version and name not in self._overwritten:
                raise UnsupportedError(f"writes into its argument `{name}`")

    def _generator_states(self) -> list[torch.Tensor]:
        states = [torch.get_rng_state()]
        return [*states, torch.cuda.get_rng_state(self._device)] if self._device.type == "cuda" else states

    def _leaves(self, args: Any, kwargs: Any) -> list[tuple[str, Any]]:
        return list(argument_leaves(self._parameters, args, kwargs))

    def _check_runaway(self, args: object, kwargs: object) -> None:
        leaves = {name: describe_leaf(leaf) for name, leaf in self._leaves(args, kwargs)}
        if self._captures_in_a_row >= self._max_graphs:
            changed = changed_arguments(self._last_captured, leaves)
            raise self._error(
                f"captured {self._captures_in_a_row} graphs of {type(self._module).__name__} in a row and could replay "
                f"none: {changed or 'the calls alternate'} between calls, and only tensor contents are not part "
                "of a graph"
            )
        self._last_captured = leaves
        self._captures_in_a_row += 1

    def _unsupported_argument(self, args: object, kwargs: object) -> StageError:
        for name, leaf in self._leaves(args, kwargs):
            try:
                graph_key(leaf, [])
            except UnsupportedError as error:
                return self._error(f"cannot capture {type(self._module).__name__}: it is called with `{name}`, {error}")
        raise AssertionError("every argument is supported")

    def _capture_error(self, error: Exception) -> StageError:
        what = str(error) if isinstance(error, UnsupportedError) else first_line(error)
        details = "".join(traceback.format_exception(error))
        traceback.clear_frames(error.__traceback__)
        return self._error(f"cannot capture {type(self._module).__name__}: {what}", details=details)

    def _error(self, message: str, details: str | None = None) -> StageError:
        return StageError(
            f"stage `{self._stage}`: `execution: {self._execution}` {message}",
            stage=self._stage,
            hint=f"--set {self._stage}.execution=eager",
            details=details,
        )


def _autocast(device_type: str) -> torch.dtype | None:
    return torch.get_autocast_dtype(device_type) if torch.is_autocast_enabled(device_type) else None
