"""Energy as omni measures it, against an integration of its own, and per request, token, second of audio and image.

    PYTHONPATH=. python benchmarks/energy.py [-o FILE] [--seconds 10] [--device 0] [-- ARGUMENTS OF omni bench]

First, matrix products keep a GPU busy, while a thread reads its counter and its power ten times per second. The moves
of the counter, the integral of the power, and omni's two ways, the counter at both edges and integrated power, are
figures of the same seconds; omni's counter is to be within 5 % of the own one. Then `omni bench` runs with the
arguments after `--`, such as `--profile qwen2.5-omni-7b --model out/seven --num-iters 8`, and its joules are printed.

Exit code 0: within 5 %; 1: not.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from omni_cli.core.energy import EnergyMeter, count_millijoules, integrate_milliwatts
from omni_cli.core.machine import open_nvml

ALLOWED = 0.05
PERIOD_S = 0.1
PROGRAM = (sys.executable, "-m", "omni_cli")
Query = Callable[[], int]


class Own:
    """Reads a counter of millijoules and a power in milliwatts in a thread, while its `with` block runs."""

    def __init__(self, count: Query, power: Query) -> None:
        self._queries = count, power
        self.rows: list[tuple[float, float, float]] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Own:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while True:
            count, power = self._queries
            self.rows.append((time.monotonic(), count() / 1000, power() / 1000))
            if self._stop.wait(PERIOD_S):
                return

    def watts(self) -> tuple[float, float]:
        """Return the mean power by the counter, from its first move to its last one, and by the power's integral."""
        pairs = list(zip(self.rows, self.rows[1:], strict=False))
        moves = [after for before, after in pairs if after[1] != before[1]]
        first, last = moves[0], moves[-1]
        area = sum((after[0] - before[0]) * (after[2] + before[2]) / 2 for before, after in pairs)
        return (last[1] - first[1]) / (last[0] - first[0]), area / (self.rows[-1][0] - self.rows[0][0])


def compare(work: Callable[[], None], count: Query, power: Query) -> dict[str, float]:
    """Return the mean power during `work`, in watts, as each way has it."""
    meter = EnergyMeter({"counter": count_millijoules(count), "integrated": integrate_milliwatts(power)})
    before = meter.read()
    with Own(count, power) as own:
        work()
        used = meter.read().since(before)
    meter.close()
    by_counter, by_power = own.watts()
    omni = used.power_w
    return {
        "seconds": used.seconds,
        "own counter": by_counter,
        "own power": by_power,
        "omni counter": omni["counter"],
        "omni integrated": omni["integrated"],
        "omni counter / own counter": omni["counter"] / by_counter,
        "omni integrated / own counter": omni["integrated"] / by_counter,
    }


def keep_busy(device: str, seconds: float) -> None:
    """Multiply matrices for so long."""
    import torch

    matrix = torch.randn(8192, 8192, device=device, dtype=torch.bfloat16)
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s:
        for _ in range(20):
            torch.mm(matrix, matrix)
        torch.cuda.synchronize(device)


def bench(arguments: Sequence[str], program: Sequence[str] = PROGRAM) -> list[dict[str, object]]:
    """Run `omni bench` and return the energy of each variant. Raises `CalledProcessError`."""
    ended = subprocess.run([*program, "bench", *arguments, "--json"], stdout=subprocess.PIPE, check=True)
    return [
        {
            "variant": variant["name"],
            **{name: item["median"] for name, item in variant["summary"].items() if name.endswith("_j")},
            **(variant["energy"] or {}),
        }
        for variant in json.loads(ended.stdout)["variants"]
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, help="Write the figures to this file, too.")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--device", type=int, default=0, help="Position among the devices that are visible.")
    parser.add_argument("bench", nargs="*", metavar="ARGUMENT", help="Arguments of `omni bench`, after `--`.")
    options = parser.parse_args()
    nvml, devices = open_nvml()
    handle = devices[options.device][1]
    count = partial(nvml.nvmlDeviceGetTotalEnergyConsumption, handle)
    power = partial(nvml.nvmlDeviceGetPowerUsage, handle)
    device = f"cuda:{options.device}"
    keep_busy(device, 2.0)  # the power that it settles at; the mean of the last second is that of the load
    figures: dict[str, object] = {"power_w": compare(partial(keep_busy, device, options.seconds), count, power)}
    if options.bench:
        figures["bench"] = bench(options.bench)
    text = json.dumps(figures, indent=2)
    sys.stdout.write(text + "\n")
    if options.output is not None:
        options.output.write_text(text + "\n")
    return 0 if is_close(figures["power_w"]) else 1


def is_close(power_w: object) -> bool:
    assert isinstance(power_w, dict)
    return abs(power_w["omni counter / own counter"] - 1) <= ALLOWED


if __name__ == "__main__":
    sys.exit(main())
