"""Time from the start of a command to its first output on stdout, and to its end.

    python benchmarks/first_output.py [--runs 3] COMMAND...

    python benchmarks/first_output.py omni generate "hello" -p qwen2.5-omni-7b --model out/seven --max-tokens 32 \\
        --set talker.sampling.max_tokens=100

Text is streamed to stdout, so for an omni model this is the time to the first token. The lines on stderr that say how
long each stage took to load follow. The first run on a machine compiles kernels.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import threading
import time
from dataclasses import dataclass


@dataclass(frozen=True)
class Run:
    first_output_s: float | None
    end_s: float
    exit_code: int
    messages: str


def run(command: list[str]) -> Run:
    begin = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        messages = bytearray()
        reader = threading.Thread(target=lambda: messages.extend(process.stderr.read()))
        reader.start()
        first = time.perf_counter() - begin if process.stdout.read(1) else None
        process.stdout.read()
        reader.join()
    return Run(first, time.perf_counter() - begin, process.returncode, messages.decode(errors="replace"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    for index in range(options.runs):
        made = run(options.command)
        if made.exit_code or made.first_output_s is None:
            sys.stderr.write(f"{made.messages}\nexit code {made.exit_code}\n")
            return 2
        sys.stdout.write(f"run {index + 1}   first output {made.first_output_s:.2f} s   end {made.end_s:.2f} s\n")
        loaded = [line for line in made.messages.splitlines() if "loaded in" in line]
        sys.stdout.write("".join(f"  {line.strip()}\n" for line in loaded))
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
