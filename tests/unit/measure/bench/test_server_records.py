"""Records of `omni loadtest`: percentiles of requests, failures, work by prompts, warnings."""

from __future__ import annotations

import random
import statistics
from pathlib import Path
from typing import Any

import msgspec
import pytest

from omni_cli.config.gate_limits import GateLimits
from omni_cli.core.errors import ExitCode, InputError
from omni_cli.measure.bench.protocol import Ran
from omni_cli.measure.bench.record_builder import RecordBuilder
from omni_cli.measure.bench.variant_configs import VariantConfig
from omni_cli.measure.loadtest.traffic import ClosedLoop
from omni_cli.measure.loadtest.workload import Endpoint, ServerWorkload
from omni_cli.records.record import Failures, Record, Utilisation, load_record
from omni_cli.records.record_file import save_record
from omni_cli.report.bench_view import bench_view
from omni_cli.report.disturbance_words import disturbance_warnings
from omni_cli.report.renderers import to_text
from omni_cli.report.shared_parts import short_title
from omni_cli.stats.blocks import summarise
from omni_cli.stats.comparable import disturbances, work_differences
from omni_cli.stats.verdicts import ComparisonSpec, own_report

URL = "http://127.0.0.1:8000"
REQUESTS = 60


def workload(**changes: Any) -> ServerWorkload:
    common = dict(
        endpoint=Endpoint("chat", output_len=32), num_requests=REQUESTS, input_len=32, output_len=32, seed=0,
        load=ClosedLoop(4).settings, slos={"ttft": 0.2},
    )  # fmt: skip
    return ServerWorkload(**{**common, **changes})


def ran(number: int, *, failed: int = 0, lag_s: float | None = None, usage: bool = True, scale: float = 1.0) -> Ran:
    source = random.Random(number)
    times = [scale * source.lognormvariate(-2, 0.3) for _ in range(REQUESTS - failed)]
    columns: dict[str, Any] = {"start_s": tuple(0.01 * index for index in range(REQUESTS))}
    columns["e2e_s"] = (*times, *[None] * failed)
    columns["ttft_s"] = (*(time / 2 for time in times), *[None] * failed)
    if lag_s is not None:
        columns["lag_s"] = (lag_s,) * REQUESTS
    if usage:
        columns["output_tokens"] = (*[32.0] * len(times), *[None] * failed)
    return Ran(
        e2e_s=statistics.median(times),
        metrics={"ttft_s": statistics.median(times) / 2, "requests_per_second": 10.0, "ttft_p90_s": 0.2},
        work={"requests": len(times), **({"output_tokens": 32.0 * len(times)} if usage else {})},
        output_sha256=None if failed else f"sha256:{number}",
        accounted={}, memory={}, lasted_s=4.0, requests=columns,
        failures={"HTTP 429 queue_full": Failures(count=failed, first="64 are inside")} if failed else {},
    )  # fmt: skip


def session(folder: Path, runs: list[Ran], names: tuple[str, ...] = (URL,), **changes: Any) -> RecordBuilder:
    variants = [VariantConfig(name, settings={"url": URL, "model": "tiny-omni"}) for name in names]
    found = RecordBuilder(
        variants, command=("omni", "bench"), environment={}, workload=workload(**changes).describe(), folder=folder
    )
    for number, item in enumerate(runs):
        for position in range(len(names)):
            found.add_sample(position, number, item, block=number, position=position)
    return found


def test_percentiles_are_of_all_requests(tmp_path: Path) -> None:
    runs = [ran(number) for number in range(8)]
    (variant,) = session(tmp_path, runs).record().variants
    found = summarise(variant, "ttft_s")
    every = sorted(value for item in runs for value in item.requests["ttft_s"])
    assert (found.n, found.requests) == (8, 480)
    assert found.median == pytest.approx(statistics.median(item.metrics["ttft_s"] for item in runs))
    assert sum(value <= found.p90 for value in every) == 432
    assert every[-6] < found.p99 < every[-4]
    # Fewer requests than a percentile needs; a metric that only a window has.
    few = msgspec.structs.replace(variant, samples=variant.samples[:7])
    assert summarise(few, "ttft_s").p99 is None
    assert not summarise(variant, "requests_per_second").requests


