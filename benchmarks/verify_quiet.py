"""Runs of `omni verify` where nothing is wrong: none may find a difference.

    python benchmarks/verify_quiet.py RESULTS --runs 20 [--model FOLDER]

Each bundled profile for tests, and a language model (scripts/smollm2.py makes one) in float32 and bfloat16. RESULTS has
a line per run; runs that are there already count, so that they can be spread over days.
"""

from __future__ import annotations

import argparse
import collections
import json
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

from omni_cli.core.version import read_commit

PROFILES = (
    "tiny-omni", "tiny-qwen3-omni", "tiny-image", "tiny-glm-image", "tiny-audio", "tiny-video", "tiny-csm",
    "tiny-vibevoice", "tiny-higgs-audio", "tiny-edit",
)  # fmt: skip


def verify(arguments: list[str]) -> str:
    """The verdicts of a run with their numbers, `20 equal, 1 near tie`, or its exit code."""
    command = [sys.executable, "-m", "omni_cli", "verify", *arguments, "--json", "-q"]
    ended = subprocess.run(command, capture_output=True, text=True)
    if ended.returncode not in (0, 5):
        return f"exit code {ended.returncode}"
    counts = collections.Counter(row["verdict"] for row in json.loads(ended.stdout)["rows"])
    return ", ".join(f"{counts[name]} {name}" for name in sorted(counts))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--model", type=Path)
    options = parser.parse_args()

    subjects = {name: ["--profile", name] for name in PROFILES}
    for dtype in ("float32", "bfloat16") if options.model else ():
        subjects[f"{options.model.name} {dtype}"] = ["--model", str(options.model), "--set", f"dtype={dtype}"]
    lines = options.results.read_text().splitlines() if options.results.exists() else []
    done = collections.Counter(line.split(": ")[0] for line in lines)
    for number in range(options.runs):
        for subject, arguments in subjects.items():
            if done[subject] > number:
                continue
            line = f"{subject}: {verify(arguments)} ({datetime.now(UTC):%Y-%m-%d}, {(read_commit() or 'unknown')[:8]})"
            done[subject] += 1
            with options.results.open("a") as file:
                file.write(f"{line}\n")
            sys.stdout.write(f"{line}\n")


if __name__ == "__main__":
    main()
