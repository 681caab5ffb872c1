"""Power against false alarms of `omni history`, beside ruptures' PELT and Apache Otava, as a nightly job meets them.

    python -m venv out/steps
    out/steps/bin/pip install numpy ruptures==1.1.10 apache-otava==0.8.0 otava-test-data==0.1.9
    PYTHONPATH=. out/steps/bin/python benchmarks/history_calibration.py [--series 200] [--peers 40] [--json]

Every series has 60 nights and is looked at after each of them. An alarm in a series without a step is false. A step is
five times the night-to-night spread of 1 %, up or down, in one of the nights 21 to 50, and is found in time if one of
the first five looks at it reports a step within three nights of it. Four groups:

* series of a nightly job: white noise, with a weekly wave of 1 %, with three outliers (10 to 50 % slower), and both;
* Otava's own generators, with the noise of the first group;
* autocorrelated noise, random walks, a wave of 3 % over 50 nights and a ramp of 5 %;
* restless nights: all with a weekly wave and three outliers (8 to 40 % slower), and steps of 6 to 10 % in one of the
  nights 14 to 56.

`beyond 5%` is `omni history check --max-regression 5%`: a step counts only once its whole interval lies beyond 5 %. The
constants of `omni history` were chosen on series of other seeds than 1, whose rates are kept in `results`.

Each method runs at several settings, which are a curve: the threshold of `omni history`; PELT's penalty (least squares,
outliers clipped at 3 robust standard deviations, times s^2 ln n); Otava's p-value (windows of 50, its default). Rates
have the 95 % Wilson interval of a proportion.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import sys
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import numpy as np
from common import machine, machine_line, wilson

from omni_cli.stats.history import THRESHOLD, Z95, find_steps

NIGHTS = 60
SPREAD = 0.01
STEP = 5 * SPREAD, 5 * SPREAD
STEP_NIGHTS = 20, 50
IN_TIME = 5
LIMIT = math.log1p(0.05)
MARGIN = math.log1p(0.02)  # of omni_cli.stats.compare, which needs more than numpy

Series = Callable[[np.random.Generator], np.ndarray]
Method = Callable[[np.ndarray, float], list[tuple[int, int]]]


def white(rng: np.random.Generator) -> np.ndarray:
    return SPREAD * rng.standard_normal(NIGHTS)


def wide(rng: np.random.Generator) -> np.ndarray:
    return 2 * white(rng)


def autocorrelated(lag1: float) -> Series:
    def make(rng: np.random.Generator) -> np.ndarray:
        series = rng.standard_normal(NIGHTS)
        for night in range(1, NIGHTS):
            series[night] = lag1 * series[night - 1] + math.sqrt(1 - lag1**2) * series[night]
        return SPREAD * series

    return make


def walk(per_night: float) -> Series:
    return lambda rng: per_night * np.cumsum(rng.standard_normal(NIGHTS))


def wave(amplitude: float, nights: int) -> Series:
    return lambda rng: amplitude * np.sin(2 * np.pi * (np.arange(NIGHTS) / nights + rng.random()))


def outliers(low: float = 0.1, high: float = 0.5) -> Series:
    def make(rng: np.random.Generator) -> np.ndarray:
        series = np.zeros(NIGHTS)
        series[rng.choice(NIGHTS, 3, replace=False)] = np.log1p(rng.uniform(low, high, 3))
        return series

    return make


def weekends(slower: float) -> Series:
    return lambda rng: slower * ((np.arange(NIGHTS) + rng.integers(7)) % 7 < 2)


def ramp(_rng: np.random.Generator) -> np.ndarray:
    return math.log(1.05) * np.arange(NIGHTS) / NIGHTS


def plus(*parts: Series) -> Series:
    return lambda rng: np.sum([part(rng) for part in parts], axis=0)


def generated(name: str, **arguments: float) -> Series:
    """A generator of Otava's test data around 100, as logs."""

    def make(rng: np.random.Generator) -> np.ndarray:
        from otava_test_data import generators

        data = getattr(generators, name)(length=NIGHTS, seed=int(rng.integers(2**31)), **arguments).data
        return np.log(np.asarray(data) / 100)

    return make


