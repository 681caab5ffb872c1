"""Measurements: interleaving, the device's busy time, peak memory, and differences between outputs."""

from __future__ import annotations

import gc
import hashlib
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from sides import Call, Side

from omni_cli.records.record import Memory, Sample
from omni_cli.stats.output_quality import get_quality, get_worst

OUTPUT_SEEDS = (0, 1)


@dataclass
class Measured:
    """Results of one side; `error` is why it did not run."""

    name: str
    side: Side | None = None
    error: str | None = None
    first_call_s: float | None = None
    samples: list[Sample] = field(default_factory=list)
    output_sha256: str | None = None
    max_abs_diff: float | None = None
    denoiser_max_abs_diff: float | None = None
    outputs: list[tuple[np.ndarray, np.ndarray]] = field(default_factory=list)
    memory: Memory = field(default_factory=Memory)
    busy: Busy | None = None
    notes: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Busy:
    """One denoising loop: seconds in which at least one kernel or copy ran, their number, and the wall time."""

    busy_s: float
    kernels: int
    wall_s: float


def start(name: str, make: Callable[[], Side], device: torch.device, seeds: Sequence[int] = (1,)) -> Measured:
    """Make a side and run it once: loading, compiling and capturing are in `first_call_s`.

    Further calls, one per seed, measure peak memory, weights included, and keep what they made. A side that cannot run
    is a result and does not affect the others.
    """
    measured = Measured(name)
    begin = time.perf_counter()
    try:
        measured.side = make()
        measured.side.run(0)
        measured.first_call_s = time.perf_counter() - begin
        # Some caches fill only with the second call.
        forget_peaks(device)
        measured.outputs = _outputs(measured, seeds)
        measured.memory = peaks(device)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is what this side has to show
        traceback.print_exc()
        measured.error = f"{type(error).__name__}: {error}"
        measured.side = None
    return measured


def interleave(
    sides: Sequence[Measured],
    run: Callable[[Side, int], Call],
    work: dict[str, float],
    *,
    blocks: int,
    until: float,
    first_block: int = 0,
    once: bool = False,
    after_block: Callable[[], None] = lambda: None,
) -> None:
    """`blocks` blocks of A B C C B A, each side on the seeds of the block; fewer when time is up at `until`.

    With `once`, of A B C and C B A in turn.
    """
    running = [measured for measured in sides if measured.side is not None]
    for block in range(first_block, first_block + blocks):
        if block > first_block and time.perf_counter() > until:
            break
        there, back = running, running[::-1]
        for position, measured in enumerate([there, back][block % 2] if once else [*there, *back]):
            before = measured.side.counters()
            call = run(measured.side, block)
            measured.samples.append(
                Sample(
                    block=block, position=position, e2e_s=call.e2e_s, metrics=dict(call.metrics), work=work,
                    **_execution_counters(measured.name, before, measured.side.counters()),
                )
            )  # fmt: skip
        after_block()


def _execution_counters(name: str, before: dict[str, float], after: dict[str, float]) -> dict[str, Any]:
    from omni_cli.backends.execution.counters import since

    return {"execution_counters": {name: since(before, after)}} if after else {}


def compare_outputs(measured: Measured, expected: list[tuple[np.ndarray, np.ndarray]]) -> None:
    """Hash a side's outputs and its denoiser's last answers; record their differences to the expected ones."""
    if measured.side is None:
        return
    digest = hashlib.sha256()
    for output, answer in measured.outputs:
        digest.update(output.tobytes())
        digest.update(answer.tobytes())
    measured.output_sha256 = "sha256:" + digest.hexdigest()
    pairs = list(zip(measured.outputs, expected, strict=True))
    measured.max_abs_diff = max(distance(a, b) for (a, _), (b, _) in pairs)
    measured.denoiser_max_abs_diff = max(distance(a, b) for (_, a), (_, b) in pairs)
    measured.notes["output_std"] = float(np.std(measured.outputs[0][0], dtype=np.float32))
    measured.notes["denoiser_output_std"] = float(np.std(measured.outputs[0][1]))
    measured.notes["max_abs_diff"] = measured.max_abs_diff
    measured.notes |= get_worst(_quality(a, b) for (a, _), (b, _) in pairs)
    measured.notes["relative_difference"] = max(relative(a, b) for (a, _), (b, _) in pairs)
    measured.notes["denoiser_relative_difference"] = max(relative(a, b) for (_, a), (_, b) in pairs)


def _quality(a: np.ndarray, b: np.ndarray) -> dict[str, float]:
    """PSNR and SSIM of an image, or of every eighth frame of a video; nothing if equal."""
    if a.dtype != np.uint8:
        return {}
    kind = "image" if a.ndim == 3 else "video"
    return get_quality(*({f"0.{kind}": each if kind == "image" else each[::8]} for each in (a, b)))


