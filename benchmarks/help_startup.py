"""How long `omni --help` takes beside `vllm --help`, on this machine, in turns.

    python benchmarks/help_startup.py [--pairs 10]

Both are started from the same environment as new processes; the order alternates from pair to pair so that a
drift of the machine's speed hits both alike. One unmeasured pair first fills the file cache.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from pathlib import Path

GOAL = 1 / 20
COMMANDS = ("omni", "vllm")


def main() -> int:
    parser = argparse.ArgumentParser(description="Time `omni --help` against `vllm --help`.")
    parser.add_argument("--pairs", type=int, default=10)
    pairs = parser.parse_args().pairs
    folder = Path(sys.executable).parent
    programs = {name: folder / name for name in COMMANDS}
    missing = [str(program) for program in programs.values() if not program.exists()]
    if missing:
        sys.stderr.write(f"error: not found: {', '.join(missing)}\n\nhint: run `make install` first\n")
        return 2
    times: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for pair in range(pairs + 1):
        for name in COMMANDS if pair % 2 else reversed(COMMANDS):
            seconds = time_help(programs[name])
            if pair:
                times[name].append(seconds)
    medians = {name: statistics.median(values) for name, values in times.items()}
    for name, values in times.items():
        sys.stdout.write(
            f"{name} --help   median {medians[name]:.3f} s   "
            f"range {min(values):.3f} s to {max(values):.3f} s   {len(values)} runs\n"
        )
    ratio = medians["omni"] / medians["vllm"]
    verdict = "met" if ratio <= GOAL else "missed"
    sys.stdout.write(f"ratio {ratio:.4f} = 1/{1 / ratio:.0f}   goal: at most 1/{1 / GOAL:.0f}, {verdict}\n")
    return 0 if ratio <= GOAL else 1


def time_help(program: Path) -> float:
    """Wall seconds of one `PROGRAM --help`, which has to succeed and print something."""
    started = time.perf_counter()
    result = subprocess.run([program, "--help"], capture_output=True)
    seconds = time.perf_counter() - started
    if result.returncode or not result.stdout:
        sys.stderr.write(result.stderr.decode(errors="replace"))
        sys.exit(f"error: `{program} --help` failed with status {result.returncode}")
    return seconds


if __name__ == "__main__":
    sys.exit(main())
