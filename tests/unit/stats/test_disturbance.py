"""The rules by which a disturbance of a measurement is reported, and the messages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from support.bench_records import correlated, pair, record, variant

from omni_cli.cli.app import run
from omni_cli.config.gate_limits import GateLimits
from omni_cli.records.record import DeviceLoad, GpuUtilisation, Record, Utilisation, Variant
from omni_cli.records.record_file import save_record
from omni_cli.report.disturbance_words import disturbance_warnings
from omni_cli.report.view import Note
from omni_cli.stats.comparable import disturbances, is_slowed, machine_disturbances
from omni_cli.stats.compare import Doubt, compare_variants
from omni_cli.stats.verdicts import ComparisonSpec

LOOKS = 40


def looked(**series: Any) -> Utilisation:
    """A quiet machine of 4 cores, of which the measurement uses one, except in `series`."""
    quiet: dict[str, Any] = {
        "interval_s": 0.5, "cost_s": 0.01, "usable_cores": 4, "end_s": tuple(0.5 * n for n in range(1, LOOKS + 1)),
        "busy_cores": (1.1,) * LOOKS, "own_cores": (1.0,) * LOOKS, "stolen_cores": (0.0,) * LOOKS,
    }  # fmt: skip
    return Utilisation(**(quiet | series))


def partly(value: float, count: int, rest: float = 0.0) -> tuple[float, ...]:
    return (value,) * count + (rest,) * (LOOKS - count)


def gpu(**series: Any) -> GpuUtilisation:
    quiet: dict[str, Any] = {
        "index": 0, "name": "H200", "utilisation_percent": (95.0,) * LOOKS, "sm_clock_mhz": (1980.0,) * LOOKS,
        "temperature_c": (60.0,) * LOOKS, "power_w": (500.0,) * LOOKS, "throttled": ("",) * LOOKS,
    }  # fmt: skip
    return GpuUtilisation(**(quiet | series))


def test_a_quiet_machine() -> None:
    assert machine_disturbances(looked(gpus=(gpu(),), cpu_mhz=(3500.0,) * LOOKS, held_back=(0.0,) * LOOKS)) == ()
    assert machine_disturbances(Utilisation(interval_s=0.5, cost_s=0, usable_cores=4)) == ()


@pytest.mark.parametrize(("count", "named"), [(3, False), (4, True), (40, True)])
def test_a_neighbour_has_to_last(count: int, named: bool) -> None:
    found = machine_disturbances(looked(busy_cores=partly(1.9, count, 1.0)))
    assert [item.kind for item in found] == (["neighbour"] if named else [])
    if named:
        assert found[0].share == count / LOOKS and found[0].amount == pytest.approx(0.9)


@pytest.mark.parametrize(
    ("cores", "others", "named"), [(2, 0.45, False), (2, 0.55, True), (64, 1.5, False), (64, 2.5, True)]
)
def test_little_is_nothing_on_a_machine_with_many_cores(cores: int, others: float, named: bool) -> None:
    found = machine_disturbances(looked(usable_cores=cores, busy_cores=(1 + others,) * LOOKS))
    assert bool(found) == named


def test_the_measurements_own_load_is_not_a_neighbour() -> None:
    assert machine_disturbances(looked(busy_cores=(4.0,) * LOOKS, own_cores=(3.9,) * LOOKS)) == ()


def test_a_short_run_is_not_judged_by_two_readings() -> None:
    short = Utilisation(
        interval_s=0.5, cost_s=0, usable_cores=2, end_s=(0.5, 1.0), busy_cores=(2.0, 2.0), own_cores=(1.0, 1.0),
        stolen_cores=(0.0, 0.0),
    )  # fmt: skip
    assert machine_disturbances(short) == ()


def test_a_host_that_takes_cores_away() -> None:
    (found,) = machine_disturbances(looked(stolen_cores=partly(0.3, 10)))
    assert (found.kind, found.share, found.amount) == ("stolen", 0.25, pytest.approx(0.3))


def test_a_quota_that_runs_out() -> None:
    (found,) = machine_disturbances(looked(held_back=partly(0.8, 20)))
    assert (found.kind, found.share) == ("quota", 0.5)


def test_a_processor_that_slows_down() -> None:
    (found,) = machine_disturbances(looked(cpu_mhz=partly(2000.0, 8, 4000.0)))
    assert (found.kind, found.share, found.amount) == ("slow processor", 0.2, 0.5)
    # A clock that is always low is the processor's normal clock.
    assert machine_disturbances(looked(cpu_mhz=(2000.0,) * LOOKS)) == ()


def test_a_device_that_is_throttled() -> None:
    hot = gpu(throttled=("thermal",) * 10 + ("power_cap",) * 10 + ("",) * 20, sm_clock_mhz=partly(990.0, 20, 1980.0))
    (found,) = machine_disturbances(looked(gpus=(gpu(index=1), hot)))
    assert (found.kind, found.device, found.share, found.amount) == ("throttled device", "GPU 0 (H200)", 0.5, 0.5)
    assert found.causes == ("thermal", "power_cap") and found.is_of_record


def at_its_limit(clock: float = 1485.0, **series: Any) -> GpuUtilisation:
    """An H200 at 700 W, as large products make it."""
    capped: dict[str, Any] = {"throttled": ("power_cap",) * LOOKS, "sm_clock_mhz": (clock,) * LOOKS}
    return gpu(**(capped | series))


def test_a_device_at_its_power_limit_has_its_full_speed() -> None:
    cool = ("power_cap",) * (LOOKS - 3) + ("power_cap+thermal",) * 3  # not for long enough to count
    for throttled in (("power_cap",) * LOOKS, cool):
        device = at_its_limit(max_sm_clock_mhz=1980.0, throttled=throttled)
        one = msgspec.structs.replace(record(*pair(blocks=8)), utilisation=looked(gpus=(device,)))
        (note,) = warnings_of(one)
        assert not is_slowed(one) and note.label == "Note"
        assert note.message == (
            "GPU 0 (H200) was at its power limit in 100% of the time, at 75% of its highest clock: "
            "its full speed for this work"
        )
    earlier = looked(gpus=(at_its_limit(sm_clock_mhz=partly(1485.0, 39, 1500.0)),))
    (note,) = warnings_of(msgspec.structs.replace(record(*pair(blocks=8)), utilisation=earlier))
    assert "at 99% of the highest clock in this record" in note.message
    hot = looked(gpus=(at_its_limit(throttled=("power_cap",) * 30 + ("power_cap+thermal",) * 10),))
    assert is_slowed(msgspec.structs.replace(record(*pair(blocks=8)), utilisation=hot))


def test_an_idle_device_is_not_throttled() -> None:
    idle = gpu(throttled=("power_cap",) * LOOKS, utilisation_percent=(0.0,) * LOOKS)
    assert machine_disturbances(looked(gpus=(idle,))) == ()


def warnings_of(found: Record) -> list[Note]:
    return disturbance_warnings(disturbances(found), found)


def test_every_warning_ends_in_something_to_do() -> None:
    disturbed = looked(
        busy_cores=(2.0,) * LOOKS, stolen_cores=(0.5,) * LOOKS, held_back=(0.9,) * LOOKS,
        cpu_mhz=partly(1000.0, 20, 4000.0),
        gpus=(gpu(throttled=("power_cap",) * LOOKS), gpu(throttled=("thermal",) * LOOKS)),
    )  # fmt: skip
    notes = warnings_of(msgspec.structs.replace(record(*pair(blocks=8)), utilisation=disturbed))
    assert [note.message.partition(":")[0] for note in notes] == [
        "a noisy neighbour",
        "the machine's host gave 0.5 of 4 cores to others in 100% of the time",
        "the container's processor quota ran out in 100% of the time, and stopped its threads",
        "the processor was throttled in 50% of the time",
        "GPU 0 (H200) was at its power limit in 100% of the time, at 100% of the highest clock in this record",
        "GPU 0 (H200) was throttled in 100% of the time, by its temperature",
    ]
    assert all(note.hint for note in notes if note.label == "Warning")


def test_a_record_without_it_warns_of_nothing() -> None:
    assert warnings_of(record(*pair(blocks=8))) == []


def test_failed_sampling_is_reported() -> None:
    failed = looked(error="OSError: no more files")
    (note,) = warnings_of(msgspec.structs.replace(record(*pair(blocks=8)), utilisation=failed))
    assert "OSError: no more files" in note.message


def test_compare_and_the_markdown_name_it_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = pair(blocks=8)
    disturbed = looked(busy_cores=(2.0,) * LOOKS)
    for name, utilisation in (("quiet.json", looked()), ("noisy.json", disturbed)):
        only = msgspec.structs.replace(a if name == "quiet.json" else b, name="v")
        save_record(msgspec.structs.replace(record(only), utilisation=utilisation), tmp_path / name)
    report = tmp_path / "report.md"
    run(["compare", str(tmp_path / "quiet.json"), str(tmp_path / "noisy.json"), "--markdown", str(report)])
    said = capsys.readouterr().err
    assert "warning: noisy.json: a noisy neighbour: other programs used 1.0 of 4 cores" in said
    assert "quiet.json: a noisy" not in said
    assert "> **Warning:** noisy.json: a noisy neighbour" in report.read_text()


@pytest.mark.parametrize(
    ("slower", "disturbed", "code"),
    [
        (1.4, "B", 3),  # a neighbour explains it as well
        (1.4, "A", 1),  # and here hides some of it
        (1.4, "", 1),
        (1.0, "B", 0),
        (1.0, "A", 3),
        (0.7, "A", 3),
        (0.7, "B", 0),
    ],
)
def test_a_disturbance_that_explains_the_verdict_withholds_it(
    slower: float, disturbed: str, code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two records, one after the other, of which one was measured beside a neighbour of 1.5 cores."""
    neighbour = looked(busy_cores=partly(2.5, 30, 1.1))
    for side, factor in (("A", 1.0), ("B", slower)):
        first, _ = pair(base=0.1 * factor, cv=0.02, lag1=0.0, seed=ord(side))
        one = msgspec.structs.replace(first, name="default")
        measured = record(one)
        if side in disturbed:
            measured = msgspec.structs.replace(measured, utilisation=neighbour)
        save_record(measured, tmp_path / f"{side}.json")
    assert run(["compare", *(str(tmp_path / f"{side}.json") for side in "AB"), "--max-regression", "10%"]) == code
    said = capsys.readouterr()
    assert ("ran on a disturbed machine" in said.err) == (code == 3)


