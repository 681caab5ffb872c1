"""Pictures on their way to the host: ours against a bare `copy_`, and how much of it hides behind the next step."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from omni_cli.execution.copies import CopyCounters, OutputCopy, make_output_copy
from omni_cli.execution.timeline import clock_for
from omni_cli.record import Sample, Variant

RAW = "raw copy_"
SIDES = (RAW, "output_copy=sync", "output_copy=async")
WORK = "no copy"
STEPS = 8


@dataclass
class Copies:
    """Variants of both measurements; `hidden` is the share of the copies' time that hid, one value a block."""

    bandwidth: list[Variant]
    hiding: list[Variant]
    hidden: list[float] = field(default_factory=list)


def pictures_on(device: torch.device, *, tiny: bool) -> torch.Tensor:
    """A batch of pictures as they leave the device: uint8 (32, 1024, 1024, 3), 96 MiB."""
    shape = (2, 64, 64, 3) if tiny else (32, 1024, 1024, 3)
    return torch.randint(0, 256, shape, dtype=torch.uint8, device=device)


def measure_copies(pictures: torch.Tensor, work: Callable[[], object], blocks: int) -> Copies:
    """`work` queues one step on the device."""
    copies = {name: _make(name, pictures.device) for name in SIDES}
    bandwidth = _bandwidth(pictures, copies, blocks)
    hiding, hidden = _hiding(pictures, copies, work, blocks)
    return Copies(bandwidth, hiding, hidden)


class _RawCopy:
    """What can be had at best: one page-locked buffer, one `copy_`, the stream of everybody."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._clock = clock_for(str(device))
        self._host: torch.Tensor | None = None
        self.counters = CopyCounters()

    def start(self, tensor: torch.Tensor) -> _RawCopy:
        if self._host is None:
            self._host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=self._device.type == "cuda")
        self._began = self._clock.mark()
        self._host.copy_(tensor, non_blocking=True)
        self._ended = self._clock.mark()
        return self

    def get(self) -> torch.Tensor:
        _synchronize(self._device)
        self.counters.copy_s += self._clock.seconds(self._began, self._ended)
        return self._host


def _make(name: str, device: torch.device) -> OutputCopy | _RawCopy:
    return _RawCopy(device) if name == RAW else make_output_copy(name.partition("=")[2], device)


def _bandwidth(pictures: torch.Tensor, copies: dict[str, OutputCopy | _RawCopy], blocks: int) -> list[Variant]:
    """One copy each, the device idle before: seconds from asking for it until it can be read, and the device's own."""
    expected = pictures.cpu()
    samples: dict[str, list[Sample]] = {name: [] for name in SIDES}
    for block in range(-2, blocks):
        for position, name in enumerate([*SIDES, *reversed(SIDES)]):
            _synchronize(pictures.device)
            before_s, start = copies[name].counters.copy_s, time.perf_counter()
            host = copies[name].start(pictures).get()
            seconds = time.perf_counter() - start
            if block == -2 and not torch.equal(host, expected):
                raise SystemExit(f"{name}: what arrived is not what was sent")
            if block >= 0:
                copy_s = copies[name].counters.copy_s - before_s
                metrics = {"copy_s": copy_s, "copied_bytes_per_second": pictures.nbytes / max(copy_s, 1e-9)}
                samples[name].append(Sample(block=block, position=position, e2e_s=seconds, metrics=metrics))
            del host
    return [_variant(name, samples[name], copies[name]) for name in SIDES]


def _hiding(
    pictures: torch.Tensor, copies: dict[str, OutputCopy | _RawCopy], work: Callable[[], object], blocks: int
) -> tuple[list[Variant], list[float]]:
    """`STEPS` steps of work, each followed by a copy of the pictures that is read one step later.

    The work of a step is as long as two copies or longer, so all of a copy could hide. What the steps take longer
    than without copies is what did not.
    """
    copy_s = _fastest(lambda: copies[RAW].start(pictures).get(), pictures.device)
    work_s = _fastest(work, pictures.device)
    repeats = max(1, round(2 * copy_s / work_s + 0.5))
    names = (WORK, *SIDES[1:])
    samples: dict[str, list[Sample]] = {name: [] for name in names}
    hidden = []
    for block in range(-1, blocks):
        seconds: dict[str, float] = dict.fromkeys(names, 0.0)
        for position, name in enumerate([*names, *reversed(names)]):
            taken = _steps(pictures, copies.get(name), work, repeats)
            seconds[name] += taken / 2
            if block >= 0:
                samples[name].append(Sample(block=block, position=position, e2e_s=taken))
        if block >= 0:
            hidden.append(1 - (seconds["output_copy=async"] - seconds[WORK]) / (STEPS * copy_s))
    return [_variant(name, samples[name], copies.get(name)) for name in names], hidden


def _steps(pictures: torch.Tensor, copy: OutputCopy | _RawCopy | None, work: Callable[[], object], repeats: int):
    _synchronize(pictures.device)
    start = time.perf_counter()
    pending = None
    for _ in range(STEPS):
        for _ in range(repeats):
            work()
        if copy is not None:
            before, pending = pending, copy.start(pictures)
            if before is not None:
                before.get()
    # One more: what comes last would have nothing to hide behind.
    for _ in range(repeats):
        work()
    if pending is not None:
        pending.get()
    _synchronize(pictures.device)
    return time.perf_counter() - start


def _fastest(run: Callable[[], object], device: torch.device) -> float:
    taken = []
    for _ in range(10):
        _synchronize(device)
        start = time.perf_counter()
        run()
        _synchronize(device)
        taken.append(time.perf_counter() - start)
    return min(taken)


def _variant(name: str, samples: list[Sample], copy: OutputCopy | _RawCopy | None) -> Variant:
    counters = {} if copy is None or isinstance(copy, _RawCopy) else copy.counters.as_dict()
    mode = {} if copy is None or isinstance(copy, _RawCopy) else {"output_copy": copy.mode}
    effective = {**mode, "engagement": counters} if counters else {}
    return Variant(name=name, settings=dict([name.split("=")]) if "=" in name else {}, effective=effective,
                   samples=tuple(samples))  # fmt: skip


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
