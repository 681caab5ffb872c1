"""Host RSS of equal code: A/A runs of `omni bench`, the verdict of each, and the spread between loads.

    .venv/bin/python benchmarks/host_rss_noise.py --runs 20

Every run loads two variants that differ in nothing, a few iterations each. No run may call one of them larger or
smaller. The spread is what `omni_cli/stats/memory.py` is calibrated by: the standard deviation of the peak of loading,
and of what running adds to it.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from omni_cli.metrics import HOST_RSS
from omni_cli.record import Variant, load_record
from omni_cli.stats.memory import memory_peaks

MIB = 2**20
MARGIN = 0.02


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--profile", default="tiny-image")
    parser.add_argument("--num-iters", type=int, default=3)
    options = parser.parse_args()
    loads: list[Variant] = []
    verdicts = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(options.runs):
            a, b = _measure(options.profile, options.num_iters, Path(folder) / "record.json")
            loads += [a, b]
            peak = next(item for item in memory_peaks(a, b, MARGIN) if item.metric == HOST_RSS)
            verdicts.append(peak.verdict)
            low, high = peak.bounds or (peak.ratio, peak.ratio)
            _say(
                f"{number + 1:3}  {peak.a_bytes / MIB:7.1f} MiB  {peak.b_bytes / MIB:7.1f} MiB  "
                f"{(peak.b_bytes - peak.a_bytes) / MIB:+6.1f} MiB  {peak.ratio:.3f} [{low:.3f}, {high:.3f}]  "
                f"{peak.verdict}"
            )
    wrong = sum(verdict in ("more memory", "less memory") for verdict in verdicts)
    _say(f"wrong verdicts: {wrong} of {len(verdicts)}   goal: 0")
    for stage in loads[0].memory.stages:
        _print_spread(stage, loads)
    return int(wrong > 0)


def _measure(profile: str, num_iters: int, record: Path) -> tuple[Variant, Variant]:
    command = [
        sys.executable, "-m", "omni_cli", "bench", "--profile", profile, "--vary", "env.OMNI_AA=1,1", "--num-iters",
        str(num_iters), "--num-iters-warmup", "1", "--output-json", str(record), "--quiet",
    ]  # fmt: skip
    # 3 (inconclusive), because a few iterations do not decide about times.
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode in (0, 3), done.stderr
    a, b = load_record(record).variants
    return a, b


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