def test_variants_that_ran_interleaved_are_judged_on_a_disturbed_machine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    both = msgspec.structs.replace(record(*pair(slowdown=1.4)), utilisation=looked(busy_cores=partly(2.5, 30, 1.1)))
    save_record(both, tmp_path / "both.json")
    assert run(["compare", str(tmp_path / "both.json"), "--max-regression", "10%"]) == 1
    assert "disturbed machine" not in capsys.readouterr().err


def measured_at(factor: float, side: str, gpus: tuple[GpuUtilisation, ...], own_mhz: float | None = None) -> Record:
    """One of two records, of a benchmark that takes `factor` times 0.1 s; `own_mhz` is the clock of its variant."""
    one, _ = pair(base=0.1 * factor, cv=0.02, lag1=0.0, seed=ord(side))
    load = () if own_mhz is None else (DeviceLoad(index=0, sm_clock_mhz=own_mhz, power_w=690.0),)
    named = msgspec.structs.replace(one, name="default", device_load=load)
    return msgspec.structs.replace(record(named), utilisation=looked(gpus=gpus))


CAPPED = at_its_limit()
LOWER = at_its_limit(1188.0)  # four fifths
HOT = at_its_limit(throttled=("thermal",) * LOOKS)


@pytest.mark.parametrize(
    ("slower", "a", "b", "code"),
    [
        (1.0, CAPPED, CAPPED, 0),
        (1.4, CAPPED, CAPPED, 1),
        (0.7, CAPPED, CAPPED, 0),
        (1.0, CAPPED, at_its_limit(1500.0), 0),  # as much as two loads differ
        (1.2, CAPPED, LOWER, 3),  # the clocks explain up to 1.25
        (1.4, CAPPED, LOWER, 1),  # and 1.12 is left
        (1.0, CAPPED, LOWER, 0),
        (1.0, LOWER, CAPPED, 3),
        (0.7, LOWER, CAPPED, 0),
        (1.2, gpu(), gpu(sm_clock_mhz=(1584.0,) * LOOKS), 3),  # a clock that somebody set
        (1.0, gpu(), gpu(utilisation_percent=partly(1.0, 2), sm_clock_mhz=partly(345.0, 30, 1980.0)), 0),  # idle
        (1.0, HOT, HOT, 3),
        (1.4, HOT, HOT, 3),
        (1.4, CAPPED, HOT, 3),
    ],
)
def test_a_power_limit_withholds_a_verdict_only_if_the_clocks_explain_it(
    slower: float, a: GpuUtilisation, b: GpuUtilisation, code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    records = [measured_at(factor, side, (one,)) for factor, side, one in ((1.0, "A", a), (slower, "B", b))]
    for side, one in zip("AB", records, strict=True):
        save_record(one, tmp_path / f"{side}.json")
    assert run(["compare", *(str(tmp_path / f"{side}.json") for side in "AB"), "--max-regression", "10%"]) == code
    said = capsys.readouterr().err
    assert ("MHz in B, which may be the reason" in said) == (code == 3 and HOT not in (a, b))
    assert ("disturbed machine" in said) == (HOT in (a, b))
    if a is CAPPED and b is not HOT:
        assert "note: A.json: GPU 0 (H200) was at its power limit in 100% of the time" in said
    against = ComparisonSpec(limits=GateLimits(metrics={"e2e_s": 0.1}), baseline=records[0])
    assert against.report(records[1]).exit_code == code


def test_a_variants_own_clock_counts_before_that_of_the_whole_record() -> None:
    a, b = (measured_at(1.0 + 0.2 * (side == "B"), side, (CAPPED,), 1485.0) for side in "AB")
    spec = ComparisonSpec(limits=GateLimits(metrics={"e2e_s": 0.1}), baseline=a)
    assert spec.report(b).exit_code == 1
    lower = measured_at(1.2, "B", (CAPPED,), 1188.0)
    assert spec.report(lower).exit_code == 3
    assert spec.report(measured_at(1.2, "B", ())).exit_code == 1, "a record without clocks"


def test_interleaved_variants_at_unequal_clocks_are_judged_and_it_is_said() -> None:
    def at(variant: Variant, mhz: float) -> Variant:
        load = DeviceLoad(index=0, sm_clock_mhz=mhz, max_sm_clock_mhz=1980.0, power_w=690.0, power_limit_w=700.0)
        return msgspec.structs.replace(variant, device_load=(load,))

    a, b = pair(slowdown=1.4)
    both = msgspec.structs.replace(record(at(a, 1980.0), at(b, 1400.0)), utilisation=looked(gpus=(gpu(),)))
    assert ComparisonSpec(limits=GateLimits(metrics={"e2e_s": 0.1})).report(both).exit_code == 1
    (note,) = warnings_of(both)
    assert note.message == "GPU 0 ran a at 1,980 MHz and b at 1,400 MHz: the ratio holds at these" and note.hint
    assert warnings_of(record(at(a, 1980.0), at(b, 1970.0))) == []


@pytest.mark.parametrize(
    ("doubt", "verdict"), [((0.3, 0.0), "inconclusive"), ((0.1, 0.0), "faster"), ((0.0, 9), "faster")]
)
def test_a_rate_that_rose_is_doubted_if_the_first_side_was_slow(doubt: tuple[float, float], verdict: str) -> None:
    """By a factor of 1.25 in `images_per_second`: a slower A explains it, a slower B does not."""
    a, b = (
        variant(name, base * correlated(np.random.default_rng(1), (80,), lag1=0, cv=0.01).reshape(40, 2),
                metrics={"images_per_second": 100.0})
        for name, base in (("a", 0.1), ("b", 0.125))
    )  # fmt: skip
    (compared,) = compare_variants(a, b, same_record=False, metrics=["images_per_second"], doubt=Doubt(*doubt, "slow"))
    assert compared.result.verdict == verdict
