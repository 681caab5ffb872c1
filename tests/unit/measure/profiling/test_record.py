"""The record of a profile, its computed values, and its text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from omni_cli.core.errors import InputError, OutputError
from omni_cli.measure.bench.iteration import Finished, Iteration
from omni_cli.measure.profiling.activity import compute_roofline
from omni_cli.measure.profiling.build import measure_overhead
from omni_cli.measure.profiling.chrome_trace import stage_seconds
from omni_cli.measure.profiling.hints import find_hints
from omni_cli.records.profile_record import (
    Activity,
    Copies,
    CopyPlace,
    LaunchGaps,
    Overhead,
    PhaseMemory,
    Profile,
    StageMemory,
    StageProfile,
    Step,
    load_profile_record,
)
from omni_cli.records.record_file import save_record
from omni_cli.report.profile_view import profile_view
from omni_cli.report.renderers import to_text
from omni_cli.requests.outputs import RequestResult, StageTrace
from omni_cli.stage.recording import (
    Attention,
    Linear,
    MachineRates,
    Recording,
    RequestSpan,
    StageDescription,
    WorkPart,
)

MIB = 2**20
MS = 10**6


def iteration(e2e_s: float) -> Iteration:
    trace = StageTrace("image", "diffusion", e2e_s * 0.9)
    return Iteration(e2e_s, (Finished(RequestResult("0", (), (trace,)), e2e_s),), (("image", "diffusion"),))


def stage(**changes: Any) -> StageProfile:
    """A stage that gives no hints."""
    fields = {
        "name": "image",
        "kind": "diffusion",
        "backend": "diffusers",
        "device": "cpu",
        "effective": {"execution": "eager"},
        "load_s": 1.0,
        "latency_s": 0.1,
        "unprofiled_latency_s": 0.09,
        "activity": Activity(
            device="cpu", num_threads=2, window_s=0.1, capacity_s=0.2, busy_s=0.1, busy_fraction=0.5, idle_fraction=0.5,
            idle_s={"between operators": 0.1},
        ),
        "memory": StageMemory(measure="host_rss", peak_bytes=600 * MIB, peak_phase="load"),
    }  # fmt: skip
    return StageProfile(**{**fields, **changes})


def profile(*stages: StageProfile) -> Profile:
    overhead = (Overhead(metric="e2e_s", unprofiled_s=0.1, profiled_s=0.12, ratio=1.2, ci95=(1.1, 1.3)),)
    return Profile(
        created="2026-01-01T00:00:00Z",
        environment={"machine": {"cpu": "a processor"}},
        workload={"profile": "tiny-image", "stages": ["image"], "stage": "all", "batch_size": 1},
        num_iters=8,
        num_iters_warmup=2,
        e2e_s=0.12,
        overhead=overhead,
        stages=stages,
        request=(),
        stage_seconds={"image": 0.11, "other": 0.01},
        hints=find_hints(stages, overhead),
        trace="trace.json.gz",
    )


def test_a_record_survives_the_disk_and_an_edit_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    saved = profile(stage())
    save_record(saved, path)
    loaded = load_profile_record(path)
    assert msgspec.structs.replace(loaded, digest=None) == saved
    path.write_text(path.read_text().replace('"e2e_s": 0.12', '"e2e_s": 0.02'))
    with pytest.raises(InputError, match="changed after it was written"):
        load_profile_record(path)
    path.write_text('{"schema": "omni.bench/1"}')
    with pytest.raises(InputError, match=r"a profile record has `omni\.profile/1`"):
        load_profile_record(path)
    with pytest.raises(OutputError):
        save_record(saved, path / "below a file")


def test_overhead_with_an_interval_where_there_are_enough_iterations() -> None:
    plain = [iteration(0.1 + 0.001 * n) for n in range(8)]
    slowed = (1.48, 1.49, 1.52, 1.50, 1.51, 1.495, 1.505, 1.47)
    profiled = [iteration(one.e2e_s * factor) for one, factor in zip(plain, slowed, strict=True)]
    e2e, latency = measure_overhead(plain, profiled)
    assert (e2e.metric, latency.metric) == ("e2e_s", "image.latency_s")
    assert e2e.ratio == pytest.approx(1.5, rel=0.005)
    assert 1.4 < e2e.ci95[0] < 1.5 < e2e.ci95[1] < 1.6
    assert measure_overhead(plain[:2], profiled[:2])[0].ci95 is None


def recorded(*spans: tuple[int, int]) -> Recording:
    requests = tuple(RequestSpan("0", begin * MS, end * MS) for begin, end in spans)
    return Recording(0, 0, requests, (), (), 0, None)


def test_stage_times_add_up_also_where_stages_overlap() -> None:
    apart = stage_seconds(0, 0.020, {"a": recorded((1, 5)), "b": recorded((7, 19))})
    assert apart == pytest.approx({"a": 0.004, "b": 0.012, "a -> b": 0.002, "other": 0.002})
    together = stage_seconds(0, 0.020, {"a": recorded((0, 10)), "b": recorded((4, 20))})
    assert together == pytest.approx({"a": 0.010, "b": 0.010, "other": 0.0})


RATES = MachineRates(flops_per_second=1e9, copied_bytes_per_second=1e8, dtype="float32")


def described(**changes: Any) -> StageDescription:
    fields = {
        "device": "cpu", "dtype": "float32", "num_threads": 1, "ranks_elsewhere": 0, "marks_modules": True,
        "load": recorded(), "residents": (),
    }  # fmt: skip
    return StageDescription(**{**fields, **changes})


def test_roofline_of_counted_work_takes_the_tighter_limit_of_each_part() -> None:
    work = msgspec.structs.replace(
        recorded(), work=(WorkPart("a", "mm", 2, 1e8, 1e6), WorkPart("b", "mm", 1, 1e6, 1e7)), omitted=("_C::x",)
    )
    roofline = compute_roofline(described(), RATES, work, [], 1, 1.0)
    assert [(part.module, part.limit) for part in roofline.parts] == [("a", "compute"), ("b", "memory")]
    assert roofline.bound_s == pytest.approx(0.1 + 0.1) and roofline.fraction == pytest.approx(0.2)
    assert any("_C::x" in text for text in roofline.omitted)
    assert compute_roofline(described(), RATES, recorded(), [], 1, 1.0) is None, "nothing is known of the work"


def test_roofline_of_an_ar_stage_against_a_count_token_by_token() -> None:
    """A prompt of 3 tokens and 4 generated ones: one step reads the prompt, three read a token each."""
    stage = described(
        linears=(Linear("up", 50, 200, "token"), Linear("head", 70, 280, "sample")),
        attentions=(Attention("attn", num_heads=4, num_kv_heads=2, head_size=8, item_bytes=4),),
    )
    request = StageTrace("thinker", "ar", 1.0, num_input_tokens=3, num_output_tokens=4)
    parts = {part.module: part for part in compute_roofline(stage, RATES, recorded(), [request], 4, 1.0).parts}
    assert parts["up"].flops == 2 * 50 * (3 + 1 + 1 + 1) and parts["up"].moved_bytes == 4 * 200
    assert parts["head"].flops == 2 * 70 * 4 and parts["head"].moved_bytes == 4 * 280
    seen = [1, 2, 3, 4, 5, 6]
    assert parts["attn"].flops == sum(2 * 2 * 4 * 8 * length for length in seen)
    assert parts["attn"].moved_bytes == sum(2 * 2 * 8 * 4 * rows for rows in (3, 4, 5, 6))


def test_roofline_of_experts_and_of_a_code_predictor() -> None:
    """A prompt of 3 tokens and 4 generated ones, 2 of 4 experts per token; a predictor of three codes reads its layers
    twice."""
    stage = described(
        linears=(
            Linear("experts", 50, 200, "token", num_experts=4, num_active=2),
            Linear("predictor", 30, 120, "sample", num_rows=3, num_reads=2),
        ),
        uncounted=("module bridge",),
    )
    request = StageTrace("talker", "ar", 1.0, num_input_tokens=3, num_output_tokens=4)
    roofline = compute_roofline(stage, RATES, recorded(), [request], 4, 1.0)
    parts = {part.module: part for part in roofline.parts}
    assert parts["experts"].flops == 2 * 50 * 2 * (3 + 1 + 1 + 1), "of the active ones alone"
    # An expert is left out by a token in one of two cases; a step of one token reads its two.
    assert parts["experts"].moved_bytes == pytest.approx(200 * (4 * (1 - 1 / 2**3) + 2 + 2 + 2))
    assert parts["predictor"].flops == 2 * 30 * 3 * 4 and parts["predictor"].moved_bytes == 120 * 2 * 4
    assert "module bridge" in roofline.omitted


def test_hints_follow_from_the_numbers() -> None:
    assert find_hints([stage()], []) == ()
    gaps = LaunchGaps(count=9, total_s=0.05, median_s=1e-5, largest_s=0.01, fraction_of_steps=0.5)
    (hint,) = find_hints([stage(launch_gaps=gaps)], [])
    assert "50%" in hint.message and "image.execution=compile" in hint.advice
    cuda = msgspec.structs.replace(stage().activity, device="cuda")
    (hint,) = find_hints([stage(launch_gaps=gaps, activity=cuda)], [])
    assert "image.execution=cudagraph" in hint.advice
    (hint,) = find_hints([stage(launch_gaps=gaps, activity=cuda, effective={"execution": "cudagraph"})], [])
    assert "execution" not in hint.advice, "no advice to enable what is enabled"
    step = Step(name="engine step", number=1, median_s=0.01, samples_s=(0.01,), usual_s=0.01, outlier=False)
    (hint,) = find_hints([stage(launch_gaps=gaps, steps=(step,))], [])
    assert "--batch-size" in hint.advice, "a codec denoises nothing, and has no other execution"
    place = CopyPlace(range="text encode", operator="aten::clone", module=None, calls=1, copied_bytes=1, seconds=0.02)
    (hint,) = find_hints([stage(copies=Copies(places=(place,)))], [])
    assert "text encode (aten::clone)" in hint.message and "20%" in hint.message
    phase = PhaseMemory(
        name="vae decode", start_s=0, duration_s=1, peak_host_rss_bytes=600 * MIB, added_bytes=200 * MIB
    )
    (hint,) = find_hints([stage(memory=msgspec.structs.replace(stage().memory, phases=(phase,)))], [])
    assert hint.message.startswith("vae decode holds 200 MiB")


def test_the_summary_matches_the_record() -> None:
    steps = tuple(
        Step(name="denoising step", number=n, median_s=0.03 if n == 2 else 0.01, samples_s=(0.01,), usual_s=0.01,
             outlier=n == 2)
        for n in (1, 2, 3)
    )  # fmt: skip
    text = to_text(profile_view(profile(stage(steps=steps))))
    for part in (
        "tiny-image: image, batch 1, a processor",
        "1.20 [1.10, 1.30]",
        "busy: 50% of 2 threads, 50% idle (between operators 50%)",
        "3 denoising steps: 10.0 30.0! 10.0 ms",
        "outlier: denoising step 2 takes 30 ms, its neighbours 10 ms",
        "memory: peak 600 MiB resident on the host, in load",
        "image 110 ms, other 10 ms",
        "Hints\n  - image: denoising step 2 takes 30 ms",
    ):
        assert part in text, text
