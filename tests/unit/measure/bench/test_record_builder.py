"""A session is a valid record at any time; its statements about outputs and failures."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

from omni_cli.config.gate_limits import GateLimits
from omni_cli.config.loader import load_profile
from omni_cli.core.errors import ExitCode
from omni_cli.measure.bench.outputs import save_arrays
from omni_cli.measure.bench.protocol import LoadedStage, Ran, StagePeaks
from omni_cli.measure.bench.record_builder import MAX_OUTPUT_FILES, RecordBuilder
from omni_cli.measure.bench.variant_configs import VariantConfig
from omni_cli.measure.bench.workload import Workload
from omni_cli.records.record import load_record
from omni_cli.records.record_file import save_record
from omni_cli.stats.verdicts import ComparisonSpec


@pytest.fixture
def session(tmp_path: Path) -> RecordBuilder:
    variants = [VariantConfig("a", settings={"k": 1}), VariantConfig("b", settings={"k": 2})]
    workload = Workload().describe(load_profile("tiny-omni"))
    return RecordBuilder(variants, command=("omni", "bench"), environment={}, workload=workload, folder=tmp_path)


def ran(e2e_s: float = 0.1, sha: str = "x", share: float = 1.0) -> Ran:
    memory = {"thinker": StagePeaks({"host": 5}, {"host": 6})}
    return Ran(e2e_s, {"ttft_s": e2e_s / 2}, {"output_tokens": 8.0}, sha, {"stages": share}, memory)


def measure(session: RecordBuilder, blocks: int, factor: float = 1.0) -> None:
    source = np.random.default_rng(0)
    for block in range(blocks):
        for position, variant in enumerate((0, 1, 1, 0)):
            time = 0.1 * (1 + 0.01 * source.standard_normal()) * (factor if variant else 1)
            number = 2 * block + position // 2
            session.add_sample(variant, number, ran(time), block=block, position=position)


def test_it_is_a_valid_record_at_any_moment(session: RecordBuilder, tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    save_record(session.record(), path)
    assert not session.has_samples and load_record(path) == load_record(path)
    measure(session, 1)
    session.measured[1].error = "it fell over"
    save_record(session.record(), path)
    loaded = load_record(path)
    assert [len(variant.samples) for variant in loaded.variants] == [2, 2]
    assert loaded.variants[1].error == "it fell over"
    assert loaded.variants[0].memory.peak_host_rss_bytes == 6


def test_a_whole_record_has_summaries_comparisons_and_a_gate(session: RecordBuilder, tmp_path: Path) -> None:
    measure(session, 12, factor=1.2)
    report = ComparisonSpec(GateLimits({"e2e_s": 0.05})).report(session.record())
    assert report.exit_code == ExitCode.REGRESSION
    path = tmp_path / "record.json"
    save_record(report.complete_record(), path)
    record = load_record(path)
    assert record.gate.verdict == "regression"
    assert record.variants[0].summary["e2e_s"].n == 24
    assert {entry.metric: entry.verdict for entry in record.comparisons} == {
        "e2e_s": "slower",
        "ttft_s": "slower",
    }


def test_equal_variants_are_decided_and_pass(session: RecordBuilder) -> None:
    measure(session, 40)
    spec = ComparisonSpec(GateLimits({"e2e_s": 0.05}))
    assert spec.is_decided(session.record())
    assert spec.report(session.record()).exit_code == ExitCode.OK


def test_few_blocks_decide_nothing(session: RecordBuilder) -> None:
    measure(session, 3, factor=2)
    spec = ComparisonSpec()
    assert not spec.is_decided(session.record())
    assert spec.report(session.record()).exit_code == ExitCode.INCONCLUSIVE


def test_a_variant_whose_times_do_not_add_up_has_failed(session: RecordBuilder) -> None:
    for number in range(4):
        session.add_sample(0, number, ran(share=0.05), block=number, position=0)
        session.add_sample(1, number, ran(), block=number, position=1)
    session.check()
    assert "make up 5% of the end-to-end time" in session.measured[0].error
    assert session.measured[1].error is None
    assert ComparisonSpec().report(session.record()).exit_code == ExitCode.RUN_FAILED


def outputs(session: RecordBuilder) -> dict:
    return msgspec.to_builtins(session.record().comparisons[0].outputs)


def test_outputs_that_are_equal_unknown_and_apart(session: RecordBuilder) -> None:
    assert outputs(session) == {"identical": None, "max_abs_diff": None}
    session.measured[0].ran(0, ran(sha="x"))
    session.measured[1].ran(0, ran(sha="x"))
    assert outputs(session) == {"identical": True, "max_abs_diff": 0.0}
    for variant, value in ((0, 0.5), (1, 0.25)):
        save_arrays(session.output_file(variant, 0), {"0.audio.0": np.array([0.1], np.float32)})
        save_arrays(session.output_file(variant, 1), {"0.audio.0": np.array([value], np.float32)})
        session.measured[variant].ran(1, ran(sha=f"y{variant}"))
    found = outputs(session)
    (spread,) = found.pop("means").values()
    assert spread == {"n": 1, "mean": pytest.approx(6.0206), "ci95": None}
    measured = {"max_abs_diff": 0.25, "snr_db": pytest.approx(6.0206), "compared": 2}
    assert found == {"identical": False, **measured}


def test_only_hashes_of_later_outputs_are_left_to_say_that_they_differ(session: RecordBuilder) -> None:
    assert session.output_file(0, MAX_OUTPUT_FILES) is None
    for variant in (0, 1):
        save_arrays(session.output_file(variant, 0), {"0.audio.0": np.array([0.1], np.float32)})
        session.measured[variant].ran(0, ran(sha="x"))
        session.add_sample(variant, MAX_OUTPUT_FILES, ran(sha=f"y{variant}"), block=0, position=variant)
    assert outputs(session) == {"identical": False, "max_abs_diff": None}


def test_effective_settings_are_in_the_record(session: RecordBuilder) -> None:
    session.measured[0].stages = (
        LoadedStage("thinker", "ar", 2.5, {"output_copy": "async"}, {"max_num_seqs": 8}, {"output_copy": "sync"}),
    )
    effective = session.record().variants[0].effective
    assert effective["stages"] == {"thinker": {"max_num_seqs": 8, "output_copy": "sync"}}
    assert effective["not_as_requested"] == [
        {"stage": "thinker", "key": "output_copy", "requested": "async", "effective": "sync"}
    ]
