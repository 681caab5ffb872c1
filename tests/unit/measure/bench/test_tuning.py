"""The conductor of a search, with variants that take planned times: rounds, limits, failures, interrupts."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest

from omni_cli.core.errors import UsageError
from omni_cli.measure.bench.benchmark import Plan
from omni_cli.measure.bench.protocol import Loaded, LoadedStage, Ran, StagePeaks
from omni_cli.measure.bench.record_builder import RecordBuilder
from omni_cli.measure.bench.schedule import RunLimits
from omni_cli.measure.bench.tuning import TuneLimits, Tuning
from omni_cli.measure.bench.variant_configs import VariantConfig
from omni_cli.measure.bench.variant_process import VariantError
from omni_cli.records.tune_record import Candidate, TuneRecord, load_tune_record

MIB = 2**20


@dataclass
class Setting:
    """A planned variant: seconds per iteration, peak memory, further metrics, and the start that fails."""

    seconds: float
    memory_mib: int = 100
    metrics: dict[str, float] = field(default_factory=dict)
    fails_at_start: int | None = None
    starts: int = 0


class PlannedVariant:
    pid = None

    def __init__(self, name: str, setting: Setting, rng: random.Random) -> None:
        self.name = name
        self._setting = setting
        # Every start has an offset of its own.
        self._seconds = setting.seconds * (1 + rng.gauss(0, 0.007))
        self._rng = rng

    async def start(self) -> None:
        self._setting.starts += 1

    async def load(self, on_loading: Callable) -> Loaded:
        if self._setting.starts == self._setting.fails_at_start:
            raise VariantError(f"variant `{self.name}` failed (loading): out of memory")
        return Loaded((LoadedStage("image", "diffusion", 0.1, {}, {}, {}),))

    async def run(self, number: int, *, when: str, outputs: Path | None = None, timeout_s: float | None = None) -> Ran:
        took = self._seconds * (1 + self._rng.gauss(0, 0.01))
        memory = {"image": StagePeaks({}, {"host": self._setting.memory_mib * MIB})}
        return Ran(took, self._setting.metrics, {}, "sha", {}, memory)

    async def close(self) -> None:
        pass


class Notes:
    """Records the events of a search; `stop_after` rounds it is interrupted."""

    def __init__(self, stop_after: int | None = None) -> None:
        self.stop_after = stop_after
        self.refusals: dict[str, str] = {}
        self.rounds: list[int] = []

    def batch_started(self, where: str, race: Any) -> None:
        number = int(where.removeprefix("round ").partition(",")[0])
        if self.stop_after is not None and number > self.stop_after:
            raise asyncio.CancelledError
        self.rounds.append(number)

    def on_refused(self, name: str, reason: str) -> None:
        self.refusals[name] = reason

    def loading(self, variant: str, event: Any) -> None: ...

    def warming_up(self, variant: str) -> None: ...

    def falling_back(self, reason: str) -> None: ...

    def block_done(self, state: Any) -> None: ...


def record_of(settings: dict[str, Setting], objective: str = "e2e_s") -> TuneRecord:
    return TuneRecord(
        created="2026-11-22T12:00:00Z", environment={}, workload={"profile": "tiny-image", "stage": "all"},
        objective=objective, margin=0.05, candidates=tuple(Candidate(name=name) for name in settings),
    )  # fmt: skip


def tuning_of(
    settings: dict[str, Setting],
    folder: Path,
    notes: Notes,
    *,
    record: TuneRecord | None = None,
    limits: TuneLimits | None = None,
    time_budget_s: float | None = None,
) -> Tuning:
    rng = random.Random(0)

    @contextmanager
    def plan(variant_configs: Sequence[VariantConfig]) -> Iterator[Plan]:
        builder = RecordBuilder(variant_configs, command=(), environment={}, workload={}, folder=folder)
        names = [variant_config.name for variant_config in variant_configs]
        yield Plan(builder, lambda index: PlannedVariant(names[index], settings[names[index]], rng))

    return Tuning(
        [VariantConfig(name) for name in settings],
        record or record_of(settings),
        plan,
        limits=limits or TuneLimits(),
        iterations=RunLimits(8, 1, None),
        time_budget_s=time_budget_s,
        watcher=notes,
        path=folder / "tune.json",
    )


def searched(settings: dict[str, Setting], folder: Path, **options: Any) -> tuple[TuneRecord, Notes]:
    notes = Notes()
    tuning = tuning_of(settings, folder, notes, **options)
    asyncio.run(tuning.run())
    return tuning.record, notes


def test_the_best_is_found_and_the_worst_start_least(tmp_path: Path) -> None:
    settings = {f"s{number}": Setting(0.1 * (1 + 0.08 * abs(number - 7))) for number in range(12)}
    record, _ = searched(settings, tmp_path)
    assert (record.verdict, record.winner) == ("decided", "s7")
    assert record.excess is not None and record.excess <= 0.05
    starts = {item.name: item.starts for item in record.standings}
    # The first round has two batches, with the setting that leads it in both.
    assert starts["s0"] <= 5 < starts["s7"] + 2 and record.starts == sum(starts.values())
    assert load_tune_record(tmp_path / "tune.json") == msgspec.structs.replace(
        record, digest=load_tune_record(tmp_path / "tune.json").digest
    )


def test_settings_that_fail_cost_one_start_and_are_reported(tmp_path: Path) -> None:
    settings = {"a": Setting(0.1), "b": Setting(0.05, fails_at_start=1), "c": Setting(0.2)}
    record, notes = searched(settings, tmp_path)
    assert record.winner == "a" and settings["b"].starts == 1
    assert "out of memory" in notes.refusals["b"]
    standing = {item.name: item for item in record.standings}["b"]
    assert standing.state == "infeasible" and "out of memory" in (standing.problem or "")


def test_a_leader_that_fails_later_is_replaced(tmp_path: Path) -> None:
    settings = {"a": Setting(0.1, fails_at_start=3), "b": Setting(0.101), "c": Setting(0.3)}
    record, _ = searched(settings, tmp_path)
    assert (record.verdict, record.winner) == ("decided", "b")


def test_the_first_setting_of_all_may_fail(tmp_path: Path) -> None:
    settings = {"a": Setting(0.1, fails_at_start=1), "b": Setting(0.2), "c": Setting(0.1)}
    assert searched(settings, tmp_path)[0].winner == "c"


def test_no_setting_runs(tmp_path: Path) -> None:
    settings = {"a": Setting(0.1, fails_at_start=1), "b": Setting(0.2, fails_at_start=1)}
    record, _ = searched(settings, tmp_path)
    assert (record.verdict, record.winner) == ("infeasible", None)


def test_a_limit_on_memory(tmp_path: Path) -> None:
    settings = {"a": Setting(0.1, memory_mib=300), "b": Setting(0.2, memory_mib=100)}
    record, notes = searched(settings, tmp_path, limits=TuneLimits(max_memory_bytes=200 * MIB))
    assert record.winner == "b"
    assert notes.refusals == {"a": "its peak memory was 300 MiB, the limit is 200 MiB"}


def test_a_limit_on_latency(tmp_path: Path) -> None:
    settings = {"a": Setting(0.1, metrics={"slo_attainment": 0.9}), "b": Setting(0.2, metrics={"slo_attainment": 1.0})}
    record, notes = searched(settings, tmp_path, limits=TuneLimits(has_slo=True))
    assert record.winner == "b"
    assert "90.0% of its requests met the limits" in notes.refusals["a"]


def test_goodput_is_a_rate_that_may_be_zero(tmp_path: Path) -> None:
    settings = {
        name: Setting(0.1, metrics={"goodput_per_second": rate}) for name, rate in (("a", 0.0), ("b", 5.0), ("c", 9.0))
    }
    record, notes = searched(settings, tmp_path, record=record_of(settings, "goodput_per_second"))
    assert record.winner == "c"
    assert notes.refusals == {"a": "none of its requests met the limits of `--slo`"}


def test_an_objective_that_the_stages_lack(tmp_path: Path) -> None:
    settings = {"a": Setting(0.1), "b": Setting(0.1)}
    with pytest.raises(UsageError, match="these requests have no `images_per_second`"):
        searched(settings, tmp_path, record=record_of(settings, "images_per_second"))


def test_an_interrupted_search_continues_from_its_file(tmp_path: Path) -> None:
    settings = {"a": Setting(0.1), "b": Setting(0.102), "c": Setting(0.2)}
    notes = Notes(stop_after=2)
    tuning = tuning_of(settings, tmp_path, notes)
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(tuning.run())
    assert len(tuning.record.rounds) == 2, "the third round has no batch"
    kept = load_tune_record(tmp_path / "tune.json")
    assert (len(kept.rounds), kept.verdict) == (2, "unfinished")
    record, later = searched(settings, tmp_path, record=kept)
    assert record.rounds[:2] == kept.rounds and later.rounds[0] == 3
    assert record.verdict == "decided"
    again, nothing = searched(settings, tmp_path, record=load_tune_record(tmp_path / "tune.json"))
    assert nothing.rounds == [] and again.winner == record.winner, "a finished search measures nothing"


def test_the_end_of_the_time_is_inconclusive(tmp_path: Path) -> None:
    settings = {"a": Setting(0.1), "b": Setting(0.1)}
    record, notes = searched(settings, tmp_path, time_budget_s=1e-9)
    assert record.verdict == "inconclusive" and record.winner is not None and record.excess is None
    assert notes.rounds == [1]


def test_the_front_has_what_no_other_setting_beats(tmp_path: Path) -> None:
    settings = {
        "fast": Setting(0.1, memory_mib=300),
        "small": Setting(0.2, memory_mib=100),
        "neither": Setting(0.3, memory_mib=200),
    }
    record, _ = searched(settings, tmp_path)
    assert [item.name for item in record.standings if item.on_front] == ["fast", "small"]
