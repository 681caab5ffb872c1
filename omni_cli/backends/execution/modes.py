"""The execution modes of a module's forward, one object each, chosen once when a stage loads.

`forward` is replaced, not the module: weights keep their names, and hooks on the module see every call.
"""

from __future__ import annotations

import functools
import itertools
import logging
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
import torch.fx.experimental._config as symbolic_shapes

from omni_cli.backends.execution.counters import ExecutionCounters
from omni_cli.backends.execution.fusion import compile_graph
from omni_cli.backends.execution.graphs import MAX_GRAPHS, GraphBackend, GraphManager, hide_operations
from omni_cli.config.schema import Execution
from omni_cli.core.errors import StageError

logger = logging.getLogger(__name__)


class ExecutionMode:
    """A module in one of the modes; `counters` record how its calls ran."""

    execution: Execution
    reason: str | None = None
    """Why this mode runs, if nobody asked for it."""

    def __init__(self, module: torch.nn.Module) -> None:
        self.counters = ExecutionCounters()
        self._module = module

    def forget(self) -> None:
        """Drop what depends on the location of the weights; call before they are moved."""

    def eagerly(self) -> AbstractContextManager[None]:
        """Run calls inside the context as plain Python, for observers of the module's operations."""
        return nullcontext()

    def compile_whole(self, module: torch.nn.Module) -> None:
        """Compile another module, not by its blocks, in modes that compile; what torch cannot compile runs eagerly."""

    def close(self) -> None:
        """Restore the module."""


class EagerMode(ExecutionMode):
    """The unchanged module; calls, which several threads may make, are counted."""

    execution: Execution = "eager"

    def __init__(self, module: torch.nn.Module, counters: ExecutionCounters | None = None) -> None:
        super().__init__(module)
        self.counters = counters or self.counters
        self._lock = threading.Lock()
        self._hook = module.register_forward_hook(self._count)

    def _count(self, *_: object) -> None:
        with self._lock:
            self.counters.eager_calls += 1

    def close(self) -> None:
        self._hook.remove()


class _ReplacedForward(ExecutionMode):
    """A module of which it, or some of its parts, have another callable as `forward`."""

    _is_eager = False

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__(module)
        self._own_forwards: list[tuple[torch.nn.Module, Callable[..., object] | None]] = []

    def _replace(self, module: torch.nn.Module, forward: Callable[..., object]) -> None:
        # diffusers' hooks also set `forward` on the instance; otherwise it is the class's.
        self._own_forwards.append((module, vars(module).get("forward")))
        original = module.forward

        @functools.wraps(original)
        def run_chosen(*args: object, **kwargs: object) -> object:
            return (original if self._is_eager else forward)(*args, **kwargs)

        module.forward = run_chosen

    def use(self, execution: Execution) -> None:
        """Make further calls run in another mode, one that this one contains."""
        raise NotImplementedError

    def choose(self, execution: Execution, reason: str) -> None:
        """Make further calls run in a mode that nobody asked for; if it is graphs, until a capture fails."""
        self.use(execution)
        self.reason = reason

    @contextmanager
    def eagerly(self) -> Iterator[None]:
        before, self._is_eager = self._is_eager, True
        try:
            yield
        finally:
            self._is_eager = before

    def close(self) -> None:
        self.forget()
        for module, own in reversed(self._own_forwards):
            del module.forward
            if own is not None:
                module.forward = own


class GraphMode(_ReplacedForward):
    """Replays CUDA graphs; see `GraphManager`."""

    execution: Execution = "cudagraph"

    def __init__(self, module: torch.nn.Module, backend: GraphBackend, **keys: Any) -> None:
        """`keys` are those of `GraphManager`."""
        super().__init__(module)
        self.backend = backend
        self.graphs = GraphManager(module, backend, counters=self.counters, execution=self.execution, **keys)
        self._replace(module, self._call)

    def _call(self, *args: object, **kwargs: object) -> object:
        return self.graphs(*args, **kwargs)

    def forget(self) -> None:
        self.graphs.clear()