GROUPS: dict[str, dict[str, Series]] = {
    "nightly job": {
        "white noise": white,
        "and a weekly wave": plus(white, wave(0.01, 7)),
        "and three outliers": plus(white, outliers()),
        "and both": plus(white, wave(0.01, 7), outliers()),
    },
    "Otava's generators": {
        "normal": generated("noise_normal", sigma=1.0),
        "uniform": generated("noise_uniform", min_val=98.3, max_val=101.7),
        "an outlier": generated("outlier", sigma=1.0),
        "two bands": generated("banding", value2=102.0, sigma=0.5),
        "a phase that changes": generated("phase_change", amplitude=1.0, sigma=1.0),
    },
    "correlated and drifting": {
        "lag-1 0.5": autocorrelated(0.5),
        "lag-1 0.75": autocorrelated(0.75),
        "a walk of 0.1% per night": plus(white, walk(0.001)),
        "a walk of 0.3% per night": plus(white, walk(0.003)),
        "a wave of 3% over 50 nights": plus(white, wave(0.03, 50)),
        "a ramp of 5%": plus(white, ramp),
    },
    "restless nights": {
        "a weekly wave of 1%": plus(white, wave(0.01, 7), outliers(0.08, 0.4)),
        "a weekly wave of 2%": plus(white, wave(0.02, 7), outliers(0.08, 0.4)),
        "weekends that are 2% slower": plus(white, weekends(0.02), outliers(0.08, 0.4)),
        "a wave of 1%, noise of 2%": plus(wide, wave(0.01, 7), outliers(0.08, 0.4)),
    },
}
STEPS = {"restless nights": ((0.06, 0.10), (13, 56))}
"""Sizes and nights of the steps of a group, where they are others."""


def omni(values: np.ndarray, threshold: float) -> list[tuple[int, int]]:
    """Return (found, at) of each step; a look never takes back what an earlier one found."""
    return [(step.found, step.at) for step in find_steps(values, 0.0, MARGIN, threshold).shifts]


def beyond(values: np.ndarray, threshold: float) -> list[tuple[int, int]]:
    """Return (look, at) of each step whose interval lies beyond the limit, from the look that found it on."""
    sure = []
    for step in find_steps(values, 0.0, MARGIN, threshold).shifts:
        for end in range(step.found + 1, min(step.found + 1 + IN_TIME, len(values)) + 1):
            newest = find_steps(values[:end], 0.0, MARGIN, threshold).shifts[-1]
            if newest.at == step.at and abs(newest.size) - Z95 * newest.standard_error > LIMIT:
                sure.append((end - 1, step.at))
    return sure


def pelt(values: np.ndarray, penalty: float) -> list[tuple[int, int]]:
    import ruptures

    found = []
    for end in range(13, len(values) + 1):
        seen = values[:end]
        spread = 1.4826 * np.median(np.abs(np.diff(seen) - np.median(np.diff(seen)))) / math.sqrt(2)
        around = np.array([np.median(seen[max(i - 4, 0) : i + 5]) for i in range(end)])
        clipped = np.clip(seen, around - 3 * spread, around + 3 * spread)
        model = ruptures.Pelt(model="l2", min_size=4, jump=1).fit(clipped)
        found += [(end - 1, at) for at in model.predict(pen=penalty * spread**2 * math.log(end))[:-1]]
    return found


def otava(values: np.ndarray, pvalue: float) -> list[tuple[int, int]]:
    from otava.analysis import compute_change_points

    found = []
    for end in range(13, len(values) + 1):
        # It raises a bare ValueError where a window has a side without values; that look reports nothing.
        with contextlib.suppress(ValueError):
            points, _ = compute_change_points(100 * np.exp(values[:end]), max_pvalue=pvalue, min_magnitude=0.02)
            found += [(end - 1, point.index) for point in points]
    return found


