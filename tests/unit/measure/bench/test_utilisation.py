"""Sampling of the machine: rates from counters, system files, and the sampler's cost."""

from __future__ import annotations

import itertools
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.bench_records import pair, record

from omni_cli.core.errors import InputError
from omni_cli.core.machine import visible_devices
from omni_cli.measure.bench.utilisation import (
    MAX_SAMPLES,
    MAX_SHARE,
    Counters,
    GpuState,
    MachineCounters,
    UtilisationSampler,
    throttle_names,
)
from omni_cli.records.record import Utilisation, load_record
from omni_cli.records.record_file import save_record

pytestmark = pytest.mark.slow


UUIDS = ["GPU-aa11", "GPU-ab22", "GPU-bb33"]


class Scripted(MachineCounters):
    """A machine whose counters are given; the last ones stay."""

    usable_cores = 4
    gpu_names = ((2, "H200"),)

    def __init__(self, readings: list[Counters]) -> None:
        self._readings = iter(readings)
        self._last = readings[-1]

    def read(self) -> Counters:
        self._last = next(self._readings, replace(self._last, at_s=self._last.at_s + 1))
        return self._last


def reading(at_s: float, busy_s: float, own_s: float, **more: Any) -> Counters:
    state = GpuState(50.0, 1485.0, 60.0, 300.0, ("power_cap",) if at_s > 11 else (), max_sm_clock_mhz=1980.0)
    return Counters(at_s=at_s, busy_s=busy_s, own_s=own_s, stolen_s=0.1 * at_s, gpus=(state,), **more)


def sampled(readings: list[Counters]) -> Utilisation:
    sampler = UtilisationSampler(lambda: Scripted(readings), interval_s=0.002)
    with sampler:
        time.sleep(0.1)
        wait_until(lambda: len(sampler.utilisation().end_s) > 1)
        sampler.block_ended()
    return sampler.utilisation()


def wait_until(condition: Callable[[], object]) -> None:
    """On a busy machine a sample comes late."""
    deadline = time.monotonic() + 30
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)


def test_counters_become_rates() -> None:
    began_s = time.monotonic()
    found = sampled(
        [reading(10, 100, 50, quota=(5, 1)), reading(11, 103, 52, quota=(9, 2)), reading(13, 105, 52, quota=(9, 2))]
    )
    assert found.usable_cores == 4 and found.error is None
    assert found.busy_cores[:2] == (3.0, 1.0)
    assert found.own_cores[:2] == (2.0, 0.0)
    assert found.stolen_cores[:2] == (0.1, 0.1)
    assert found.held_back[:2] == (0.25, 0.0)
    assert found.cpu_mhz == ()
    (gpu,) = found.gpus
    assert (gpu.index, gpu.name, gpu.throttled[:2], gpu.power_w[0]) == (2, "H200", ("", "power_cap"), 300.0)
    assert (gpu.sm_clock_mhz[0], gpu.max_sm_clock_mhz) == (1485.0, 1980.0)
    # In whole milliseconds, as they are recorded.
    assert len(found.block_end_s) == 1 and 0.1 <= found.block_end_s[0] <= round(time.monotonic() - began_s, 3)


def test_a_process_that_left_the_family_makes_no_negative_rate() -> None:
    found = sampled([reading(10, 100, 50), reading(11, 101, 20), reading(12, 102, 21)])
    assert found.own_cores[:2] == (0.0, 1.0)


def test_a_failing_observer_is_reported_and_harmless() -> None:
    class Broken(Scripted):
        def read(self) -> Counters:
            if super().read().at_s > 11:
                raise OSError("no more files")
            return self._last

    sampler = UtilisationSampler(
        lambda: Broken([reading(10, 1, 1), reading(11, 2, 1), reading(12, 3, 1)]), interval_s=0.002
    )
    with sampler:
        wait_until(lambda: sampler.utilisation().error)
    found = sampler.utilisation()
    assert found.error == "OSError: no more files" and found.busy_cores == (1.0,)


def test_a_run_of_hours_keeps_a_small_record() -> None:
    sampler = UtilisationSampler(
        lambda: Scripted([reading(n, n, n / 2) for n in range(10, 10 + 2 * MAX_SAMPLES)]), interval_s=1e-5
    )
    with sampler:
        wait_until(lambda: sampler.utilisation().interval_s > 1e-5)
    found = sampler.utilisation()
    assert found.interval_s >= 2e-5 and len(found.end_s) <= MAX_SAMPLES
    assert set(found.busy_cores) == {1.0} and all(b > a for a, b in itertools.pairwise(found.end_s))