class CompiledMode(_ReplacedForward):
    """Compiled by torch, without graph breaks: only its repeated blocks if it has such, else all of it.

    A repeated block is compiled once for all. Repeated blocks are those that a diffusers model declares, or the
    largest list of modules of one class. Modules are compiled in calls, where a failure is a `StageError`, and again
    for each of their `num_variants`, such as LoRA adapters. The modules `beside` are compiled likewise.

    The first call compiles for all sizes, and equal calls run in the same code, whatever was compiled in between.
    """

    execution: Execution = "compile"

    def __init__(
        self,
        module: torch.nn.Module,
        *,
        stage: str,
        num_variants: int = 1,
        beside: Sequence[torch.nn.Module] = (),
    ) -> None:
        super().__init__(module)
        self._stage = stage
        limit = torch._dynamo.config.recompile_limit * num_variants
        self._keys = keys = dict[str, Any]({"fullgraph": True, "dynamic": True, "recompile_limit": limit})
        # By default, torch runs the latest code that fits: after other sizes, code that may round differently.
        torch._C._dynamo.eval_frame._set_lru_cache(False)
        # By default, code compiled for a square image runs only for square ones.
        symbolic_shapes.use_duck_shape = False
        if next((weight.is_cuda for weight in module.parameters()), False):
            keys["backend"] = compile_graph
        self._compile_start_s: float | None = None
        self._running = False
        # Counts calls while they run eagerly.
        self._eager: EagerMode | None = None
        for part in (module, *beside):
            self._compile(part, keys)
        # torch reports every compilation to every listener; those during our calls are ours.
        _callbacks().register_start_callback(self._on_compile_start)
        _callbacks().register_end_callback(self._on_compile_end)

    def _compile(self, part: torch.nn.Module, keys: dict[str, Any]) -> None:
        blocks = repeated_blocks(part)
        self.counters.compiled_regions += len(blocks) or 1
        # Not `block.compile`, which would compile the hooks of the block too, and a cache's decide in Python.
        for block in blocks:
            self._replace(block, hide_operations(torch.compile(block.forward, **keys)))
        call = part.forward if blocks else hide_operations(torch.compile(part.forward, **keys))
        self._replace(part, functools.partial(self._run, part, call))

    def compile_whole(self, module: torch.nn.Module) -> None:
        self.counters.compiled_regions += 1
        own = module.forward
        chosen: Callable[..., object] = functools.partial(self._run, module, torch.compile(own, **self._keys))

        def run(*args: object, **kwargs: object) -> object:
            nonlocal chosen
            try:
                return chosen(*args, **kwargs)
            except torch.OutOfMemoryError:  # of this call's size
                raise
            except (StageError, RuntimeError) as error:
                logger.warning("%s; from now on it runs eagerly", error)
                self.counters.compiled_regions -= 1
                chosen = own
                return own(*args, **kwargs)

        self._replace(module, run)

    def _run(self, part: torch.nn.Module, call: Callable[..., object], /, *args: object, **kwargs: object) -> object:
        self._running = True
        try:
            return call(*args, **kwargs)
        except torch._dynamo.exc.TorchDynamoException as error:
            raise _compile_error(error, part, self._stage) from error
        finally:
            self._running = False

    def _on_compile_start(self, _: object) -> None:
        if self._running:
            self._compile_start_s = time.perf_counter()

    def _on_compile_end(self, compilation: Any) -> None:
        if self._compile_start_s is None:
            return
        self.counters.compile_s += time.perf_counter() - self._compile_start_s
        self._compile_start_s = None
        self.counters.compiled_graphs += 1
        # "2/1": the second compilation (counted from 0) of the third piece of code.
        if re.search(r"/0\b", str(compilation.compile_id)) is None:
            self.counters.recompiles += 1

    def use(self, execution: Execution) -> None:
        """Make further calls run compiled, or as `eager`."""
        self.execution = execution
        self._is_eager = execution == "eager"
        if self._eager is not None:
            self._eager.close()
        self._eager = EagerMode(self._module, self.counters) if self._is_eager else None

    def close(self) -> None:
        _callbacks().remove_start_callback(self._on_compile_start)
        _callbacks().remove_end_callback(self._on_compile_end)
        if self._eager is not None:
            self._eager.close()
        super().close()


class CompiledGraphMode(GraphMode):
    """Replays CUDA graphs of a forward whose blocks are compiled: fewer kernels, and no launches from the host."""

    execution: Execution = "compile_cudagraph"

    def __init__(
        self, module: torch.nn.Module, backend: GraphBackend, *, beside: Sequence[torch.nn.Module] = (), **keys: Any
    ) -> None:
        self._compiled = CompiledMode(module, stage=keys["stage"], beside=beside)
        self._compiled_forward: Callable[..., object] = module.forward
        super().__init__(module, backend, **keys)
        regions = self._compiled.counters.compiled_regions
        self._compiled.counters = self.counters
        self.counters.compiled_regions = regions

    def _call(self, *args: object, **kwargs: object) -> object:
        try:
            return self.graphs(*args, **kwargs)
        except StageError as error:
            if self.reason is None:
                raise
            logger.warning("%s; from now on it runs compiled", error)
            self.choose("compile", f"a CUDA graph could not be captured: {error.message}")
            self.graphs.clear()
            return self._compiled_forward(*args, **kwargs)

    def use(self, execution: Execution) -> None:
        """Make further calls run from graphs, or as `compile` or `eager`."""
        self.execution = execution
        self._is_eager = execution != "compile_cudagraph"
        self._compiled.use("eager" if execution == "eager" else "compile")

    def compile_whole(self, module: torch.nn.Module) -> None:
        self._compiled.compile_whole(module)

    @contextmanager
    def eagerly(self) -> Iterator[None]:
        with super().eagerly(), self._compiled.eagerly():
            yield

    def close(self) -> None:
        super().close()
        self._compiled.close()