METHODS: dict[str, tuple[Method, tuple[float, ...]]] = {
    "omni": (omni, (2.0, 2.5, THRESHOLD, 3.0, 4.0)),
    "beyond 5%": (beyond, (THRESHOLD,)),
    "PELT": (pelt, (4.0, 8.0, 16.0, 32.0)),
    "Otava": (otava, (0.01, 0.001, 0.0001)),
}


def measure(group: str, row: str, method: str, setting: float, count: int, seed: int) -> dict[str, Any]:
    """Count series with a false alarm, and steps found in time."""
    warnings.filterwarnings("ignore")  # of scipy, for equal values in a window
    make, find = GROUPS[group][row], METHODS[method][0]
    (least, most), nights = STEPS.get(group, (STEP, STEP_NIGHTS))
    rng = np.random.default_rng(seed)
    false = sum(bool(find(make(rng), setting)) for _ in range(count))
    in_time = 0
    for _ in range(count):
        values, at, sign = make(rng), int(rng.integers(*nights)), int(rng.choice([-1, 1]))
        values[at:] += sign * math.log1p(rng.uniform(least, most))
        in_time += any(at <= found < at + IN_TIME and abs(place - at) <= 3 for found, place in find(values, setting))
    rates = {"series": count, "false": false, "in_time": in_time}
    return {"group": group, "row": row, "method": method, "setting": setting, **rates}


def main() -> int:
    options = _options()
    chosen = [
        (group, row, method, setting)
        for group, rows in GROUPS.items()
        for row in rows
        for method, (_, settings) in METHODS.items()
        for setting in settings
        if options.only in f"{group}, {row}" and (not options.method or options.method == method)
    ]
    with ProcessPoolExecutor(options.jobs) as pool:
        count = {"PELT": options.peers, "Otava": options.peers}
        jobs = [pool.submit(measure, *item, count.get(item[2], options.series), options.seed) for item in chosen]
        results = [job.result() for job in jobs]
    if options.json:
        document = {"machine": machine(), "seed": options.seed, "results": results}
        sys.stdout.write(json.dumps(document, indent=2) + "\n")
    else:
        series = (
            f"{options.series} series of {NIGHTS} nights per rate ({options.peers} of the others), seed {options.seed}"
        )
        sys.stdout.write("\n".join([machine_line(), series, *_lines(results)]) + "\n")
    return 0


def _lines(results: list[dict[str, Any]]) -> Iterator[str]:
    """Yield a block per group: for each method and setting the false alarms and the power of each row, and in all."""
    for group in dict.fromkeys(result["group"] for result in results):
        own = [result for result in results if result["group"] == group]
        rows = list(dict.fromkeys(result["row"] for result in own))
        yield f"\n{group}: series with a false alarm | steps found in time"
        for number, row in enumerate(rows, start=1):
            yield f"  ({number}) {row}"
        heads = "".join(f"{f'({number})':>16}" for number in range(1, len(rows) + 1))
        yield f"  {'method':10}{'setting':>8}{heads}   all, with 95% intervals"
        for method, setting in dict.fromkeys((result["method"], result["setting"]) for result in own):
            of = [result for result in own if (result["method"], result["setting"]) == (method, setting)]
            cells = "".join(
                f"{result['false'] / result['series']:7.1%} |{result['in_time'] / result['series']:6.1%} "
                for result in of
            )
            total = sum(result["series"] for result in of)
            both = " | ".join(_rate(sum(result[key] for result in of), total) for key in ("false", "in_time"))
            yield f"  {method:10}{setting:8g}{cells}   {both}"


def _rate(count: int, total: int) -> str:
    low, high = wilson(count, total)
    return f"{count / total:.1%} [{low:.1%}, {high:.1%}]"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--series", type=int, default=200, help="series per rate of `omni history`")
    parser.add_argument("--peers", type=int, default=40, help="series per rate of the others, which take seconds each")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--only", default="", help="rows whose group and name contain this text")
    parser.add_argument("--method", choices=tuple(METHODS), help="only this one")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
