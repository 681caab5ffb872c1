"""Bench records made from simulated noise, for tests of everything that works on records."""

from __future__ import annotations

from typing import Any

import numpy as np

from omni_cli.records.record import Memory, Record, Sample, Variant, workload_fingerprint

ENVIRONMENT: dict[str, Any] = {
    "machine": {"cpu": "Test 1", "usable_cores": 2},
    "versions": {"python": "3.11.7", "torch": "2.13.0"},
    "code": {"omni": "0.1.0", "commit": "a1"},
    "conditions": {"load_average": 0.5},
}
WORK = {"output_tokens": 16.0, "audio_s": 0.48}
ABBA = ((0, 3), (1, 2))


def correlated(rng: np.random.Generator, shape: tuple[int, ...], *, lag1: float, cv: float) -> np.ndarray:
    """Log-normal factors around 1, AR(1) along the last axis: coefficient of variation and lag-1 autocorrelation."""
    noise = rng.standard_normal(shape)
    series = np.empty(shape)
    series[..., 0] = noise[..., 0]
    for index in range(1, shape[-1]):
        series[..., index] = lag1 * series[..., index - 1] + np.sqrt(1 - lag1**2) * noise[..., index]
    return np.exp(cv * series)


def variant(
    name: str,
    times: np.ndarray,
    *,
    slots: tuple[int, ...] = (0, 1),
    metrics: dict[str, float] | None = None,
    work: dict[str, float] | None = None,
    **fields: Any,
) -> Variant:
    """A variant whose block i has the times `times[i]` seconds, (blocks, 2), at the positions `slots`.

    `metrics` gives further metrics as factors of the time.
    """
    samples = tuple(
        Sample(
            block=block,
            position=position,
            e2e_s=float(value),
            metrics={key: float(value * factor) for key, factor in (metrics or {}).items()},
            work=WORK if work is None else work,
        )
        for block, row in enumerate(times)
        for position, value in zip(slots, row, strict=True)
    )
    fields.setdefault("memory", Memory(peak_allocated_bytes=2**30, peak_host_rss_bytes=2**31))
    fields.setdefault("output_sha256", "f00d")
    return Variant(name=name, samples=samples, **fields)


def record(*variants: Variant, environment: dict[str, Any] | None = None, **workload: Any) -> Record:
    """A record of these variants; `workload` overrides parts of a small workload."""
    described = {"profile": "tiny-omni", "stage": "thinker", "batch_size": 1, **workload}
    return Record(
        created="2026-11-20T10:00:00Z",
        command=("omni", "bench"),
        environment=ENVIRONMENT if environment is None else environment,
        workload={**described, "fingerprint": workload_fingerprint(described)},
        variants=variants,
    )


def pair(
    blocks: int = 40, slowdown: float = 1.0, *, seed: int = 0, cv: float = 0.05, lag1: float = 0.75, base: float = 0.1
) -> tuple[Variant, Variant]:
    """Two interleaved variants, A B B A, on a machine with that noise; `b` is `slowdown` times slower."""
    times = base * correlated(np.random.default_rng(seed), (blocks * 4,), lag1=lag1, cv=cv).reshape(blocks, 4)
    return (
        variant("a", times[:, [0, 3]], slots=ABBA[0], metrics={"ttft_s": 0.3}),
        variant("b", times[:, [1, 2]] * slowdown, slots=ABBA[1], metrics={"ttft_s": 0.3}),
    )