def make_execution_mode(
    module: torch.nn.Module,
    mode: Execution,
    *,
    stage: str,
    device: str,
    num_variants: int = 1,
    beside: Sequence[torch.nn.Module] = (),
    max_graphs: int = MAX_GRAPHS,
    clone_outputs: bool = True,
) -> ExecutionMode:
    """Make `module`, which is on `device` (torch's name for it), run in `mode`.

    `num_variants` is how many programs the module may be for one shape. Modules `beside` are compiled too, and not
    captured. Without `clone_outputs`, the next call of a CUDA graph overwrites the outputs; see `GraphManager`. Raises
    `StageError` before anything is compiled or captured if the machine or the module does not support the mode.
    """
    if mode == "eager":
        return EagerMode(module)
    if mode == "compile":
        return CompiledMode(module, stage=stage, num_variants=num_variants, beside=beside)
    require_cuda(stage=stage, device=device, execution=mode)
    if getattr(module, "is_cache_enabled", False):
        raise StageError(
            f"stage `{stage}`: `execution: {mode}` cannot capture {type(module).__name__} with a cache of "
            "diffusers, which decides in each step what to compute",
            stage=stage,
            hint="call `disable_cache()` on it first",
        )
    from omni_cli.backends.execution.cuda_graphs import CudaGraphBackend

    index = torch.device(device).index
    exact = torch.device("cuda", torch.cuda.current_device() if index is None else index)
    graphed = GraphMode if mode == "cudagraph" else functools.partial(CompiledGraphMode, beside=beside)
    keys: dict[str, Any] = {"stage": stage, "device": exact, "max_graphs": max_graphs, "clone_outputs": clone_outputs}
    return graphed(module, CudaGraphBackend(exact), **keys)


def require_cuda(*, stage: str, device: str, execution: Execution = "cudagraph") -> None:
    """Raise `StageError` unless `device` is a CUDA device of this machine."""
    lack = None
    if not torch.cuda.is_available():
        lack = "this machine has none"
    elif torch.device(device).type != "cuda":
        lack = f"the stage runs on `{device}`"
    if lack is not None:
        raise StageError(
            f"stage `{stage}`: `execution: {execution}` needs a CUDA device, and {lack}",
            stage=stage,
            hint=f"--set {stage}.execution=eager",
        )


def repeated_blocks(module: torch.nn.Module) -> list[torch.nn.Module]:
    """Repeated parts of `module` that are worth compiling separately; empty if there are none."""
    declared = getattr(module, "_repeated_blocks", None) or ()
    blocks = [part for part in module.modules() if type(part).__name__ in declared]
    if blocks:
        return blocks
    lists = [list(part) for part in module.modules() if isinstance(part, torch.nn.ModuleList)]
    alike = [parts for parts in lists if len(parts) > 1 and len({type(part) for part in parts}) == 1]

    def num_weights(parts: list[torch.nn.Module]) -> int:
        return sum(weight.numel() for part in parts for weight in part.parameters())

    return max(alike, key=num_weights, default=[])


def _callbacks() -> Any:
    import torch._dynamo.callback

    return torch._dynamo.callback.callback_handler


def _compile_error(error: Exception, module: torch.nn.Module, stage: str) -> StageError:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    what = lines[0] if lines else type(error).__name__
    where = ""
    if "from user code:" in lines:
        # A frame takes two lines; the innermost is the last before a blank line or another heading.
        code = lines[lines.index("from user code:") + 1 :]
        for line, source in itertools.pairwise([*code, ""]):
            frame = re.match(r'File ".*?([^/"]+)", line (\d+), in ', line)
            if frame is not None:
                where = f" ({frame[1]}:{frame[2]}: `{source}`)"
    return StageError(
        f"stage `{stage}`: `execution: compile` cannot compile {type(module).__name__}: {what}{where}",
        stage=stage,
        hint=f"--set {stage}.execution=eager",
        details=str(error),
    )
