"""Slowdown caused by profiling."""

from __future__ import annotations

from collections.abc import Sequence

from omni_cli.bench.iteration import Iteration, stage_latencies
from omni_cli.profile_record import Overhead
from omni_cli.record import Sample, Variant
from omni_cli.stats.compare import compare_variants


def measure_overhead(plain: Sequence[Iteration], profiled: Sequence[Iteration]) -> tuple[Overhead, ...]:
    """Compare end to end and per stage; iteration n of both sides ran in the same block, interleaved."""
    a, b = _variant("unprofiled", plain, 0), _variant("profiled", profiled, 1)
    return tuple(
        Overhead(
            metric=comparison.metric,
            unprofiled_s=comparison.a_median,
            profiled_s=comparison.b_median,
            ratio=comparison.ratio,
            ci95=comparison.ci95,
        )
        for comparison in (compared.result for compared in compare_variants(a, b, same_record=True))
        if comparison.a_median is not None and comparison.b_median is not None
    )


def _variant(name: str, iterations: Sequence[Iteration], position: int) -> Variant:
    samples = [
        Sample(
            block=block,
            position=position,
            e2e_s=iteration.e2e_s,
            metrics=stage_latencies(iteration),
        )
        for block, iteration in enumerate(iterations)
    ]
    return Variant(name=name, samples=tuple(samples))
