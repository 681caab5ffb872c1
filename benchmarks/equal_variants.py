"""A/A runs of `omni bench`: two variants that differ in nothing, what the verdicts are, and the spread between loads.

    .venv/bin/python benchmarks/equal_variants.py --runs 20 --num-iters 100

No run may call one of them larger, smaller, faster or slower. The spread of the memory is what
`omni_cli/stats/compare.py` is calibrated by: the standard deviation of the peak of loading, and of what running adds to
it. The mean ratio of the times shows whether it matters which variant is loaded first.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from omni_cli.records.metrics import E2E, HOST_RSS
from omni_cli.records.record import Record, Variant, load_record
from omni_cli.stats.compare import memory_peaks

MIB = 2**20
MARGIN = 0.02


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--profile", default="tiny-image")
    parser.add_argument("--num-iters", type=int, default=3)
    options = parser.parse_args()
    loads: list[Variant] = []
    ratios: list[float] = []
    wrong = {"memory": 0, "time": 0}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(options.runs):
            record = _measure(options.profile, options.num_iters, Path(folder) / "record.json")
            a, b = record.variants
            loads += [a, b]
            peak = next(item for item in memory_peaks(a, b, MARGIN) if item.metric == HOST_RSS)
            time = next(item for item in record.comparisons if item.metric == E2E)
            assert isinstance(time.ratio, float) and isinstance(time.a_median, float)
            ratios.append(time.ratio)
            wrong["memory"] += peak.verdict in ("more memory", "less memory")
            wrong["time"] += time.verdict in ("faster", "slower")
            low, high = peak.bounds or (peak.ratio, peak.ratio)
            _say(
                f"{number + 1:3}  {peak.a_bytes / MIB:7.1f} MiB  {peak.ratio:.3f} [{low:.3f}, {high:.3f}]  "
                f"{peak.verdict:13}  {time.a_median * 1e3:7.2f} ms  {time.ratio:.3f}  {time.verdict}"
            )
    for kind, number in wrong.items():
        _say(f"wrong verdicts on {kind}: {number} of {options.runs}   goal: 0")
    if options.runs > 1:
        error = statistics.stdev(ratios) / len(ratios) ** 0.5
        _say(f"time, second by first loaded: mean {statistics.mean(ratios):.4f}, standard error {error:.4f}")
    for stage in loads[0].memory.stages:
        _print_spread(stage, loads)
    return int(any(wrong.values()))


def _measure(profile: str, num_iters: int, path: Path) -> Record:
    command = [
        sys.executable, "-m", "omni_cli", "bench", "--profile", profile, "--vary", "env.OMNI_AA=1,1", "--num-iters",
        str(num_iters), "--num-iters-warmup", "1", "--output-json", str(path), "--quiet",
    ]  # fmt: skip
    # 3 (inconclusive), because a few iterations do not decide about times.
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode in (0, 3), done.stderr
    return load_record(path)


def _print_spread(stage: str, loads: list[Variant]) -> None:
    peaks = [[load.memory.stages[stage][phase][HOST_RSS] / MIB for load in loads] for phase in ("load", "run")]
    added = [run - load for load, run in zip(*peaks, strict=True)]
    _say(
        f"{stage}: {len(loads)} loads, peak of loading {statistics.mean(peaks[0]):.1f} MiB, standard deviation "
        f"{statistics.stdev(peaks[0]):.2f} MiB; running adds {statistics.mean(added):.1f} MiB, standard deviation "
        f"{statistics.stdev(added):.2f} MiB, {statistics.stdev(added) / statistics.mean(added):.3f} of it"
    )


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
