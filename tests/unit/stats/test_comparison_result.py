"""Comparability: machine, versions, workload, settings, work, and variants by name."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from support.bench_records import ENVIRONMENT, pair, record, variant

from omni_cli.config.gate_limits import GateLimits
from omni_cli.core.errors import ExitCode, InputError, UsageError
from omni_cli.records.record import Failures, Record, Variant
from omni_cli.records.results import Comparison, Difference, Outputs
from omni_cli.stats.comparable import ABSENT
from omni_cli.stats.gate import check_limits
from omni_cli.stats.verdicts import ComparisonSpec, compare_records, compare_within

LIMITS = GateLimits({"e2e_s": 0.05})


def renamed(source: Variant, **fields: Any) -> Variant:
    return msgspec.structs.replace(source, **fields)


def two(environment: dict[str, Any] | None = None, **workload: Any) -> tuple[Record, Record]:
    """Two records of one variant each; the second with another environment or workload."""
    a, b = pair(20, cv=0.001)
    return record(renamed(a, name="x")), record(renamed(b, name="x"), environment=environment, **workload)


def environment(**parts: Any) -> dict[str, Any]:
    return {**ENVIRONMENT, **parts}


@pytest.mark.parametrize(
    ("second", "field"),
    [
        ({"environment": environment(machine={"cpu": "Test 2", "usable_cores": 2})}, "environment.machine.cpu"),
        ({"environment": environment(versions={"python": "3.11.7"})}, "environment.versions.torch"),
        ({"environment": environment(variables={"OMP_NUM_THREADS": "1"})}, "environment.variables"),
        ({"batch_size": 8}, "workload.batch_size"),
        ({"batch_size": True}, "workload.batch_size"),
        ({"input_len": 4}, "workload.input_len"),
    ],
)
def test_mismatches_are_named_and_are_no_verdict(second: dict[str, Any], field: str) -> None:
    found = compare_records(*two(**second), ComparisonSpec(limits=LIMITS))
    assert [item.field for item in found.mismatches] == [field]
    assert not found.is_comparable
    assert found.gate.verdict == "not comparable"
    assert compare_records(*two(**second)).gate is None
    allowed = compare_records(*two(**second), ComparisonSpec(limits=LIMITS, allowed=(field.rpartition(".")[0],)))
    assert allowed.is_comparable
    assert [item.field for item in allowed.differences] == [field]
    assert allowed.gate.verdict == "pass"


def test_load_and_code_may_differ() -> None:
    other = environment(conditions={"load_average": 7}, code={"omni": "0.2.0", "commit": "b2"})
    found = compare_records(*two(environment=other), ComparisonSpec(limits=LIMITS))
    assert found.is_comparable
    assert [item.field for item in found.differences] == ["code.omni", "code.commit"]


def test_only_the_fingerprint_differs() -> None:
    a, b = two()
    b = msgspec.structs.replace(b, workload={**b.workload, "fingerprint": "sha256:0"})
    (mismatch,) = compare_records(a, b).mismatches
    assert mismatch.field == "workload.fingerprint"


def test_other_work_is_not_comparable() -> None:
    a, b = two()
    longer = renamed(
        b.variants[0],
        samples=tuple(
            msgspec.structs.replace(s, work={"output_tokens": 24.0, "pixels": 9.0}) for s in b.variants[0].samples
        ),
    )
    found = compare_records(a, msgspec.structs.replace(b, variants=(longer,)), ComparisonSpec(limits=LIMITS))
    assert found.mismatches == (
        Difference("work.audio_s", "0.48", ABSENT),
        Difference("work.output_tokens", "16", "24"),
        Difference("work.pixels", ABSENT, "9"),
    )
    assert found.gate.verdict == "not comparable"


def with_steps(source: Variant, steps: float, **settings: Any) -> Variant:
    samples = tuple(msgspec.structs.replace(s, work={**s.work, "denoise_steps": steps}) for s in source.samples)
    return renamed(source, samples=samples, settings=settings)


@pytest.mark.parametrize(
    "key", ["num_inference_steps", "image.num_inference_steps", "model", "thinker.sampling.max_tokens"]
)
def test_a_varied_setting_may_change_the_work(key: str) -> None:
    a, b = pair(20, 1.5, cv=0.001)
    a, b = with_steps(a, 10.0, **{key: 10}), with_steps(b, 20.0, **{key: 20})
    found = compare_within(record(a, b), ComparisonSpec(limits=GateLimits({"e2e_s": 0.05})))
    assert found.is_comparable and found.mismatches == ()
    assert found.gate.verdict == "regression" and found.exit_code == 1
    (difference,) = found.pairs[0].work
    assert difference == Difference("work.denoise_steps", "10", "20")
    assert all(item.work == (difference,) for item in found.comparisons)


@pytest.mark.parametrize("key", ["execution", "image.max_num_seqs", "env.OMP_NUM_THREADS", "code"])
def test_work_that_no_varied_setting_explains_is_not_comparable(key: str) -> None:
    a, b = pair(20, 1.5, cv=0.001)
    a, b = with_steps(a, 10.0, **{key: "x"}), with_steps(b, 20.0, **{key: "y"})
    found = compare_within(record(a, b))
    assert [item.field for item in found.mismatches] == ["work.denoise_steps"]
    assert not found.is_comparable and found.exit_code == 4 and found.pairs[0].work == ()
    assert compare_within(record(a, b), ComparisonSpec(limits=LIMITS)).gate.verdict == "not comparable"


def test_runs_of_a_variant_may_do_different_work() -> None:
    def cycled(source: Variant) -> Variant:
        return renamed(
            source,
            samples=tuple(
                msgspec.structs.replace(s, work={"output_tokens": float(8 + s.block % 3)}) for s in source.samples
            ),
        )

    a, b = pair(20)
    assert compare_within(record(cycled(a), cycled(b))).mismatches == ()


def test_settings_are_the_point_within_a_record_and_a_mistake_between_two() -> None:
    a, b = pair(20, cv=0.001)
    eager, compiled = renamed(a, settings={"execution": "eager"}), renamed(b, settings={"execution": "compile"})
    (found,) = compare_within(record(eager, compiled)).pairs
    assert found.differences == (Difference("settings.execution", "eager", "compile"),)
    by_name = compare_records(record(renamed(eager, name="x")), record(renamed(compiled, name="x")))
    assert [item.field for item in by_name.mismatches] == ["settings.execution"]
    other_names = compare_records(record(eager), record(compiled))
    assert other_names.is_comparable


def test_variants_are_matched_by_name() -> None:
    a, b = pair(20)
    c = renamed(b, name="c")
    found = compare_records(record(a, b), record(c, a))
    assert [(pair.a.name, pair.b.name) for pair in found.pairs] == [("a", "a")]
    assert found.unmatched == ("b", "c")
    with pytest.raises(InputError, match="no variant in common: `a`, `b` in the first, `c` in the second"):
        compare_records(record(a, b), record(c))


def test_unknown_metrics() -> None:
    a, b = pair(20)
    with pytest.raises(UsageError, match="unknown metric `ttff_s`") as caught:
        compare_within(record(a, b), ComparisonSpec(metrics=("ttff_s",)))
    assert caught.value.hint == "did you mean `ttft_s`?"
    with pytest.raises(UsageError) as caught:
        compare_records(record(a), record(renamed(b, name="a")), ComparisonSpec(metrics=("zzz",)))
    assert caught.value.hint == "there are e2e_s, ttft_s, peak_allocated_bytes, peak_host_rss_bytes"
    found = compare_within(record(a, b), ComparisonSpec(metrics=("ttft_s",)))
    assert [item.metric for item in found.comparisons] == ["ttft_s"]


def test_outputs_by_hash_and_by_recorded_difference() -> None:
    a, b = pair(20)
    assert compare_within(record(a, b)).pairs[0].outputs.identical is True
    other = renamed(b, output_sha256="beef")
    assert compare_within(record(a, other)).pairs[0].outputs.identical is False
    measured = msgspec.structs.replace(
        record(a, other),
        comparisons=(Comparison(metric="e2e_s", a="a", b="b", outputs=Outputs(False, 1e-7)),),
    )
    assert compare_within(measured).pairs[0].outputs.max_abs_diff == 1e-7
    assert compare_within(record(a, renamed(b, output_sha256=None))).pairs[0].outputs.identical is None


def test_is_decided() -> None:
    assert compare_within(record(*pair(40, 1.5, cv=0.001))).is_decided
    assert not compare_within(record(*pair(4, 1.5, cv=0.001))).is_decided
    close = record(*pair(40, 1.05, seed=2))
    assert compare_within(close).is_decided
    assert not compare_within(close, ComparisonSpec(limits=GateLimits({"e2e_s": 0.05}))).is_decided
    noisy = record(*pair(10, 1.02, cv=0.2, seed=1))
    assert not compare_within(noisy, ComparisonSpec(metrics=("ttft_s",))).is_decided, (
        "the only metric of `--metric` is open"
    )
    assert compare_within(record(*pair(40, 1.5, cv=0.001)), ComparisonSpec(metrics=("ttft_s",))).is_decided


def test_interleaved() -> None:
    a, b = pair(20)
    assert compare_within(record(a, b)).interleaved
    assert not compare_records(record(a), record(renamed(b, name="a"))).interleaved
    times = np.array([s.e2e_s for s in b.samples]).reshape(-1, 2)
    assert not compare_within(record(a, variant("b", times, slots=(0, 3)))).interleaved


def test_any_failed_variant_fails_records_that_are_compared() -> None:
    """Also one that has no counterpart, one of the baseline, and requests that only the samples tell of."""
    a, b = two()
    broken = renamed(a.variants[0], name="new", error="out of memory")
    for first, second, where in ((a, b, " of B"), (b, a, " of A")):
        mixed = msgspec.structs.replace(b, variants=(*b.variants, broken))
        records = (first, mixed) if first is a else (mixed, second)
        found = compare_records(*records, ComparisonSpec(limits=LIMITS))
        assert found.failures == (f"variant `new`{where} failed: out of memory",)
        assert found.gate.verdict == "failed" and found.exit_code is ExitCode.RUN_FAILED
        assert compare_records(*records).exit_code is ExitCode.RUN_FAILED
    samples = [
        msgspec.structs.replace(
            sample, requests={"e2e_s": (0.1, None)}, failures={"timeout": Failures(count=1, first="late")}
        )
        for sample in b.variants[0].samples
    ]
    found = compare_records(a, record(renamed(b.variants[0], samples=tuple(samples))), ComparisonSpec(limits=LIMITS))
    assert found.failures == ("variant `x` of B failed: 40 of 80 requests failed: 40 x timeout; the first one: late",)


def test_a_metric_that_a_failed_variant_lacks_is_no_mistake() -> None:
    a, b = two()
    empty = record(renamed(b.variants[0], samples=(), error="out of memory"))
    assert compare_records(a, empty, ComparisonSpec(limits=LIMITS, metrics=("ttft_s",))).gate.verdict == "failed"
    check_limits(GateLimits({"ttft_s": 0.05}), [empty, empty])
    with pytest.raises(UsageError, match="unknown metric"):
        check_limits(GateLimits({"ttff_s": 0.05}), [a, b])
