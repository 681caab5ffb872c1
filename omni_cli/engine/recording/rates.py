"""Measure the machine's rates of matrix products and memory traffic, which bound a model's speed."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from omni_cli.stage.recording import MachineRates

# Large enough for the device to reach its rate, small enough for a fraction of a second on a slow CPU.
_MATRIX_SIZE = {"cpu": 1024, "cuda": 8192}
_COPY_BYTES = {"cpu": 64 * 2**20, "cuda": 2**30}
_SECONDS = 0.3
_MIN_RUNS = 3


def measure_rates(device: torch.device, dtype: torch.dtype) -> MachineRates:
    """Return the best of several runs each, with this process's threads; takes about a second."""
    size, num_bytes = _MATRIX_SIZE[device.type], _COPY_BYTES[device.type]
    with torch.inference_mode():
        a = torch.randn(size, size, device=device).to(dtype)
        b, out = a.t().contiguous(), torch.empty_like(a)
        product_s = _best_s(lambda: torch.mm(a, b, out=out), device)
        source = torch.ones(num_bytes, dtype=torch.uint8, device=device)
        target = torch.empty_like(source)
        copy_s = _best_s(lambda: target.copy_(source), device)
    return MachineRates(2 * size**3 / product_s, 2 * num_bytes / copy_s, str(dtype).removeprefix("torch."))


def _best_s(run: Callable[[], object], device: torch.device) -> float:
    run()
    times: list[float] = []
    while len(times) < _MIN_RUNS or sum(times) < _SECONDS:
        times.append(_timed(run, device))
    return min(times)


def _timed(run: Callable[[], object], device: torch.device) -> float:
    if device.type == "cpu":
        began_s = time.perf_counter()
        run()
        return time.perf_counter() - began_s
    began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    began.record()
    run()
    ended.record()
    ended.synchronize()
    return float(began.elapsed_time(ended)) / 1e3
