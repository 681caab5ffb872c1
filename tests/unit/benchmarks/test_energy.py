"""The script that measures energy by itself, with a counter and a power of 100 W in place of a GPU's."""

from __future__ import annotations

import json
import runpy
import sys
import time
from pathlib import Path
from typing import Any

import pytest

SCRIPT = runpy.run_path(str(Path(__file__).resolve().parents[3] / "benchmarks" / "energy.py"))
COUNTERS: dict[str, Any] = {"sources": {"gpu0": "NVML counter"}, "idle_power_w": {"gpu0": 70.0}, "absent": None}
VARIANT = {
    "name": "a",
    "summary": {"e2e_s": {"median": 0.5}, "energy_j": {"median": 50.0}, "energy_per_image_j": {"median": 25.0}},
    "energy": COUNTERS,
}


def test_all_ways_find_the_power() -> None:
    def count() -> int:
        return int(time.monotonic() / 0.1) * 10_000

    found = SCRIPT["compare"](lambda: time.sleep(2.0), count, lambda: 100_000)
    assert [found["own power"], found["omni integrated"]] == pytest.approx([100, 100], rel=0.01)
    assert found["own counter"] == pytest.approx(100, rel=0.2)
    assert found["omni counter"] == pytest.approx(100, rel=0.2)
    assert SCRIPT["is_close"]({"omni counter / own counter": 1.04})
    assert not SCRIPT["is_close"]({"omni counter / own counter": 0.94})


def test_a_benchmark_has_its_joules() -> None:
    document = json.dumps({"variants": [VARIANT]})
    program = (sys.executable, "-c", f"import sys; assert sys.argv[1] == 'bench'; print({document!r})")
    assert SCRIPT["bench"](["--num-iters", "3"], program) == [
        {"variant": "a", "energy_j": 50.0, "energy_per_image_j": 25.0, **COUNTERS}
    ]
