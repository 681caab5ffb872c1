"""Device-to-host copies of images: ours against a bare `copy_`, and how much of it hides behind the next step."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from omni_cli.backends.execution.copies import CopyCounters, OutputCopy, make_output_copy
from omni_cli.backends.execution.ranges import clock_for
from omni_cli.records.record import COUNTERS_KEY, Sample, Variant

RAW = "raw copy_"
SIDES = (RAW, "output_copy=sync", "output_copy=async")
WORK = "no copy"
STEPS = 8


@dataclass
class Copies:
    """Variants of both measurements; `hidden` is the hidden share of the copies' time, one value per block."""

    bandwidth: list[Variant]
    hiding: list[Variant]
    hidden: list[float] = field(default_factory=list)


def images_on(device: torch.device, *, tiny: bool) -> torch.Tensor:
    """A batch of images as they leave the device: uint8 (32, 1024, 1024, 3), 96 MiB."""
    shape = (2, 64, 64, 3) if tiny else (32, 1024, 1024, 3)
    return torch.randint(0, 256, shape, dtype=torch.uint8, device=device)


def measure_copies(images: torch.Tensor, work: Callable[[], object], blocks: int) -> Copies:
    """`work` queues one step on the device."""
    copies = {name: _make(name, images.device) for name in SIDES}
    bandwidth = _bandwidth(images, copies, blocks)
    hiding, hidden = _hiding(images, copies, work, blocks)
    return Copies(bandwidth, hiding, hidden)


class _RawCopy:
    """The best possible: one page-locked buffer, one `copy_`, the common stream."""

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


def _bandwidth(images: torch.Tensor, copies: dict[str, OutputCopy | _RawCopy], blocks: int) -> list[Variant]:
    """One copy each with an idle device: seconds from the request until it can be read, and the device's own."""
    expected = images.cpu()
    samples: dict[str, list[Sample]] = {name: [] for name in SIDES}
    for block in range(-2, blocks):
        for position, name in enumerate([*SIDES, *reversed(SIDES)]):
            _synchronize(images.device)
            before_s, start = copies[name].counters.copy_s, time.perf_counter()
            host = copies[name].start(images).get()
            seconds = time.perf_counter() - start
            if block == -2 and not torch.equal(host, expected):
                raise SystemExit(f"{name}: received data differs from what was sent")
            if block >= 0:
                copy_s = copies[name].counters.copy_s - before_s
                metrics = {"copy_s": copy_s, "copied_bytes_per_second": images.nbytes / max(copy_s, 1e-9)}
                samples[name].append(Sample(block=block, position=position, e2e_s=seconds, metrics=metrics))
            del host
    return [_variant(name, samples[name], copies[name]) for name in SIDES]


def _hiding(
    images: torch.Tensor, copies: dict[str, OutputCopy | _RawCopy], work: Callable[[], object], blocks: int
) -> tuple[list[Variant], list[float]]:
    """`STEPS` steps of work, each followed by a copy of the images that is read one step later.

    The work of a step takes at least as long as two copies, so all of a copy could hide. The time beyond that of the
    steps without copies is what did not.
    """
    copy_s = _fastest(lambda: copies[RAW].start(images).get(), images.device)
    work_s = _fastest(work, images.device)
    repeats = max(1, round(2 * copy_s / work_s + 0.5))
    names = (WORK, *SIDES[1:])
    samples: dict[str, list[Sample]] = {name: [] for name in names}
    hidden = []
    for block in range(-1, blocks):
        seconds: dict[str, float] = dict.fromkeys(names, 0.0)
        for position, name in enumerate([*names, *reversed(names)]):
            taken = _steps(images, copies.get(name), work, repeats)
            seconds[name] += taken / 2
            if block >= 0:
                samples[name].append(Sample(block=block, position=position, e2e_s=taken))
        if block >= 0:
            hidden.append(1 - (seconds["output_copy=async"] - seconds[WORK]) / (STEPS * copy_s))
    return [_variant(name, samples[name], copies.get(name)) for name in names], hidden


def _steps(images: torch.Tensor, copy: OutputCopy | _RawCopy | None, work: Callable[[], object], repeats: int):
    _synchronize(images.device)
    start = time.perf_counter()
    pending = None
    for _ in range(STEPS):
        for _ in range(repeats):
            work()
        if copy is not None:
            before, pending = pending, copy.start(images)
            if before is not None:
                before.get()
    # One more: the last copy has nothing to hide behind.
    for _ in range(repeats):
        work()
    if pending is not None:
        pending.get()
    _synchronize(images.device)
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
    effective = {**mode, COUNTERS_KEY: counters} if counters else {}
    return Variant(name=name, settings=dict([name.split("=")]) if "=" in name else {}, effective=effective,
                   samples=tuple(samples))  # fmt: skip


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
