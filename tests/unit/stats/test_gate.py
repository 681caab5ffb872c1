"""The gate: passes, regressions and everything that is neither."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from support.bench_records import ABBA, correlated, pair, record, variant

from omni_cli.config.gate_limits import GateLimits
from omni_cli.core.errors import ExitCode
from omni_cli.records.record import Energy, Memory, StoppingPlan, Variant
from omni_cli.records.results import EXIT_CODES, Difference, GateResult, Outputs
from omni_cli.stats.compare import MARGIN, Compared, compare_variants, memory_peaks
from omni_cli.stats.gate import judge
from omni_cli.stats.verdicts import ComparisonSpec, compare_within

RANK = {"regression": 0, "inconclusive": 1, "pass": 2}


def gate_of(a: Variant, b: Variant, **metrics: float) -> GateResult:
    return judge(GateLimits(metrics or {"e2e_s": 0.02}), compare_variants(a, b, same_record=True), [], {})


@pytest.mark.slow
@given(st.integers(2, 40), st.sampled_from([0.9, 1.0, 1.02, 1.05, 1.3]), st.integers(0, 1000), st.floats(0.001, 0.05))
@settings(max_examples=40, deadline=None)
def test_the_verdict_is_monotone_in_the_limit(blocks: int, slowdown: float, seed: int, cv: float) -> None:
    both = pair(blocks, slowdown, seed=seed, cv=cv)
    verdicts = [gate_of(*both, e2e_s=limit).verdict for limit in np.geomspace(0.001, 2, 25)]
    ranks = [RANK[verdict] for verdict in verdicts]
    assert ranks == sorted(ranks)


def with_energy(source: Variant, joules: float, *, every: int = 1, energy: Energy | None = None) -> Variant:
    """Give the last sample of every so many blocks an energy that follows its time."""
    samples = [
        replace(sample, metrics={**sample.metrics, "energy_j": joules * sample.e2e_s})
        if sample is last[sample.block] and sample.block % every == every - 1
        else sample
        for last in [{sample.block: sample for sample in source.samples}]
        for sample in source.samples
    ]
    return replace(source, samples=tuple(samples), energy=energy)


@pytest.mark.parametrize("every", [1, 4])
def test_energy_is_gated_like_a_time(every: int) -> None:
    """Also if each of its figures is of several blocks."""
    a, b = pair(40, cv=0.005, seed=3)
    a = with_energy(a, 900.0, every=every)
    verdicts = {}
    for joules in (900.0, 1080.0, 720.0):
        (metric,) = gate_of(a, with_energy(b, joules, every=every), energy_j=0.1).metrics
        assert metric.change == pytest.approx(joules / 900 - 1, abs=0.02)
        verdicts[joules] = metric.verdict
    assert verdicts == {900.0: "pass", 1080.0: "regression", 720.0: "pass"}


def test_energy_that_was_not_measured_passes_no_gate() -> None:
    a, b = pair(40)
    (metric,) = judge(
        GateLimits({"energy_j": 0.1}), compare_variants(a, b, same_record=True), [], {("a", "b"): Outputs()}
    ).metrics
    assert metric.verdict == "inconclusive" and "needs a counter of energy" in str(metric.reason)
    b = replace(b, energy=Energy(absent="no NVIDIA device with a counter, and no RAPL"))
    (item,) = compare_variants(a, b, same_record=True, metrics=["energy_j"])
    assert (item.result.verdict, item.result.reason) == ("inconclusive", "no NVIDIA device with a counter, and no RAPL")
    assert "energy_j" not in [found.result.metric for found in compare_variants(a, b, same_record=True)]


def test_energy_has_the_level_of_the_blocks_that_ran() -> None:
    """A figure of four blocks is looked at as often as the blocks are."""
    a, b = (with_energy(item, 900.0, every=4) for item in pair(64, cv=0.01))
    plan = [StoppingPlan(looks=(8, 16, 32, 64, 128))]
    times, energy = compare_variants(a, b, same_record=True, sampling=plan, metrics=["e2e_s", "energy_j"])
    assert (times.result.blocks, energy.result.blocks) == (64, 16)
    assert times.level == energy.level < 0.05


@pytest.mark.slow
@given(st.sampled_from([1.0, 1.02, 1.05]), st.integers(0, 1000))
@settings(max_examples=40, deadline=None)
def test_pass_and_regression_need_the_whole_interval(slowdown: float, seed: int) -> None:
    (metric,) = gate_of(*pair(40, slowdown, seed=seed), e2e_s=0.02).metrics
    low, high = metric.ci95
    expected = "pass" if high < 0.02 else "regression" if low > 0.02 else "inconclusive"
    assert metric.verdict == expected
    assert metric.blocks_needed is None or expected == "inconclusive"


def test_more_slowdown_of_a_rate_is_worse() -> None:
    times = correlated(np.random.default_rng(0), (160,), lag1=0.5, cv=0.01).reshape(40, 4)
    a = variant("a", times[:, [0, 3]], slots=ABBA[0], metrics={"images_per_second": 10.0})
    b = variant("b", times[:, [1, 2]] * 0.9, slots=ABBA[1], metrics={"images_per_second": 10.0})
    gate = gate_of(a, b, images_per_second=0.05, e2e_s=0.05)
    verdicts = {metric.metric: metric.verdict for metric in gate.metrics}
    assert verdicts == {"images_per_second": "regression", "e2e_s": "pass"}
    rate = next(metric for metric in gate.metrics if metric.metric == "images_per_second")
    assert rate.change == pytest.approx(1 / 0.9 - 1, abs=0.01)


@pytest.mark.slow
def test_false_alarms_of_many_metrics_stay_one_family() -> None:
    """Ten unrelated metrics exactly at their limit: a regression in at most 2.5 % of the gates."""
    names = [f"m{number}_s" for number in range(10)]
    limits = GateLimits(dict.fromkeys(names, 0.05))
    alarms = alone = 0
    repetitions = 400
    for seed in range(repetitions):
        rng = np.random.default_rng(seed)
        comparisons: list[Compared] = []
        for name in names:
            noise = np.exp(0.02 * rng.standard_normal((20, 4)))
            both = [
                variant(which, noise[:, columns] * factor, slots=slots, metrics={name: 1.0})
                for which, columns, factor, slots in (("a", [0, 3], 1.0, ABBA[0]), ("b", [1, 2], 1.05, ABBA[1]))
            ]
            comparisons += compare_variants(*both, same_record=True, metrics=[name])
        alarms += judge(limits, comparisons, [], {}).verdict == "regression"
        alone += any(
            judge(GateLimits({name: 0.05}), [item], [], {}).verdict == "regression"
            for name, item in zip(names, comparisons, strict=True)
        )
    assert alarms / repetitions <= 0.025 + 3 * np.sqrt(0.025 / repetitions)
    assert alone / repetitions > 0.12  # what would happen without the correction


def test_holm_reports_the_required_p_value() -> None:
    # One metric a little beyond its limit among seven others that are not.
    found = None
    for seed in range(200):
        both = pair(30, 1.035, seed=seed)
        (item,) = compare_variants(*both, same_record=True, metrics=["e2e_s"])
        if judge(GateLimits({"e2e_s": 0.02}), [item], [], {}).verdict == "regression":
            p = item.estimate.tail(np.log(1.02))
            if p > 0.01:
                found = both
                break
    assert found is not None
    times = [np.array([s.e2e_s for s in v.samples]).reshape(-1, 2) for v in found]
    still = {f"m{number}_s": 1.0 for number in range(7)}
    a = variant("a", times[0], slots=ABBA[0], metrics=still)
    b = variant("b", times[1], slots=ABBA[1])
    b = variant("b", times[1], slots=ABBA[1], metrics={name: 1 / 1.035 for name in still})
    gate = gate_of(a, b, e2e_s=0.02, **dict.fromkeys(still, 0.5))
    first = next(metric for metric in gate.metrics if metric.metric == "e2e_s")
    assert first.verdict == "inconclusive"
    assert "one of 8 gated metrics" in first.reason
    assert first.blocks_needed >= 1
    assert gate.verdict == "inconclusive"


@pytest.mark.parametrize(
    ("a_bytes", "b_bytes", "verdict"),
    [
        (1000, 1000, "pass"),
        (1000, 1020, "pass"),
        (1000, 1021, "regression"),
        (1000, 500, "pass"),
        (0, 0, "inconclusive"),
        (None, 5, "inconclusive"),
    ],
)
def test_memory_is_exact(a_bytes: int | None, b_bytes: int | None, verdict: str) -> None:
    a, b = (
        Variant(name=name, memory=Memory(peak_allocated_bytes=size)) for name, size in (("a", a_bytes), ("b", b_bytes))
    )
    for limits in (GateLimits({"peak_allocated_bytes": 0.02}), GateLimits({}, memory=0.02)):
        assert judge(limits, [], memory_peaks(a, b, MARGIN), {}).verdict == verdict


MIB = 2**20


def on_host(name: str, load_mib: float, run_mib: float) -> Variant:
    """A variant without a device, with one stage of these resident peaks."""
    peaks = {"load": load_mib * MIB, "run": run_mib * MIB}
    stages = {"image": {phase: {"peak_host_rss_bytes": int(size)} for phase, size in peaks.items()}}
    return Variant(name=name, memory=Memory(peak_host_rss_bytes=int(run_mib * MIB), stages=stages))


@pytest.mark.parametrize(
    ("load", "before", "after", "verdict"),
    [
        # What the same code was called before its noise was known.
        (378, 428, 450, "inconclusive"),
        (378, 428, 410, "inconclusive"),
        (378, 428, 428, "inconclusive"),
        (378, 428, 500, "more memory"),
        (378, 500, 428, "less memory"),
        # What running adds is little beside what is loaded.
        (20_000, 20_050, 20_070, "no difference"),
    ],
)
def test_host_rss_has_a_verdict_only_beyond_its_noise(load: float, before: float, after: float, verdict: str) -> None:
    (peak,) = memory_peaks(on_host("a", load, before), on_host("b", load, after), MARGIN)
    assert peak.verdict == verdict
    bounds: Any = peak.bounds
    low, high = bounds
    assert low < peak.ratio < high


@pytest.mark.parametrize(
    ("after", "limit", "verdict"),
    [(428, 0.02, "inconclusive"), (428, 0.10, "pass"), (500, 0.02, "regression"), (500, 0.5, "pass")],
)
def test_a_limit_on_memory_is_about_the_host_without_a_device(after: float, limit: float, verdict: str) -> None:
    peaks = memory_peaks(on_host("a", 378, 428), on_host("b", 378, after), MARGIN)
    gate = judge(GateLimits({}, memory=limit, places={"max_memory_regression": "g.yaml:3:1"}), [], peaks, {})
    (metric,) = gate.metrics
    assert (gate.verdict, metric.metric, metric.place) == (verdict, "peak_host_rss_bytes", "g.yaml:3:1")
    assert ("two loads of the same code differ" in (metric.reason or "")) == (verdict == "inconclusive")


@pytest.mark.parametrize(
    ("allowed", "identical", "difference", "verdict"),
    [
        (None, False, 1.0, "pass"),
        (0.0, True, 0.0, "pass"),
        (0.0, False, 1e-9, "output mismatch"),
        (0.0, False, None, "output mismatch"),
        (0.0, None, None, "inconclusive"),
        (1e-3, False, 1e-4, "pass"),
        (1e-3, False, 1e-2, "output mismatch"),
        (1e-3, False, None, "output mismatch"),
    ],
)
def test_outputs(allowed: float | None, identical: bool | None, difference: float | None, verdict: str) -> None:
    comparisons = compare_variants(*pair(40, cv=0.001), same_record=True)
    outputs = {("a", "b"): Outputs(identical, difference)}
    assert judge(GateLimits({"e2e_s": 0.05}, allowed), comparisons, [], outputs).verdict == verdict


def test_the_worst_part_decides() -> None:
    limits = GateLimits({"e2e_s": 0.02}, 0.0)
    slow = compare_variants(*pair(40, 1.5, cv=0.001), same_record=True)
    differ = {("a", "b"): Outputs(False, 1.0)}
    mismatch = [Difference("workload.batch_size", 1, 8)]
    assert judge(limits, slow, [], {}).verdict == "regression"
    assert judge(limits, slow, [], differ).verdict == "output mismatch"
    gate = judge(limits, slow, [], differ, mismatches=mismatch)
    assert (gate.verdict, gate.metrics) == ("not comparable", ())
    assert judge(limits, slow, [], differ, mismatches=mismatch, failures=["out of memory"]).verdict == "failed"


def test_a_limit_on_a_missing_metric_does_not_pass() -> None:
    comparisons = compare_variants(*pair(40, cv=0.001), same_record=True)
    gate = judge(GateLimits({"e2e_s": 0.05, "rtf": 0.05}), comparisons, [], {})
    assert gate.verdict == "inconclusive"
    assert {metric.metric: metric.verdict for metric in gate.metrics} == {"e2e_s": "pass", "rtf": "inconclusive"}


def test_a_pair_without_the_metric_does_not_pass_with_the_others() -> None:
    a, b = pair(40, cv=0.001)
    alone = variant("c", np.full((0, 2), 0.1), slots=(0, 1))
    gate = compare_within(record(a, b, alone), ComparisonSpec(limits=GateLimits({"e2e_s": 0.05}))).gate
    assert gate is not None and gate.verdict == "inconclusive"
    assert [(metric.b, metric.verdict) for metric in gate.metrics] == [("b", "pass"), ("c", "inconclusive")]


def test_exit_codes_are_those_of_the_contract() -> None:
    assert {name: int(code) for name, code in EXIT_CODES.items()} == {
        "pass": 0, "regression": 1, "inconclusive": 3, "not comparable": 4, "output mismatch": 5, "failed": 6,
    }  # fmt: skip
    assert GateResult(verdict="pass").exit_code is ExitCode.OK


def test_a_failed_variant_fails_the_gate() -> None:
    a, b = pair(20)
    broken = variant("b", np.full((3, 2), 0.1), slots=ABBA[1], error="out of memory in block 3", memory=Memory())
    found = compare_within(record(a, broken), ComparisonSpec(limits=GateLimits({"e2e_s": 0.05})))
    assert found.gate.verdict == "failed"
    assert found.gate.reasons == ("variant `b` failed: out of memory in block 3",)
    assert compare_within(record(a, b)).gate is None
