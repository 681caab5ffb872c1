"""Error rates of `omni history`: false alarms of series without a step, and the share of steps found in time.

    python benchmarks/history_calibration.py [--series 200] [--seed 1] [--json]

Every series has 100 nights and is replayed as a nightly job meets it: after each night the steps are looked for in the
nights so far. An alarm in a series without a step is false. Two readings of "lag-1 autocorrelation 0.75 and a
coefficient of variation (CV) of 5 to 50 %" are measured, because they differ by a factor of ten:

* within a night: runs of one night have that noise (as those of `benchmarks/gate_calibration.py`, which was measured);
  a night is the median of 714 runs (60 s of 84 ms), and loads of the same code differ by 0.7 % from night to night;
* between nights: the nightly medians themselves have it. A step of 5 % is then a fraction of the ordinary difference
  between two nights, and nothing can find it within five of them.

Disturbed series, on top of the noise within a night at a CV of 5 %: a machine that drifts (a random walk of 0.1 % or
0.3 % per night, or a wave of 3 % over 50 nights), a ramp of 5 % over the 100 nights, and outliers (one night in 20 is
20 to 100 % slower).

For noise alone, "at most" is the power within five nights of the best test there can be with an error of one in 200:
Neyman and Pearson's, which knows the noise, the level before, and the one night to look at. Rates are
printed with the 95 % Wilson interval of a proportion.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable
from statistics import NormalDist

import numpy as np
from common import machine, machine_line, wilson

from omni_cli.stats.changes import get_steps
from omni_cli.stats.compare import MARGIN

NIGHTS = 100
RUNS = 714
LAG1 = 0.75
LOAD_CV = 0.007
STEP_AT = 60
STEP = math.log(1.05)
IN_TIME = 5
CVS = (0.05, 0.1, 0.2, 0.5)
QUIET_CVS = (0.005, 0.01, 0.02)

Series = Callable[[np.random.Generator], np.ndarray]


def autocorrelated(rng: np.random.Generator, count: int, length: int, lag1: float) -> np.ndarray:
    """Return standard normal AR(1) series, (count, length)."""
    noise = rng.standard_normal((length, count))
    series = np.empty_like(noise)
    series[0] = noise[0]
    for index in range(1, length):
        series[index] = lag1 * series[index - 1] + math.sqrt(1 - lag1**2) * noise[index]
    return series.T


def within(cv: float) -> Series:
    """Nights whose runs have the noise; log of the nightly median."""

    def make(rng: np.random.Generator) -> np.ndarray:
        runs = autocorrelated(rng, NIGHTS, RUNS, LAG1)
        return cv * np.median(runs, axis=1) + LOAD_CV * rng.standard_normal(NIGHTS)

    return make


def between(cv: float, lag1: float = LAG1) -> Series:
    """Nights that have the noise themselves."""
    return lambda rng: cv * autocorrelated(rng, 1, NIGHTS, lag1)[0]


def plus(noise: Series, other: Series) -> Series:
    return lambda rng: noise(rng) + other(rng)


def walk(per_night: float) -> Series:
    return lambda rng: per_night * np.cumsum(rng.standard_normal(NIGHTS))


def wave(rng: np.random.Generator) -> np.ndarray:
    return 0.03 * np.sin(2 * np.pi * (np.arange(NIGHTS) / 50 + rng.random()))


def ramp(_rng: np.random.Generator) -> np.ndarray:
    return STEP * np.arange(NIGHTS) / NIGHTS


def outliers(rng: np.random.Generator) -> np.ndarray:
    return (rng.random(NIGHTS) < 0.05) * np.log(rng.uniform(1.2, 2.0, NIGHTS))


def step(_rng: np.random.Generator) -> np.ndarray:
    return STEP * (np.arange(NIGHTS) >= STEP_AT)


WITHOUT_A_STEP: dict[str, Series] = {
    **{f"noise within nights, CV {cv:.0%}": within(cv) for cv in CVS},
    **{f"noise between nights, CV {cv:.0%}": between(cv) for cv in CVS},
    "noise between nights, CV 1%, lag-1 0.9": between(0.01, 0.9),
    "drifting machine, a walk of 0.1% per night": plus(within(0.05), walk(0.001)),
    "drifting machine, a walk of 0.3% per night": plus(within(0.05), walk(0.003)),
    "drifting machine, a wave": plus(within(0.05), wave),
    "ramp of 5%": plus(within(0.05), ramp),
    "ramp of 5%, noise between nights, CV 1%": plus(between(0.01), ramp),
    "ramp of 5%, noise between nights, CV 5%": plus(between(0.05), ramp),
    "outliers": plus(within(0.05), outliers),
    "outliers, noise between nights, CV 5%": plus(between(0.05), outliers),
}
BOUNDS = {
    **{f"noise within nights, CV {cv:.0%}": ("within", cv) for cv in CVS},
    **{f"noise between nights, CV {cv:.1%}": ("between", cv) for cv in (*QUIET_CVS, *CVS)},
}
WITH_A_STEP: dict[str, Series] = {
    **{f"noise within nights, CV {cv:.0%}": plus(within(cv), step) for cv in CVS},
    **{f"noise between nights, CV {cv:.1%}": plus(between(cv), step) for cv in (*QUIET_CVS, *CVS)},
    "outliers": plus(plus(within(0.05), outliers), step),
    "drifting machine, a wave": plus(plus(within(0.05), wave), step),
}


def best_power(noise: str, cv: float) -> float:
    """Return the largest share of steps that any rule with one false alarm in 200 series can find in time."""
    lags = np.abs(np.subtract.outer(np.arange(STEP_AT + IN_TIME), np.arange(STEP_AT + IN_TIME)))
    if noise == "within":
        # The variance of the median of autocorrelated normal runs, for many runs.
        median = (math.pi / 2 + 2 * sum(math.asin(LAG1**lag) for lag in range(1, RUNS))) / RUNS
        covariance = (LOAD_CV**2 + cv**2 * median) * (lags == 0)
    else:
        covariance = cv**2 * LAG1**lags
    shape = STEP * (np.arange(STEP_AT + IN_TIME) >= STEP_AT)
    distance = math.sqrt(shape @ np.linalg.solve(covariance, shape))
    return NormalDist().cdf(distance - NormalDist().inv_cdf(1 - 1 / 200))


def main() -> int:
    options = _options()
    document: dict[str, object] = {"machine": machine(), "series": options.series, "seed": options.seed}
    _say(options, machine_line())
    document["false_alarms"] = _false_alarms(options)
    document["steps"] = _steps(options)
    if options.json:
        sys.stdout.write(json.dumps(document, indent=2) + "\n")
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--series", type=int, default=200, help="series per row")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="rows whose name contains this text")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def _false_alarms(options: argparse.Namespace) -> dict[str, int]:
    _say(
        options,
        f"\nSeries of {NIGHTS} nights without a step: false alarms in {options.series} series, seed {options.seed}",
    )
    found = {}
    for name, make in WITHOUT_A_STEP.items():
        if options.only in name:
            rng = np.random.default_rng(options.seed)
            found[name] = sum(bool(_steps_in(make(rng))) for _ in range(options.series))
            _say(options, f"  {name:45} {found[name]:4}   {_interval(found[name], options.series)}")
    return found


def _steps(options: argparse.Namespace) -> dict[str, dict[str, int]]:
    _say(
        options,
        f"\nA step of 5% before night {STEP_AT + 1}, in {options.series} series: found within {IN_TIME} nights; at "
        "most; by night 100; of those, in the reported range of commits; series with a false alarm before",
    )
    found = {}
    for name, make in WITH_A_STEP.items():
        if options.only in name:
            rng = np.random.default_rng(options.seed + 1)
            replays = [_steps_in(make(rng)) for _ in range(options.series)]
            true = [next((s for s in steps if s.found >= STEP_AT and s.size > 0), None) for steps in replays]
            counts = {
                "in_time": sum(s is not None and s.found < STEP_AT + IN_TIME for s in true),
                "ever": sum(s is not None for s in true),
                "in_range": sum(s is not None and s.earliest <= STEP_AT <= s.latest for s in true),
                "false": sum(any(s.found < STEP_AT for s in steps) for steps in replays),
            }
            found[name] = counts
            shares = f"{counts['in_time'] / options.series:6.1%} {_interval(counts['in_time'], options.series)}"
            most = f"{best_power(*BOUNDS[name]):6.1%}" if name in BOUNDS else ""
            later = f"{counts['ever'] / options.series:6.1%} {counts['in_range'] / max(counts['ever'], 1):6.1%}"
            _say(options, f"  {name:45} {shares} {most:6} {later} {counts['false']:4}")
    return found


def _steps_in(values: np.ndarray) -> list:
    return list(get_steps(values, 0.0, math.log1p(MARGIN)))


def _interval(count: int, total: int) -> str:
    low, high = wilson(count, total)
    return f"[{low:5.1%}, {high:5.1%}]"


def _say(options: argparse.Namespace, text: str) -> None:
    (sys.stderr if options.json else sys.stdout).write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