def test_time_of_a_child_is_ours_and_stays_ours_when_it_has_ended() -> None:
    source = MachineCounters()
    before = source.read()
    program = "import time\nwhile time.process_time() < 0.6: pass\ninput('done')"
    child = subprocess.Popen([sys.executable, "-uc", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdout is not None and child.stdout.read(4) == b"done"
    running = source.read()
    child.communicate(b"\n")
    ended = source.read()
    assert 0.5 <= running.own_s - before.own_s < 1.5
    assert ended.own_s >= running.own_s
    assert running.busy_s - before.busy_s > 0.4


def test_sampling_about_twice_per_second_and_its_cost() -> None:
    with UtilisationSampler() as sampler:
        wait_until(lambda: len(sampler.utilisation().end_s) > 3)
    found = sampler.utilisation()
    # A busy machine delays some of them, and one with many processes makes them dear.
    expected = pytest.approx(max(0.5, found.cost_s / len(found.end_s) / MAX_SHARE), rel=0.3)
    assert statistics.median(b - a for a, b in itertools.pairwise((0.0, *found.end_s))) == expected
    assert 0 < found.cost_s < found.end_s[-1]
    assert all(0 <= busy <= found.usable_cores * 1.1 for busy in found.busy_cores)


def fake_system(folder: Path, files: dict[str, str]) -> MachineCounters:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    return MachineCounters(folder)


V2, V1 = "sys/fs/cgroup", "sys/fs/cgroup/cpu"
STAT = "usage_usec 5\nnr_periods 9\nnr_throttled 4"


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({}, None),
        ({f"{V2}/cpu.max": "max 100000", f"{V2}/cpu.stat": STAT}, None),
        ({f"{V2}/cpu.max": "200000 100000", f"{V2}/cpu.stat": STAT}, (9, 4)),
        ({f"{V1}/cpu.cfs_quota_us": "-1", f"{V1}/cpu.stat": STAT}, None),
        ({f"{V1}/cpu.cfs_quota_us": "50000", f"{V1}/cpu.cfs_period_us": "100000", f"{V1}/cpu.stat": STAT}, (9, 4)),
        ({f"{V2}/cpu.max": "200000 100000"}, None),
    ],
)
def test_quotas_of_containers(files: dict[str, str], quota: tuple[int, int] | None, tmp_path: Path) -> None:
    groups = {"proc/self/cgroup": "2:cpu,cpuacct:/\n0::/\n"}
    assert fake_system(tmp_path, {**groups, **files}).read().quota == quota


def test_the_clock_is_that_of_the_fastest_core(tmp_path: Path) -> None:
    name = "sys/devices/system/cpu/cpu{}/cpufreq/scaling_cur_freq"
    clocks = {name.format(core): f"{2_000_000 + 1000 * core}\n" for core in range(4096)}
    assert fake_system(tmp_path / "none", {}).read().cpu_mhz is None
    usable = MachineCounters().usable_cores
    found = fake_system(tmp_path / "some", dict(itertools.islice(clocks.items(), 2 * usable + 16))).read().cpu_mhz
    assert found is not None and 2000 <= found < 6100


@pytest.mark.parametrize(
    ("variable", "expected"),
    [
        (None, [0, 1, 2]), ("", []), ("1", [1]), ("2,0", [2, 0]), (" 0 , 1", [0, 1]), ("0,7,1", [0]), ("-1", []),
        ("GPU-ab", [1]), ("GPU-bb33,GPU-aa", [2, 0]), ("GPU-", []),
    ],
)  # fmt: skip
def test_devices_that_cuda_would_use(variable: str | None, expected: list[int]) -> None:
    assert visible_devices(UUIDS, variable) == expected


def test_reasons_that_slow_down_have_names() -> None:
    assert throttle_names(0x1 | 0x2 | 0x10 | 0x100) == ()
    assert throttle_names(0x4) == ("power_cap",)
    assert throttle_names(0x8 | 0x20 | 0x40 | 0x80) == ("hw_slowdown", "thermal", "power_brake")


def saved(tmp_path: Path, utilisation: Utilisation | None) -> Path:
    path = tmp_path / "record.json"
    save_record(msgspec.structs.replace(record(*pair(blocks=4)), utilisation=utilisation), path)
    return path


GOOD = Utilisation(interval_s=0.5, cost_s=0.01, usable_cores=2, end_s=(0.5, 1.0), busy_cores=(1.0, 2.0),
                   own_cores=(1.0, 1.0), stolen_cores=(0.0, 0.0), block_end_s=(0.9,))  # fmt: skip


def test_a_record_keeps_it(tmp_path: Path) -> None:
    assert load_record(saved(tmp_path, GOOD)).utilisation == GOOD


def test_a_record_of_before_loads(tmp_path: Path) -> None:
    path = saved(tmp_path, None)
    document = msgspec.json.decode(path.read_bytes())
    del document["utilisation"], document["digest"]
    path.write_bytes(msgspec.json.encode(document))
    assert load_record(path).utilisation is None


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"busy_cores": (1.0,)}, "different lengths"),
        ({"held_back": (0.1,)}, "different lengths"),
        ({"own_cores": (1.0, -1.0)}, r"expected `float` >= 0.0 at `utilisation.own_cores"),
        ({"end_s": (1.0, 1.0)}, "do not increase"),
        ({"block_end_s": (1e12,)}, "expected `float` <= 10000000000.0 at `utilisation.block_end_s"),
    ],
)
def test_invalid_series_are_rejected(change: dict, said: str, tmp_path: Path) -> None:
    path = saved(tmp_path, msgspec.structs.replace(GOOD, **change))
    with pytest.raises(InputError, match=said):
        load_record(path)