def counted(measured: Measured) -> list[str]:
    """Report what an acceleration did in the measured calls."""
    counters = {} if measured.side is None else measured.side.counters()
    text = []
    if "cached_calls" in counters:
        calls = counters["eager_calls"]
        text.append(f"{counters['cached_calls']:g} of {calls:g} calls cached")
    if "weight_bytes" in counters:
        before, after = (counters[name] / 2**30 for name in ("loaded_weight_bytes", "weight_bytes"))
        text.append(f"weights {before:.2f} to {after:.2f} GiB")
    return text


def note_repeats(measured: Measured) -> None:
    """Check that the vocoder repeats its waveform for one mel spectrogram, with cuDNN's default and deterministic."""
    for name, deterministic in (("default", False), ("deterministic", True)):
        with torch.backends.cudnn.flags(enabled=True, deterministic=deterministic):
            first, second = (measured.side.run(0) for _ in range(2))
        measured.notes[f"waveform_repeat_max_abs_diff_{name}"] = distance(first.waveform, second.waveform)


def _outputs(measured: Measured, seeds: Sequence[int]) -> list[tuple[np.ndarray, np.ndarray]]:
    """(output, last answer of the denoiser as float32) for each seed; the time of the last call is noted."""
    side = measured.side
    last: list[torch.Tensor] = []

    def keep(_module: Any, _args: Any, answer: Any) -> None:
        answer = getattr(answer, "sample", answer)
        while isinstance(answer, tuple | list):  # of video and sound, or of the requests of a batch
            answer = answer[0]
        last[:] = [answer.detach().clone()]

    handle = side.denoiser.register_forward_hook(keep)
    found = []
    try:
        for seed in seeds:
            call = side.run(seed)
            found.append((call.output, last[0].float().cpu().numpy()))
    finally:
        handle.remove()
    measured.notes["warm_call_s"] = call.e2e_s
    return found


def distance(a: np.ndarray, b: np.ndarray) -> float:
    """Largest absolute difference; NaN counts as infinite."""
    if a.dtype == b.dtype == np.uint8:  # of a video, a tenth of the time
        return float((np.maximum(a, b) - np.minimum(a, b)).max())
    gap = np.abs(a.astype(np.float64) - b.astype(np.float64))
    return float(np.where(np.isnan(gap), np.inf, gap).max())


def relative(a: np.ndarray, b: np.ndarray) -> float:
    """The norm of the difference over that of `b`; NaN if either has one."""
    expected = b.astype(np.float32)
    return float(np.linalg.norm(a.astype(np.float32) - expected) / np.linalg.norm(expected))


def forget_peaks(device: torch.device) -> None:
    if device.type == "cuda":
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


def peaks(device: torch.device) -> Memory:
    if device.type != "cuda":
        return Memory()
    return Memory(
        peak_allocated_bytes=torch.cuda.max_memory_allocated(device),
        peak_reserved_bytes=torch.cuda.max_memory_reserved(device),
    )


def flops_of(side: Side) -> int:
    """Floating-point operations of the denoiser in one loop, counted by torch; it must run eagerly."""
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        side.denoise(0)
    return sum(counter.get_flop_counts()[type(side.denoiser).__name__].values())


def matmul_rate(device: torch.device, size: int = 8192) -> float:
    """Floating-point operations per second of a large bfloat16 product of random values on this device."""
    a, b = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
    seconds = []
    for _ in range(12):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        torch.mm(a, b)
        end.record()
        end.synchronize()
        seconds.append(begin.elapsed_time(end) / 1e3)
    return 2 * size**3 / float(np.median(seconds[2:]))


def busy_of(denoise: Callable[[int], None], device: torch.device) -> Busy | None:
    """Seconds in which the device works during one denoising loop, by the timestamps of its own activity records.

    The union of the intervals of all kernels, copies and fills between the loop's first and last. It excludes waiting
    for the host to launch the next one, so no way of launching can make the loop shorter than this without changing the
    kernels. None without a CUDA device.
    """
    if device.type != "cuda":
        return None
    from torch.autograd import DeviceType
    from torch.profiler import ProfilerActivity, profile

    torch.cuda.synchronize(device)
    with profile(activities=[ProfilerActivity.CUDA]) as recorded:
        denoise(0)
        torch.cuda.synchronize(device)
    # Not `recorded.events()`: building its objects takes seconds for so many kernels.
    spans = [
        (event.start_ns(), event.start_ns() + event.duration_ns())
        for event in recorded.profiler.kineto_results.events()
        if event.device_type() == DeviceType.CUDA
    ]
    return busy_in(spans) if spans else None


def busy_in(spans: Sequence[tuple[int, int]]) -> Busy:
    """Nanoseconds in which at least one of the (begin, end) intervals, in any order and overlapping, was running."""
    ordered = sorted(spans)
    total, first, end = 0, ordered[0][0], ordered[0][0]
    for begin, last in ordered:
        total += max(0, last - max(begin, end))
        end = max(end, last)
    return Busy(total / 1e9, len(ordered), (end - first) / 1e9)
