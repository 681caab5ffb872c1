"""A profile of two stages with a bit of everything, for tests of what works on profiles."""

from __future__ import annotations

from typing import Literal

from omni_cli.records.profile_record import (
    Activity,
    Budget,
    Copies,
    CopyPlace,
    Hint,
    LargeTensor,
    LaunchGaps,
    MemorySample,
    OperatorTime,
    Overhead,
    PhaseMemory,
    Profile,
    RangeTime,
    Roofline,
    RooflinePart,
    Span,
    StageMemory,
    StageProfile,
    Step,
)

PEAK_STEP = 5


def small_profile() -> Profile:
    """`thinker` for 0.1 s, then `image` for 0.2 s, whose fifth step is an outlier."""
    spans = [
        Span(track="thinker", name="request", start_s=0.0, duration_s=0.1),
        Span(track="connectors", name="thinker -> image", start_s=0.1, duration_s=0.004),
        Span(track="image", name="request", start_s=0.104, duration_s=0.2),
        Span(track="image", name="text encode", start_s=0.105, duration_s=0.02, depth=1),
        Span(track="image", name="vae decode", start_s=0.25, duration_s=0.05, depth=1),
    ]
    for number in range(8):
        start = 0.126 + number * 0.015
        spans.append(
            Span(track="image", name=f"denoising step {number + 1}", start_s=start, duration_s=0.0145, depth=1)
        )
    return Profile(
        created="2026-11-20T12:48:54Z",
        command=("omni", "profile", "--stage", "all"),
        environment={"machine": {"cpu": "Test 1"}, "versions": {"torch": "2.13.0"}, "code": {"commit": "a1"}},
        workload={"profile": "tiny", "stage": "all", "stages": ["thinker", "image"], "batch_size": 1},
        num_iters=5,
        num_iters_warmup=2,
        e2e_s=0.31,
        overhead=(Overhead(metric="e2e_s", unprofiled_s=0.29, profiled_s=0.3103, ratio=1.07, ci95=(1.05, 1.09)),),
        stages=(_stage("thinker", "ar", 0.1), _stage("image", "diffusion", 0.2)),
        request=tuple(spans),
        stage_seconds={"thinker": 0.1, "thinker -> image": 0.004, "image": 0.2, "other": 0.006},
        hints=(Hint(stage="image", message="idle is mostly launch gaps", advice="try `execution=cudagraph`"),),
        trace="trace.json.gz",
    )


def _stage(name: str, kind: Literal["ar", "diffusion"], latency_s: float) -> StageProfile:
    return StageProfile(
        name=name, kind=kind, backend="vllm", device="cpu", load_s=2.0,
        latency_s=latency_s, unprofiled_latency_s=latency_s * 0.93,
        activity=Activity(
            device="cpu", num_threads=2, window_s=latency_s, capacity_s=2 * latency_s, busy_s=1.2 * latency_s,
            busy_fraction=0.6, idle_fraction=0.4, idle_s={"between operators": 0.8 * latency_s},
        ),
        launch_gaps=LaunchGaps(count=120, total_s=0.01, median_s=3e-5, largest_s=2e-3, fraction_of_steps=0.12),
        copies=Copies(
            places=(CopyPlace(range="vae decode", operator="aten::copy_", module="decoder", calls=3, copied_bytes=2e6,
                              seconds=4e-4),),
        ),
        ranges=(
            RangeTime(name="denoising step", calls=8, total_s=0.6 * latency_s, self_s=0.4 * latency_s,
                      median_call_s=0.075 * latency_s, fraction=0.6),
        ),
        steps=tuple(
            Step(name="denoising step", number=n, median_s=0.02 if n == PEAK_STEP else 0.01,
                 samples_s=(0.009, 0.01, 0.012), usual_s=0.01, outlier=n == PEAK_STEP)
            for n in range(1, 9)
        ),
        waits={"aten::item": 4.0, "aten::to": 2.7},
        operators=(OperatorTime(module="blocks.*.attn", operator="aten::mm", calls=48, seconds=0.03, fraction=0.3),),
        memory=StageMemory(
            measure="host_rss", peak_bytes=700 << 20, peak_phase="vae decode",
            timeline=tuple(
                MemorySample(at_s=0.1 * n, host_rss_bytes=(700 if n == 30 else 400 + n) << 20) for n in range(40)
            ),
            phases=(PhaseMemory(name="load weights", start_s=0.0, duration_s=1.5, peak_host_rss_bytes=400 << 20),
                    PhaseMemory(name="first request", start_s=2.0, duration_s=0.5, peak_host_rss_bytes=420 << 20),
                    PhaseMemory(name="vae decode", start_s=2.9, duration_s=0.2, peak_host_rss_bytes=700 << 20,
                                added_bytes=200 << 20)),
            largest=(LargeTensor(where="lm_head.weight", size_bytes=40 << 20, kind="weight", shape=(1000, 64),
                                 dtype="float32"),),
            budgets=(Budget(what="KV cache", budget_bytes=256 << 20, used_bytes=64 << 20, used_fraction=0.25),),
        ),
        roofline=Roofline(
            flops=3e9, moved_bytes=2e8, flops_per_second=9e10, copied_bytes_per_second=1.2e10, dtype="float32",
            bound_s=0.4 * latency_s, measured_s=0.8 * latency_s, fraction=0.5, limit="compute",
            parts=(RooflinePart(module="blocks.*.attn", flops=1e9, moved_bytes=1e8, bound_s=0.01, limit="compute"),),
            omitted=("sampling",),
        ),
        notes=("the vocoder is not marked",),
    )  # fmt: skip