def test_a_whole_record_can_be_saved_and_read(tmp_path: Path) -> None:
    report = ComparisonSpec().report(session(tmp_path, [ran(number) for number in range(9)]).record())
    assert report.exit_code == ExitCode.OK
    save_record(report.complete_record(), tmp_path / "r.json")
    record = load_record(tmp_path / "r.json")
    summary = record.variants[0].summary["ttft_s"]
    assert summary.requests == 540 and summary.p90 < summary.p99
    assert [sample.number for sample in record.variants[0].samples] == list(range(9))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"failures": {"timeout": Failures(count=1, first="late")}}, "`failures` are not the 0 requests"),
        ({"requests": {"e2e_s": (0.1, None)}}, "`failures` are not the 1 requests"),
        ({"requests": {"e2e_s": (0.1,), "ttft_s": (0.1, 0.2)}}, "different lengths"),
        ({"requests": {"e2e_s": (-0.1,)}}, r"expected `float` >= 0.0 at `variants\[0\].samples\[0\].requests"),
    ],
)
def test_a_record_that_hides_failures_is_rejected(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    record = session(tmp_path, [ran(0)]).record()
    sample = msgspec.structs.replace(record.variants[0].samples[0], **change)
    variant = msgspec.structs.replace(record.variants[0], samples=(sample,))
    save_record(msgspec.structs.replace(record, variants=(variant,)), tmp_path / "r.json")
    with pytest.raises(InputError, match=message):
        load_record(tmp_path / "r.json")


def test_failed_requests_fail_the_run_and_its_gate(tmp_path: Path) -> None:
    found = session(tmp_path, [ran(number, failed=2 * (number % 2)) for number in range(10)], (URL, "other"))
    # Before the check at the end, too, as in the record of an interrupted run.
    assert found.record().variants[0].failure == (
        "10 of 600 requests failed: 10 x HTTP 429 queue_full; the first one: 64 are inside"
    )
    found.check()
    report = ComparisonSpec(GateLimits({"e2e_s": 0.05})).report(found.record())
    assert report.exit_code == ExitCode.RUN_FAILED
    assert report.complete_record().gate.verdict == "failed"
    # A window with failures has no verdict on its outputs, the others do.
    assert set(found.measured[0].hashes) == {0, 2, 4, 6, 8}


def test_work_is_compared_by_prompts(tmp_path: Path) -> None:
    """Two records of different lengths did the same work where they had the same prompts."""
    runs = [ran(number) for number in range(9)]
    varying = [msgspec.structs.replace(item, work={"audio_s": 1.0 + number}) for number, item in enumerate(runs)]
    (longer,) = session(tmp_path, varying).record().variants
    (shorter,) = session(tmp_path, varying[:4]).record().variants
    assert work_differences(longer, shorter) == ()
    other = [msgspec.structs.replace(varying[0], work={"audio_s": 7.0}), *varying[1:]]
    (different,) = session(tmp_path, other).record().variants
    (mismatch,) = work_differences(different, shorter)
    assert mismatch.field == "work.audio_s"


def test_text(tmp_path: Path) -> None:
    record = session(tmp_path, [ran(number, failed=number == 0) for number in range(9)]).record()
    assert short_title(record.workload) == "chat of a server"
    heading, text = to_text(bench_view(own_report(record), 3)).split("\n\n")
    assert heading == (
        "chat of a server, concurrency 4, 32 words in, 32 tokens out, SLO ttft 200 ms, "
        "client: unknown processor, 3 warm-up + 9 windows of 60 requests each in 9 blocks"
    )
    assert "tiny-omni, 540 requests, 1 failed, 32 tokens out" in text
    *lines, failed = text.splitlines()
    assert [line.split()[0] for line in lines[2:]] == ["median", "e2e", "with", "ttft", "with", "requests"]
    # A failed request is slower than all answers.
    assert lines[4].split() == ["with", "failed", *lines[4].split()[2:6], "540"] and lines[3].endswith(" 539")
    assert max(map(len, lines)) <= 80
    assert failed.startswith("  failed: 1 of 540 requests failed: 1 x HTTP 429 queue_full")


def test_the_page_knows_servers(tmp_path: Path) -> None:
    record = session(tmp_path, [ran(number) for number in range(9)]).record()
    document = bench_view(own_report(record))
    assert document.title == "chat of a server"
    assert "concurrency 4" in document.details and "9 windows" in document.details


def warnings_of(record: Record) -> str:
    return "\n".join(note.message for note in disturbance_warnings(disturbances(record), record))


def test_a_late_client_is_a_warning(tmp_path: Path) -> None:
    rate = {"request_rate": 20.0}
    assert "late" not in warnings_of(session(tmp_path, [ran(0, lag_s=0.004)], load=rate).record())
    late = warnings_of(session(tmp_path, [ran(0, lag_s=0.03)], load=rate).record())
    assert "the client was late with 100.0% of the requests, by up to 30.00 ms" in late
    # Nobody can send everything at once.
    assert "late" not in warnings_of(session(tmp_path, [ran(0, lag_s=0.03)], load={"request_rate": "inf"}).record())


def test_text_in_bursts_is_a_warning(tmp_path: Path) -> None:
    def said(itl_s: float) -> str:
        runs = [ran(number) for number in range(3)]
        metrics = [{**item.metrics, "itl_s": itl_s} for item in runs]
        changed = [msgspec.structs.replace(item, metrics=found) for item, found in zip(runs, metrics, strict=True)]
        return warnings_of(session(tmp_path, changed).record())

    assert "arrived together" in said(0.0)
    assert "arrived together" not in said(0.001)


def test_a_server_without_usage_is_a_warning(tmp_path: Path) -> None:
    assert "reports no token counts" in warnings_of(session(tmp_path, [ran(0, usage=False)]).record())
    assert "reports no token counts" not in warnings_of(session(tmp_path, [ran(0)]).record())


def test_a_busy_client_is_a_warning_and_a_busy_server_is_no_neighbour(tmp_path: Path) -> None:
    def used(own: float, busy: float) -> str:
        looks = Utilisation(
            interval_s=0.5, cost_s=0.0, usable_cores=2, end_s=tuple(float(i) for i in range(1, 11)),
            busy_cores=(busy,) * 10, own_cores=(own,) * 10, stolen_cores=(0.0,) * 10,
        )  # fmt: skip
        return warnings_of(msgspec.structs.replace(session(tmp_path, [ran(0)]).record(), utilisation=looks))

    assert used(own=0.2, busy=1.9) == ""
    assert "the client used a whole core in 100% of the time" in used(own=0.95, busy=1.9)


def test_the_workload_contains_everything_that_must_be_equal() -> None:
    fingerprint = workload().describe()["fingerprint"]
    changes: tuple[dict[str, Any], ...] = (
        {"num_requests": 61}, {"input_len": 33}, {"seed": 1}, {"load": {"request_rate": "inf"}}, {"slos": {}},
        {"tokenizer": "folder"}, {"extra_body": {"top_k": 1}}, {"endpoint": Endpoint("chat", output_len=31)},
    )  # fmt: skip
    for change in changes:
        assert workload(**change).describe()["fingerprint"] != fingerprint
