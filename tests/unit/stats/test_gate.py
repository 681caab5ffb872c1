"""The gate: passes, regressions and everything that is neither."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.bench_records import ABBA, correlated, pair, record, variant

from omni_cli.config.gate_file import GateLimits
from omni_cli.errors import ExitCode
from omni_cli.record import Memory, Variant
from omni_cli.stats.comparable import Difference
from omni_cli.stats.compare import compare_variants
from omni_cli.stats.findings import compare_within
from omni_cli.stats.gate import EXIT_CODES, Gate, MemoryPeak, Outputs, judge

RANK = {"regression": 0, "inconclusive": 1, "pass": 2}


def gate_of(a: Variant, b: Variant, **metrics: float) -> Gate:
    return judge(GateLimits(metrics or {"e2e_s": 0.02}), compare_variants(a, b, same_record=True), [], [])


@pytest.mark.slow
@given(st.integers(2, 40), st.sampled_from([0.9, 1.0, 1.02, 1.05, 1.3]), st.integers(0, 1000), st.floats(0.001, 0.05))
@settings(max_examples=40, deadline=None)
def test_the_verdict_is_monotone_in_the_limit(blocks: int, slowdown: float, seed: int, cv: float) -> None:
    both = pair(blocks, slowdown, seed=seed, cv=cv)
    verdicts = [gate_of(*both, e2e_s=limit).verdict for limit in np.geomspace(0.001, 2, 25)]
    ranks = [RANK[verdict] for verdict in verdicts]
    assert ranks == sorted(ranks)


@pytest.mark.slow
@given(st.sampled_from([1.0, 1.02, 1.05]), st.integers(0, 1000))
@settings(max_examples=40, deadline=None)
def test_pass_and_regression_need_the_whole_interval(slowdown: float, seed: int) -> None:
    (metric,) = gate_of(*pair(40, slowdown, seed=seed), e2e_s=0.02).metrics
    low, high = metric.interval
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
    """Ten unrelated metrics that lie on their limit: any regression at all in at most 2.5 % of the gates."""
    names = [f"m{number}_s" for number in range(10)]
    limits = GateLimits(dict.fromkeys(names, 0.05))
    alarms = alone = 0
    repetitions = 400
    for seed in range(repetitions):
        rng = np.random.default_rng(seed)
        comparisons = []
        for name in names:
            noise = np.exp(0.02 * rng.standard_normal((20, 4)))
            both = [
                variant(which, noise[:, columns] * factor, slots=slots, metrics={name: 1.0})
                for which, columns, factor, slots in (("a", [0, 3], 1.0, ABBA[0]), ("b", [1, 2], 1.05, ABBA[1]))
            ]
            comparisons += compare_variants(*both, same_record=True, metrics=[name])
        alarms += judge(limits, comparisons, [], []).verdict == "regression"
        alone += any(
            judge(GateLimits({name: 0.05}), [item], [], []).verdict == "regression"
            for name, item in zip(names, comparisons, strict=True)
        )
    assert alarms / repetitions <= 0.025 + 3 * np.sqrt(0.025 / repetitions)
    assert alone / repetitions > 0.12  # what would happen without the correction


def test_holm_says_what_it_needs() -> None:
    # One metric a little beyond its limit among seven others that are not.
    found = None
    for seed in range(200):
        both = pair(30, 1.035, seed=seed)
        (item,) = compare_variants(*both, same_record=True, metrics=["e2e_s"])
        if judge(GateLimits({"e2e_s": 0.02}), [item], [], []).verdict == "regression":
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
    peak = MemoryPeak("peak_allocated_bytes", "a", "b", a_bytes, b_bytes)
    gate = judge(GateLimits({"peak_allocated_bytes": 0.02}), [], [peak], [])
    assert gate.verdict == verdict


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
    outputs = [Outputs("a", "b", identical, difference)]
    assert judge(GateLimits({"e2e_s": 0.05}, allowed), comparisons, [], outputs).verdict == verdict


def test_the_worst_part_decides() -> None:
    limits = GateLimits({"e2e_s": 0.02}, 0.0)
    slow = compare_variants(*pair(40, 1.5, cv=0.001), same_record=True)
    differ = [Outputs("a", "b", False, 1.0)]
    mismatch = [Difference("workload.batch_size", 1, 8)]
    assert judge(limits, slow, [], []).verdict == "regression"
    assert judge(limits, slow, [], differ).verdict == "output mismatch"
    gate = judge(limits, slow, [], differ, mismatches=mismatch)
    assert (gate.verdict, gate.metrics) == ("not comparable", ())
    assert judge(limits, slow, [], differ, mismatches=mismatch, failures=["out of memory"]).verdict == "failed"


def test_a_limit_on_what_was_not_measured_does_not_pass() -> None:
    comparisons = compare_variants(*pair(40, cv=0.001), same_record=True)
    gate = judge(GateLimits({"e2e_s": 0.05, "rtf": 0.05}), comparisons, [], [])
    assert gate.verdict == "inconclusive"
    assert {metric.metric: metric.verdict for metric in gate.metrics} == {"e2e_s": "pass", "rtf": "inconclusive"}


def test_exit_codes_are_those_of_the_contract() -> None:
    assert {name: int(code) for name, code in EXIT_CODES.items()} == {
        "pass": 0, "regression": 1, "inconclusive": 3, "not comparable": 4, "output mismatch": 5, "failed": 6,
    }  # fmt: skip
    assert Gate("pass", GateLimits({})).exit_code is ExitCode.OK


def test_a_variant_that_broke_off_fails_the_gate() -> None:
    a, b = pair(20)
    broken = variant("b", np.full((3, 2), 0.1), slots=ABBA[1], error="out of memory in block 3", memory=Memory())
    found = compare_within(record(a, broken), limits=GateLimits({"e2e_s": 0.05}))
    assert found.gate.verdict == "failed"
    assert found.gate.reasons == ("variant `b` broke off: out of memory in block 3",)
    assert compare_within(record(a, b)).gate is None
