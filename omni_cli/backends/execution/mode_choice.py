"""The choice of a module's execution mode by what its calls take on this machine."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from omni_cli.config.schema import Execution

# A compiled call that is not faster by more than this repays no compilation.
_MIN_GAIN = 0.97
# The device waits for the host if it has nothing left to do when the host has launched the last operation. Where it is
# the slower one, the host took at most 0.90 of a call on H200s; where it waits, all of it.
_HOST_BOUND = 0.95


@dataclass(frozen=True)
class CallTime:
    """Seconds of a call that begins on an idle device: on the host, and until the device has ended as well."""

    host_s: float
    total_s: float


def choose_execution(eager: CallTime, compiled: CallTime, *, with_graphs: bool) -> tuple[Execution, str]:
    """Return the mode and why; without `with_graphs` one that captures no CUDA graph."""
    took = f"a compiled call takes {_ms(compiled.total_s)}, {_ms(compiled.host_s)} of it on the host"
    reason = f"{took}, an eager one {_ms(eager.total_s)}"
    if with_graphs and compiled.host_s >= _HOST_BOUND * compiled.total_s:
        return "compile_cudagraph", reason
    return ("compile" if compiled.total_s <= _MIN_GAIN * eager.total_s else "eager"), reason


@contextmanager
def timed_calls(
    module: torch.nn.Module, synchronize: Callable[[], None], on_call: Callable[[list[CallTime]], None]
) -> Iterator[list[CallTime]]:
    """Measure the module's calls inside the context; `on_call` gets all so far after each."""
    calls: list[CallTime] = []
    began_s = 0.0

    def begin(*_: object) -> None:
        nonlocal began_s
        synchronize()
        began_s = time.perf_counter()

    def end(*_: object) -> None:
        host_s = time.perf_counter() - began_s
        synchronize()
        calls.append(CallTime(host_s, time.perf_counter() - began_s))
        on_call(calls)

    hooks = module.register_forward_pre_hook(begin), module.register_forward_hook(end)
    try:
        yield calls
    finally:
        for hook in hooks:
            hook.remove()


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms"
