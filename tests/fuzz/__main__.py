"""Many cases of one target, from `tests`: `PYTHONPATH=.:.. python -m fuzz payloads --cases 10000000 --processes 2`.

Prints one JSON document. Exit code 1 where a case ended in anything but acceptance or a clean refusal; each of those
is in the document, with the case and its traceback.
"""

from __future__ import annotations

import argparse
import collections
import json
import math
import multiprocessing
import sys
import time
from concurrent.futures import ProcessPoolExecutor

from fuzz.share import run_share

TARGETS = ("payloads", "wire", "profiles", "records", "requests", "gates", "media")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", choices=TARGETS)
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=math.inf, help="stop after so many, with fewer cases")
    options = parser.parse_args()
    begin_s = time.perf_counter()
    count = options.processes
    shares = [(options.cases + number) // count for number in range(count)]
    jobs = [
        (options.target, number, count, share, options.seed, options.seconds) for number, share in enumerate(shares)
    ]
    # A process that hangs ends itself, and this one then reports it instead of waiting for it.
    with ProcessPoolExecutor(count, mp_context=multiprocessing.get_context("spawn")) as pool:
        results = list(pool.map(run_share, *zip(*jobs, strict=True)))
    ends: collections.Counter[str] = sum((result["ends"] for result in results), collections.Counter())
    findings = [finding for result in results for finding in result["findings"]]
    slowest_s, slowest = max(result["slowest"] for result in results)
    document = {
        "target": options.target,
        "cases": sum(ends.values()),
        "seed": options.seed,
        **{name: ends[name] for name in ("accepted", "rejected", "finding")},
        "seconds": round(time.perf_counter() - begin_s, 1),
        "slowest_case_s": slowest_s,
        "slowest_case": slowest,
        "peak_memory_mib": round(max(result["peak"] for result in results) / 2**20),
        "memory_growth_mib": round(max(result["growth"] for result in results) / 2**20, 1),
        "findings": findings,
    }
    sys.stdout.write(json.dumps(document, indent=2) + "\n")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
