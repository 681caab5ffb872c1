"""The ratio of two variants of unequal power on a GPU at its power limit: each alone, alternating runs, and turns.

    python benchmarks/power_turns.py        # on a GPU, 2.5 minutes; no vLLM, but nvidia-ml-py

Variants are products of matrices in runs of about 20 ms, which `omni bench`'s own harness schedules: zeros against
random numbers (the same work, another power), bfloat16 against float8, and random numbers against themselves. "each
alone" is what a user of either variant gets: several seconds of one of them, then of the other. The second table leaves
out the beginning of each turn, and takes means instead of medians.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from common import machine_line

from omni_cli.core.machine import open_nvml
from omni_cli.measure.bench.harness import Harness
from omni_cli.measure.bench.protocol import Loaded, Loading, Ran
from omni_cli.measure.bench.record_builder import RecordBuilder
from omni_cli.measure.bench.schedule import RunLimits
from omni_cli.measure.bench.variant_configs import VariantConfig
from omni_cli.records.record import Record, Sample
from omni_cli.stats.compare import compare_variants

RUN_S = 0.02
ALONE_S, SETTLE_S = 2.0, 1.0
Run = Callable[[], None]


@dataclass(frozen=True)
class Pair:
    """Two named pieces of work; `budgets_s` are the seconds of measuring by the length of a turn, None being omni's.

    An interval needs eight blocks of two turns, each as many runs as fill 1.5 s with the faster variant.
    """

    names: tuple[str, str]
    runs: tuple[Run, Run]
    budgets_s: dict[float | None, float]


class InProcess:
    """A variant that runs in this process: the schedule is the subject, not the stage."""

    pid = None

    def __init__(self, name: str, run: Run) -> None:
        self.name = name
        self._run = run

    async def start(self) -> None: ...

    async def load(self, on_loading: Callable[[Loading], None]) -> Loaded:
        return Loaded(())

    async def run(self, number: int, *, when: str, outputs: Path | None = None, timeout_s: float | None = None) -> Ran:
        took_s = await asyncio.to_thread(seconds, self._run)
        return Ran(e2e_s=took_s, metrics={}, work={}, output_sha256=None, accounted={}, memory={})

    async def close(self) -> None: ...


class Silent:
    """Hears of the measurement's events and reports none."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_: None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--size", type=int, default=8192, help="rows and columns of the matrices")
    options = parser.parse_args()
    say(machine_line())
    if open_nvml()[0] is None:
        say("no device tells its power (NVML): omni chooses no turns")
    if options.device == "cuda":
        say(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    say(
        f"\n{'b / a':22} {'schedule':18} {'ratio':>7} {'95 % interval':>18}  {'verdict':14} blocks  "
        "clock and power while a ran; while b ran"
    )
    trimmed: list[str] = []
    for pair in get_pairs(options.device, options.size):
        title = " / ".join(reversed(pair.names))
        if pair.runs[0] is not pair.runs[1]:
            say(f"{title:22} {'each alone':18} {alone(pair):7.3f}")
        for turn_s, budget_s in pair.budgets_s.items():
            record = measure(pair, RunLimits(None, 1, budget_s, turn_s=turn_s))
            say(f"{title:22} {schedule_of(record):18} {result_of(record)}")
            if turn_s is None and has_turns(record):
                trimmed += [f"{title:22} {line}" for line in without_beginnings(record)]
    say("\nturns, b / a from each block's mean or median without the first seconds of each turn")
    say("\n".join(trimmed))
    return 0


def get_pairs(device: str, size: int) -> list[Pair]:
    random = [torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2)]
    zeros = [torch.zeros_like(matrix) for matrix in random]
    out = torch.empty_like(random[0])

    def product(factors: list[torch.Tensor]) -> Run:
        return lambda: torch.mm(*factors, out=out)

    hot = Repeated(product(random), device)
    pairs = [
        Pair(
            ("zeros", "random"),
            (Repeated(product(zeros), device, hot.times), hot),
            {0: 8, 0.1: 8, 0.5: 10, None: 30},
        ),
        Pair(("random", "random again"), (hot, hot), {None: 30}),
    ]
    try:
        small = Repeated(float8_product(random), device, hot.times)
        small()
    except (RuntimeError, AttributeError) as error:
        say(f"float8 left out: {str(error).splitlines()[0]}")
        return pairs
    return [*pairs, Pair(("bfloat16", "float8"), (hot, small), {0: 8, None: 40})]


