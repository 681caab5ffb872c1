"""Goals and their results: met, NOT MET, or undecided if the interval is on both sides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from copies import RAW, WORK, Copies
from measure import Busy, Measured

from omni_cli.records.metrics import E2E
from omni_cli.records.record import Record, Variant
from omni_cli.stats.blocks import block_medians
from omni_cli.stats.compare import Comparison, compare_variants
from omni_cli.stats.estimate import get_centre

BUSY_MARGIN = 0.05
SLOWER_MARGIN = 0.01
OVERHEAD_MARGIN = 0.01
HIDDEN_SHARE = 0.95
BANDWIDTH_SHARE = 0.9


@dataclass(frozen=True)
class Goal:
    """`verdict` is met, NOT MET, undecided or not measured."""

    workload: str
    wanted: str
    found: str
    verdict: str

    def __str__(self) -> str:
        return f"{self.verdict:12} {self.workload:12} {self.wanted}: {self.found}"


def identical(workload: str, sides: dict[str, Measured]) -> Goal:
    """CUDA graph bit-identical to eager: images or samples, and the denoiser's last answer, of three seeds."""
    wanted = "cudagraph bit-identical to eager"
    eager, graph = sides["execution=eager"], sides["execution=cudagraph"]
    if eager.error or graph.error:
        return Goal(workload, wanted, eager.error or graph.error, "not measured")
    same = eager.output_sha256 == graph.output_sha256
    found = f"largest difference {graph.max_abs_diff:g} of the output, {graph.denoiser_max_abs_diff:g} of the denoiser"
    return Goal(workload, wanted, found, _word(same))


def near_busy(workload: str, graph: Variant, eager_busy: Busy | None) -> Goal:
    """The CUDA graph's loop against the time for which the eager loop keeps the device busy."""
    wanted = f"cudagraph's loop within {BUSY_MARGIN:.0%} of the GPU-busy limit"
    if eager_busy is None or not graph.samples:
        return Goal(workload, wanted, graph.error or "no busy time without a CUDA device", "not measured")
    ratios = block_medians(graph, "denoise_loop_s")[1] / eager_busy.busy_s
    found = f"{np.median(ratios):.3f} of {eager_busy.busy_s * 1e3:.2f} ms ({eager_busy.kernels} kernels and copies)"
    return Goal(workload, wanted, found, _at_most(ratios, 1 + BUSY_MARGIN))


def not_slower(workload: str, record: Record, a: str, b: str, margin: float, wanted: str) -> Goal:
    """`b` at most `margin` slower than `a`, end to end."""
    comparison = compared(record, a, b)
    if comparison is None or comparison.ratio is None:
        errors = [record.variant(name).error for name in (a, b)]
        return Goal(workload, wanted, next((error for error in errors if error), "no samples"), "not measured")
    found = f"ratio {comparison.ratio:.4f}"
    if comparison.ci95 is None:
        return Goal(workload, wanted, f"{found}, {comparison.blocks} blocks", "undecided")
    low, high = comparison.ci95
    verdict = "met" if high <= 1 + margin else "NOT MET" if low > 1 + margin else "undecided"
    return Goal(workload, wanted, f"{found} [{low:.4f}, {high:.4f}]", verdict)


def of_copies(copies: Copies) -> list[Goal]:
    """Bandwidth and hiding of asynchronous copies."""
    wanted = (
        f"async at least {BANDWIDTH_SHARE:.0%} of {RAW}",
        f"async hides at least {HIDDEN_SHARE:.0%} of the copies",
    )
    if copies.bandwidth[-1].effective["output_copy"] != "async":
        return [
            Goal("copies", text, "copies from this device cannot be asynchronous", "not measured") for text in wanted
        ]
    raw, sync, ours = (block_medians(variant, "copied_bytes_per_second")[1] for variant in copies.bandwidth)
    until = [np.median(block_medians(variant, E2E)[1]) * 1e3 for variant in copies.bandwidth]
    found = (
        f"{np.median(ours / raw):.3f} of {np.median(raw) / 1e9:.1f} GB/s, sync {np.median(sync) / 1e9:.1f} GB/s; "
        f"asked until readable {until[0]:.2f} ms, async {until[2]:.2f} ms, sync {until[1]:.2f} ms"
    )
    bandwidth = Goal("copies", wanted[0], found, _at_least(ours / raw, BANDWIDTH_SHARE))
    hidden = np.array(copies.hidden)
    seconds = {variant.name: np.median(block_medians(variant, E2E)[1]) * 1e3 for variant in copies.hiding}
    found = (
        f"{np.median(hidden):.3f} ({WORK} {seconds[WORK]:.1f} ms, async {seconds['output_copy=async']:.1f} ms, "
        f"sync {seconds['output_copy=sync']:.1f} ms)"
    )
    hides = Goal("copies", wanted[1], found, _at_least(hidden, HIDDEN_SHARE))
    return [bandwidth, hides]


def compared(record: Record, a: str, b: str, metric: str = E2E) -> Comparison | None:
    """`b` against `a` with the statistics of `omni compare`."""
    first, second = record.variant(a), record.variant(b)
    if not first.samples or not second.samples:
        return None
    found = compare_variants(first, second, same_record=True, metrics=[metric])
    return found[0].result if found else None


def _at_least(values: np.ndarray, bound: float) -> str:
    low, high = get_centre(values).interval(0.05)
    return "met" if low >= bound else "NOT MET" if high < bound else "undecided"


def _at_most(values: np.ndarray, bound: float) -> str:
    low, high = get_centre(values).interval(0.05)
    return "met" if high <= bound else "NOT MET" if low > bound else "undecided"


def _word(met: bool) -> str:
    return "met" if met else "NOT MET"


def table(goals: Sequence[Goal]) -> str:
    return "\n".join(str(goal) for goal in goals)
