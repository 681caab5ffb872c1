"""Energy of variants: whose turn it was, how much of it is enough, and what it is divided by."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from omni_cli.core.energy import EnergyReading
from omni_cli.measure.bench import energy
from omni_cli.measure.bench.protocol import Ran, Used
from omni_cli.measure.bench.record_builder import RecordBuilder
from omni_cli.measure.bench.variant_configs import VariantConfig
from omni_cli.records.record import Energy, Record, load_record
from omni_cli.records.record_file import save_record

WORK = {"requests": 2.0, "output_tokens": 10.0, "audio_s": 4.0}
SOURCES = {"gpu0": "NVML counter", "gpu1": "integrated power"}


class Machine:
    """A clock and two devices: one takes `power_w`, the other 10 W; each reading is counted."""

    def __init__(self) -> None:
        self.sources, self.absent = SOURCES, None
        self.now_s, self.joules, self.readings = 100.0, 0.0, 0

    def spend(self, seconds: float, power_w: float) -> None:
        self.now_s += seconds
        self.joules += seconds * power_w

    def read(self) -> EnergyReading:
        self.readings += 1
        return EnergyReading(self.now_s, {"gpu0": self.joules, "gpu1": 10 * self.now_s})


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    found = Machine()
    monkeypatch.setattr(energy, "time", SimpleNamespace(monotonic=lambda: found.now_s))
    return found


def measure(
    folder: Path,
    machine: Any,
    blocks: Sequence[str],
    seconds: dict[str, float],
    pause_s: float = 0.0,
    slow_s: float = 0.0,
) -> Record:
    """Run the variants of each block in this order, `A` at 100 W and `B` at 300 W; `pause_s` at 50 W follow a block.

    Each third iteration takes `slow_s` more.
    """
    names = sorted(seconds)
    builder = RecordBuilder(
        [VariantConfig(name) for name in names], command=(), environment={}, workload={}, folder=folder
    )
    ledger = energy.EnergyLedger(builder.measured, machine, dict(enumerate(seconds.values())))

    async def run() -> None:
        for block, order in enumerate(blocks):
            for position, name in enumerate(order):
                index = names.index(name)
                await ledger.begin(index)
                lasted_s = seconds[name] + slow_s * (len(builder.measured[index].samples) % 3 == 2)
                machine.spend(lasted_s, {"A": 100.0, "B": 300.0}[name])
                ran = Ran(lasted_s, {"images_per_second": 3 / lasted_s}, WORK, None, {}, {})
                ledger.add(index, builder.add_sample(index, position, ran, block=block, position=position), None)
            await ledger.block_ended()
            machine.spend(pause_s, 50.0)

    asyncio.run(run())
    record = msgspec.structs.replace(builder.record(), comparisons=())
    save_record(record, folder / "r.json")
    return load_record(folder / "r.json")


def figures(record: Record, name: str, metric: str = "energy_j") -> dict[int, float]:
    """The values by block."""
    return {s.block: s.metrics[metric] for s in record.variant(name).samples if metric in s.metrics}


def test_a_block_of_two_seconds_has_its_joules(tmp_path: Path, machine: Machine) -> None:
    record = measure(tmp_path, machine, ["AA", "AA"], {"A": 1.5}, pause_s=5.0)
    last = record.variants[0].samples[1]
    assert {name: value for name, value in last.metrics.items() if name.endswith("_j")} == pytest.approx(
        {
            "energy_j": 165.0, "gpu0.energy_j": 150.0, "gpu1.energy_j": 15.0, "energy_per_request_j": 82.5,
            "energy_per_output_token_j": 16.5, "energy_per_audio_second_j": 41.25, "energy_per_image_j": 55.0,
        }
    )  # fmt: skip
    assert figures(record, "A") == pytest.approx({0: 165.0, 1: 165.0}), "the pauses between blocks are in none"
    assert machine.readings == 4, "at the edges, and not between iterations"
    assert record.variants[0].energy == Energy(sources=SOURCES)


def test_short_blocks_of_one_variant_are_one_figure(tmp_path: Path, machine: Machine) -> None:
    record = measure(tmp_path, machine, ["AA"] * 5, {"A": 0.4}, pause_s=0.2)
    # Three blocks with two pauses: 2.8 s, 240 + 20 + 28 J in six iterations; two more blocks are too few.
    assert figures(record, "A") == pytest.approx({2: (240 + 20 + 28) / 6})
    assert record.variants[0].energy == Energy(sources=SOURCES)


def test_less_than_two_seconds_have_none(tmp_path: Path, machine: Machine) -> None:
    record = measure(tmp_path, machine, ["AA"], {"A": 0.9})
    assert figures(record, "A") == {}
    (variant,) = record.variants
    assert variant.energy is not None and "too short for the counters" in str(variant.energy.absent)


def test_interleaved_turns_are_added_up_until_there_is_enough_of_each(tmp_path: Path, machine: Machine) -> None:
    record = measure(tmp_path, machine, ["ABBA", "BAAB"] * 2, {"A": 1.2, "B": 1.0}, pause_s=3.0)
    # The turns of a block: A, BB, A.
    assert figures(record, "A") == pytest.approx(dict.fromkeys(range(4), 1.2 * 110))
    assert figures(record, "B") == pytest.approx(dict.fromkeys(range(4), 1.0 * 310))
    record = measure(tmp_path, machine, ["AB", "BA"] * 3, {"A": 1.2, "B": 1.0}, pause_s=3.0)
    assert figures(record, "A") == pytest.approx({1: 132.0, 3: 132.0, 5: 132.0})
    assert figures(record, "B") == pytest.approx({1: 310.0, 3: 310.0, 5: 310.0})


def test_turns_that_a_counter_cannot_tell_apart_are_not_read(tmp_path: Path, machine: Machine) -> None:
    record = measure(tmp_path, machine, ["ABBA"] * 50, {"A": 0.2, "B": 0.2})
    assert figures(record, "A") == figures(record, "B") == {}
    assert machine.readings == 2, "the first turn of each shows their length"
    assert all("turns" in str(variant.energy and variant.energy.absent) for variant in record.variants)


def test_slow_turns_are_not_chosen(tmp_path: Path, machine: Machine) -> None:
    """Turns of 0.6 s, of which some take 5 s, have no energy; those of 1.2 s have that of all of them."""
    record = measure(tmp_path, machine, ["AB", "BA"] * 6, {"A": 0.6, "B": 0.6}, slow_s=5.0)
    assert figures(record, "A") == figures(record, "B") == {}
    record = measure(tmp_path, machine, ["AB", "BA"] * 6, {"A": 1.2, "B": 1.2}, slow_s=5.0)
    covered = [a - b for a, b in zip(figures(record, "A"), [-1, *figures(record, "A")], strict=False)]
    total = sum(n * joules for n, joules in zip(covered, figures(record, "A").values(), strict=True))
    assert total == pytest.approx(110 * (12 * 1.2 + 4 * 5.0))


def test_idle_power_is_measured_apart(tmp_path: Path, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    builder = RecordBuilder([VariantConfig("A")], command=(), environment={}, workload={}, folder=tmp_path)
    ledger = energy.EnergyLedger(builder.measured, machine, {0: 1.0})  # type: ignore[arg-type] # reads like a meter

    async def sleep(seconds: float) -> None:
        machine.spend(seconds, 60.0)

    monkeypatch.setattr(energy, "asyncio", SimpleNamespace(sleep=sleep, to_thread=asyncio.to_thread))
    asyncio.run(ledger.measure_idle())
    asyncio.run(ledger.block_ended())
    (measured,) = builder.measured
    assert measured.energy is not None and measured.energy.idle_power_w == pytest.approx({"gpu0": 60.0, "gpu1": 10.0})


@pytest.mark.parametrize("typical_s", [0.9, 1.2])
def test_windows_of_a_server_have_joules_of_their_own(tmp_path: Path, typical_s: float) -> None:
    builder = RecordBuilder([VariantConfig("s")], command=(), environment={}, workload={}, folder=tmp_path)
    ledger = energy.EnergyLedger(builder.measured, None, {0: typical_s})
    counters = Energy(sources={"gpu0": "NVML counter"}, idle_power_w={"gpu0": 70.0})
    metrics = {"requests_per_second": 2.0, "images_per_second": 3.0}
    for block, seconds in enumerate((1.2, 0.9, 1.3)):
        ran = Ran(0.1, metrics, WORK, None, {}, {}, used=Used(counters, seconds, {"gpu0": 100.0 + 2 * block}))
        ledger.add(0, builder.add_sample(0, block, ran, block=block, position=0), ran.used)
        asyncio.run(ledger.block_ended())
    (variant,) = builder.record().variants
    if typical_s < 1:
        assert variant.energy == msgspec.structs.replace(counters, absent=energy._TOO_SHORT)
        return
    assert variant.energy == counters
    # Of the first two windows; the images are 3 per second, of 2 requests at 2 per second. The third is too little.
    energies = [{n: v for n, v in sample.metrics.items() if n.endswith("_j")} for sample in variant.samples]
    assert (energies[0], energies[2]) == ({}, {}) and energies[1] == pytest.approx(
        {
            "energy_j": 101.0, "energy_per_request_j": 50.5, "energy_per_output_token_j": 10.1,
            "energy_per_audio_second_j": 25.25, "energy_per_image_j": 202 / 6,
        }
    )  # fmt: skip


def test_an_interrupt_keeps_the_joules_so_far(tmp_path: Path) -> None:
    """Of the second server, an interrupt left too little."""
    builder = RecordBuilder(
        [VariantConfig("s"), VariantConfig("t")], command=(), environment={}, workload={}, folder=tmp_path
    )
    ledger = energy.EnergyLedger(builder.measured, None, {0: 1.5, 1: 1.5})
    counters = Energy(sources={"gpu0": "NVML counter"})
    for position, (variant, seconds) in enumerate([(0, 1.5), (1, 1.5), (0, 1.5)]):
        ran = Ran(0.1, {}, WORK, None, {}, {}, used=Used(counters, seconds, {"gpu0": 100.0 * seconds}))
        ledger.add(variant, builder.add_sample(variant, position, ran, block=0, position=position), ran.used)
    ledger.end_early()
    first, second = builder.record().variants
    assert [sample.metrics.get("energy_j") for sample in first.samples] == [None, 150.0]
    assert first.samples[1].metrics["energy_per_request_j"] == 75.0 and first.energy == counters
    assert second.energy == msgspec.structs.replace(counters, absent=energy._TOO_SHORT)
    assert "energy_j" not in second.samples[0].metrics


def test_an_interrupted_turn_is_in_no_figure(tmp_path: Path, machine: Machine) -> None:
    builder = RecordBuilder([VariantConfig("A")], command=(), environment={}, workload={}, folder=tmp_path)
    ledger = energy.EnergyLedger(builder.measured, machine, {0: 3.0})  # type: ignore[arg-type] # reads like a meter
    asyncio.run(ledger.begin(0))
    machine.spend(2.5, 100.0)
    ledger.end_early()
    (measured,) = builder.measured
    assert measured.samples == [] and measured.energy is not None and measured.energy.absent == energy._TOO_SHORT
