"""Totals of the sides' starts against those of one of them: medians, and a bootstrap over starts and their rounds.

    python compare_sides.py RECORDS [SIDE, default main]
"""
import json
import statistics
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np

METRICS = ("e2e_s", "median_completion_s", "thinker_itl_s", "talker_tpot_s", "ttft_s")


def main():
    starts = defaultdict(lambda: defaultdict(list))  # cell -> side -> starts, each a list of rounds
    for path in sorted(Path(sys.argv[1]).glob("*-*/qwen2.5-omni.json")):
        side = path.parent.name.split("-", 1)[1]
        for variant in json.loads(path.read_text())["variants"]:
            for metric in METRICS:
                values = [s["e2e_s"] if metric == "e2e_s" else s["metrics"].get(metric) for s in variant["samples"]]
                values = [v for v in values if v is not None]
                if values:
                    starts[variant["name"], metric][side].append(values)
    base = sys.argv[2] if len(sys.argv) > 2 else "main"
    rng = np.random.default_rng(0)
    for (variant, metric), sides in starts.items():
        if base not in sides:
            continue
        print(f"{variant} {metric}")
        for side, runs in sides.items():
            medians = " ".join(f"{statistics.median(r):.4g}" for r in runs)
            line = f"  {side:10} {statistics.median(statistics.median(r) for r in runs):.4g} s   of its starts: {medians}"
            if side != base:
                ratios = [drawn(runs, rng) / drawn(sides[base], rng) for _ in range(4000)]
                value = point(runs) / point(sides[base])
                line += f"   {value:.3f} [{np.percentile(ratios, 2.5):.3f}, {np.percentile(ratios, 97.5):.3f}] of {base}"
            print(line)


def point(runs):
    return np.mean([np.median(r) for r in runs])


def drawn(runs, rng):
    picked = rng.integers(len(runs), size=len(runs))
    return np.mean([np.median(rng.choice(runs[i], size=len(runs[i]))) for i in picked])


main()
