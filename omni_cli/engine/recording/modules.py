"""Track the running module, for traces and counting, through hooks on every module during a recording."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from omni_cli.stage.recording import MODULE_PREFIX


class ModuleMarks:
    """Calls `enter(path)` and `leave()` for each call of a module in `roots`, innermost last, until `close`.

    Calls in other threads than that of the marks are ignored, as torch's profiler does not see them, either.
    """

    def __init__(
        self, roots: Mapping[str, nn.Module], enter: Callable[[str], None], leave: Callable[[], object]
    ) -> None:
        self._paths = {
            id(module): f"{root}.{path}" if path else root
            for root, top in roots.items()
            for path, module in top.named_modules()
        }
        self._enter, self._leave = enter, leave
        self._thread = threading.get_ident()
        self._handles = [
            register_module_forward_pre_hook(self._before),
            # Even if a forward pass raises.
            register_module_forward_hook(self._after, always_call=True),
        ]

    def close(self) -> None:
        for handle in self._handles:
            handle.remove()

    def _before(self, module: nn.Module, _inputs: object) -> None:
        path = self._paths.get(id(module))
        if path is not None and threading.get_ident() == self._thread:
            self._enter(path)

    def _after(self, module: nn.Module, _inputs: object, _output: object) -> None:
        if id(module) in self._paths and threading.get_ident() == self._thread:
            self._leave()


def annotating_marks(roots: Mapping[str, nn.Module]) -> ModuleMarks:
    """Create marks in the trace of torch's profiler, called `module PATH`."""
    # A fraction of a microsecond; the public `record_function` takes twenty, and this runs for every module.
    from torch._C._profiler import _RecordFunctionFast

    opened: list[Any] = []

    def enter(path: str) -> None:
        annotation = _RecordFunctionFast(MODULE_PREFIX + path)
        annotation.__enter__()
        opened.append(annotation)

    def leave() -> None:
        opened.pop().__exit__(None, None, None)

    return ModuleMarks(roots, enter, leave)
