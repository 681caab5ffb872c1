"""Slowdown caused by profiling."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from omni_cli.bench.metrics import Iteration
from omni_cli.profile_record import Overhead
from omni_cli.record import Sample, Variant
from omni_cli.stats.compare import compare_variants


def overhead_of(plain: Sequence[Iteration], profiled: Sequence[Iteration]) -> tuple[Overhead, ...]:
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


def stage_latency_s(iteration: Iteration, stage: str) -> float:
    """Return the median over the stage's requests."""
    return statistics.median(trace.latency_s for trace in iteration.traces(stage))


def latency_metric(stage: str) -> str:
    return f"{stage}.latency_s"


def _variant(name: str, iterations: Sequence[Iteration], position: int) -> Variant:
    samples = [
        Sample(
            block=block,
            position=position,
            e2e_s=iteration.e2e_s,
            metrics={latency_metric(stage): stage_latency_s(iteration, stage) for stage, _ in iteration.stages},
        )
        for block, iteration in enumerate(iterations)
    ]
    return Variant(name=name, samples=tuple(samples))
