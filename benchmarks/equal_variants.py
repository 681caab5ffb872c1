"""A/A runs of `omni bench`: two variants that differ in nothing, what the verdicts are, and the spread between loads.

    .venv/bin/python benchmarks/equal_variants.py --runs 20 --num-iters 100
    .venv/bin/python benchmarks/equal_variants.py --runs 20 --num-iters 200 --planted image.num_inference_steps=8,9

No run may call one of them larger, smaller, faster or slower. The spread of the memory is what
`omni_cli/stats/compare.py` is calibrated by: the standard deviation of the peak of loading, and of what running adds to
it. The mean ratio of the times, and of either half, in which another one was loaded first, shows what the order does.

With `--planted` the two differ, the second one being slower; every second run begins with the other order. Each run
has to say so. `--results FILE` keeps what was measured: a run that ended there is not repeated, so that a series can be
continued.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from msgspec import structs

from omni_cli.records.metrics import E2E, HOST_RSS
from omni_cli.records.record import Record, Variant, load_record
from omni_cli.stats.compare import compare_variants, memory_peaks

MIB = 2**20
MARGIN = 0.02
OMNI = (sys.executable, "-m", "omni_cli")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--profile", default="tiny-image")
    parser.add_argument("--num-iters", type=int, default=3)
    parser.add_argument("--planted", metavar="KEY=FAST,SLOW", help="a setting, the second value being slower")
    parser.add_argument("--results", type=Path, help="JSON lines, one a run; added to")
    options = parser.parse_args()
    text = options.results.read_text() if options.results and options.results.exists() else ""
    runs = [json.loads(line) for line in text.splitlines()]
    for number, run in enumerate(runs):
        _say_run(number, run)
    for number in range(len(runs), options.runs):
        runs.append(_run(options, is_reversed=bool(options.planted) and number % 2 == 1))
        _say_run(number, runs[-1])
        if options.results:
            with options.results.open("a") as file:
                file.write(json.dumps(runs[-1]) + "\n")
    return _summarise(runs, options.planted)


def _summarise(runs: list[dict[str, Any]], planted: str | None) -> int:
    """Print what the runs say together; return the exit code."""
    wrong = sum(run["memory_verdict"] in ("more memory", "less memory") for run in runs)
    if planted:
        missed = sum(run["verdict"] != ("faster" if run["is_reversed"] else "slower") for run in runs)
        ratios = {
            order: [run["ratio"] ** (-1 if run["is_reversed"] else 1) for run in runs if run["is_reversed"] == order]
            for order in (False, True)
        }
        _say(f"{planted}: found in {len(runs) - missed} of {len(runs)}   goal: all")
        _say_mean("slow by fast, the fast one loaded first", ratios[False])
        _say_mean("slow by fast, the slow one loaded first", ratios[True])
        return int(missed > 0)
    called = sum(run["verdict"] in ("faster", "slower") for run in runs)
    _say(f"wrong verdicts on memory: {wrong} of {len(runs)}   goal: 0")
    _say(f"wrong verdicts on time: {called} of {len(runs)}   goal: 0")
    _say_mean("time, second by first loaded", [run["ratio"] for run in runs])
    for number, name in enumerate(("before half time", "after it, loaded in the other order")):
        _say_mean(f"  {name}", [run["halves"][number] for run in runs if run.get("halves")])
    for stage in runs[0]["peaks_mib"] if runs else ():
        _print_spread(stage, [peaks for run in runs for peaks in run["peaks_mib"][stage]])
    return int(wrong + called > 0)


def _run(options: argparse.Namespace, *, is_reversed: bool) -> dict[str, Any]:
    vary = options.planted or "env.OMNI_AA=1,1"
    if is_reversed:
        key, _, values = vary.partition("=")
        vary = f"{key}={','.join(reversed(values.split(',')))}"
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        record = _measure(options, vary, Path(folder) / "record.json")
    a, b = record.variants
    peak = next(item for item in memory_peaks(a, b, MARGIN) if item.metric == HOST_RSS)
    times = next(item for item in record.comparisons if item.metric == E2E)
    assert isinstance(times.ratio, float) and isinstance(times.a_median, float)
    return {
        "is_reversed": is_reversed,
        "commit": record.environment["code"].get("commit", "unknown")[:8],
        "took_s": round(time.monotonic() - began_s, 1),
        "ratio": times.ratio,
        "halves": _halves(record),
        "verdict": times.verdict,
        "a_s": times.a_median,
        "memory_mib": peak.a_bytes / MIB,
        "memory_ratio": peak.ratio,
        "memory_bounds": peak.bounds or (peak.ratio, peak.ratio),
        "memory_verdict": peak.verdict,
        "peaks_mib": {stage: [_peaks_mib(variant, stage) for variant in (a, b)] for stage in a.memory.stages},
    }


def _halves(record: Record) -> list[float] | None:
    """Return the ratio before and after half time; None if nothing was loaded again."""
    start = record.sampling.reversed_from
    if not isinstance(start, int):
        return None
    ratios = []
    for is_second in (False, True):
        a, b = (
            structs.replace(item, samples=tuple(s for s in item.samples if (s.block >= start) == is_second))
            for item in record.variants
        )
        (found,) = compare_variants(a, b, same_record=True, metrics=[E2E])
        ratios.append(found.result.ratio)
    return ratios


def _measure(options: argparse.Namespace, vary: str, path: Path) -> Record:
    command = [
        *OMNI, "bench", "--profile", options.profile, "--vary", vary, "--num-iters",
        str(options.num_iters), "--num-iters-warmup", "1", "--output-json", str(path), "--quiet",
    ]  # fmt: skip
    # 3 (inconclusive), because a few iterations do not decide about times.
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode in (0, 3), done.stderr
    return load_record(path)


def _peaks_mib(variant: Variant, stage: str) -> list[float]:
    return [variant.memory.stages[stage][phase][HOST_RSS] / MIB for phase in ("load", "run")]


def _print_spread(stage: str, loads: list[list[float]]) -> None:
    peaks = [load for load, _ in loads]
    added = [run - load for load, run in loads]
    _say(
        f"{stage}: {len(loads)} loads, peak of loading {statistics.mean(peaks):.1f} MiB, standard deviation "
        f"{statistics.stdev(peaks):.2f} MiB; running adds {statistics.mean(added):.1f} MiB, standard deviation "
        f"{statistics.stdev(added):.2f} MiB, {statistics.stdev(added) / statistics.mean(added):.3f} of it"
    )


def _say_run(number: int, run: dict[str, Any]) -> None:
    low, high = run["memory_bounds"]
    _say(
        f"{number + 1:3}  {run['memory_mib']:7.1f} MiB  {run['memory_ratio']:.3f} [{low:.3f}, {high:.3f}]  "
        f"{run['memory_verdict']:13}  {run['a_s'] * 1e3:7.2f} ms  {run['ratio']:.3f}  {run['verdict']}"
    )


def _say_mean(what: str, ratios: list[float]) -> None:
    if len(ratios) > 1:
        error = statistics.stdev(ratios) / len(ratios) ** 0.5
        _say(f"{what}: mean {statistics.mean(ratios):.4f}, standard error {error:.4f}, {len(ratios)} runs")


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