def float8_product(factors: list[torch.Tensor]) -> Run:
    a, b = (matrix.clamp(-448, 448).to(torch.float8_e4m3fn) for matrix in factors)
    one = torch.ones((), device=a.device)
    return lambda: torch._scaled_mm(a, b.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16)


class Repeated:
    """Calls `once` as often as fills `RUN_S`, or so many `times`, and waits for the device."""

    def __init__(self, once: Run, device: str, times: int | None = None) -> None:
        self._once, self._is_cuda, self.times = once, device == "cuda", 1
        if times is None:
            for _ in range(3):
                self()
            times = max(1, round(RUN_S / statistics.median(seconds(self) for _ in range(5))))
        self.times = times

    def __call__(self) -> None:
        for _ in range(self.times):
            self._once()
        if self._is_cuda:
            torch.cuda.synchronize()


def seconds(run: Run) -> float:
    begun_s = time.perf_counter()
    run()
    return time.perf_counter() - begun_s


def alone(pair: Pair) -> float:
    """Return the ratio of the medians of several seconds of each variant, A B B A, after a second of it."""
    times: tuple[list[float], list[float]] = ([], [])
    for index in (0, 1, 1, 0):
        begun_s = time.monotonic()
        while (lasted_s := time.monotonic() - begun_s) < SETTLE_S + ALONE_S:
            took_s = seconds(pair.runs[index])
            if lasted_s > SETTLE_S:
                times[index].append(took_s)
    return statistics.median(times[1]) / statistics.median(times[0])


def measure(pair: Pair, limits: RunLimits) -> Record:
    runners = [InProcess(name, run) for name, run in zip(pair.names, pair.runs, strict=True)]
    with tempfile.TemporaryDirectory() as folder:
        configs = [VariantConfig(name) for name in pair.names]
        builder = RecordBuilder(configs, command=(), environment={}, workload={}, folder=Path(folder))
        harness = Harness(
            builder,
            launch=lambda index: runners[index],
            limits=limits,
            decided=lambda record: False,
            watcher=Silent(),
        )
        asyncio.run(harness.run())
        return builder.record()


def has_turns(record: Record) -> bool:
    return record.environment["conditions"]["interleaving"] == "turns"


def schedule_of(record: Record) -> str:
    turn_s = record.environment["conditions"].get("turn_s")
    return f"turns of {turn_s:g} s" if has_turns(record) else "alternating runs"


def result_of(record: Record) -> str:
    (found,) = compare_variants(*record.variants, same_record=True, sampling=[record.sampling], metrics=["e2e_s"])
    result = found.result
    interval = f"[{result.ci95[0]:.4f}, {result.ci95[1]:.4f}]" if result.ci95 else "none"
    blocks = len({sample.block for sample in record.variants[0].samples})
    ratio = math.nan if result.ratio is None else result.ratio
    loads = "; ".join(
        ", ".join(f"{load.sm_clock_mhz:.0f} of {load.max_sm_clock_mhz or math.nan:.0f} MHz {load.power_w:.0f} of "
                  f"{load.power_limit_w or math.nan:.0f} W" for load in variant.device_load) or "unknown"
        for variant in record.variants
    )  # fmt: skip
    return f"{ratio:7.3f} {interval:>18}  {result.verdict:14} {blocks:6}  {loads}"


def without_beginnings(record: Record) -> list[str]:
    lines = []
    for left_out_s in (0.0, 0.1, 0.3, 0.6):
        of_kind = []
        for centre in (statistics.median, statistics.fmean):
            a, b = (turn_centres(variant.samples, left_out_s, centre) for variant in record.variants)
            of_kind.append(math.exp(statistics.fmean(math.log(b[block] / a[block]) for block in a.keys() & b.keys())))
        lines.append(f"without the first {left_out_s:g} s: median {of_kind[0]:.4f}, mean {of_kind[1]:.4f}")
    return lines


def turn_centres(
    samples: Sequence[Sample], left_out_s: float, centre: Callable[[list[float]], float]
) -> dict[int, float]:
    """Return the centre of each block's runs, which are one turn, without those that began in its first seconds."""
    turns: dict[int, list[float]] = {}
    begun_s: dict[int, float] = {}
    for sample in samples:
        if begun_s.get(sample.block, 0.0) >= left_out_s:
            turns.setdefault(sample.block, []).append(sample.e2e_s)
        begun_s[sample.block] = begun_s.get(sample.block, 0.0) + sample.e2e_s
    return {block: centre(times) for block, times in turns.items()}


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
