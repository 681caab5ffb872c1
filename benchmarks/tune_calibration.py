"""Simulated searches of `omni tune`: how often the answer is within the margin, and how many starts it costs.

    python benchmarks/tune_calibration.py [--searches 500] [--noise benchmarks/results/tune-noise.json] [--json]

24 settings, whose true costs are known, are raced with `omni_cli.stats.race`; only the times are simulated. Surfaces:

    unimodal    a valley over a grid of 6 by 4 settings: 4 % per step near the bottom, more further away
    flat        all are equal
    ties        six are equal, the others 5 to 60 % worse
    near        the best, eleven 1 to 3 % worse, and twelve 5 to 30 % worse
    cliffs      eight within 1 %, eight 50 % worse, four 3 times as slow, and four that fail when they start

Noise: every start of a setting has an offset of its own (standard deviation 0.7 %, as measured over 15 loads); runs
have an AR(1) series over time (lag-1 autocorrelation 0.75, CV 5 %) that is shared by what runs at that time. `uneven`:
a quarter of the settings, among them the best, has three times the noise of its own. `quiet` and `loaded` (`--noise`):
the times of real loads of tiny-image's stage, eight side by side, alone on the machine and beside other programs; the
loads of a recording are the settings of a batch.

A block is one start of one setting with its interleaved runs. The full comparison starts all 24 in every round until it
has ranked all 276 pairs: the interval of each, with the same alpha, looks, batches and Student's bounds, lies on one
side of 0 or within the margin. "Without elimination" stops when the race would, but starts all settings until then.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from common import wilson

from omni_cli.measure.bench.tuning import MAX_TOGETHER, get_groups
from omni_cli.stats.estimate import TRIM
from omni_cli.stats.race import MIN_ROUNDS, Batch, Race, student_quantile
from omni_cli.stats.sequential import ALPHA, spend_alpha

SETTINGS = 24
BLOCKS = 32
LAG1, CV, START = 0.75, 0.05, 0.007
FULL_LOOKS = 60

Surface = Callable[[random.Random], list[float]]
FAILS = math.inf


def unimodal(rng: random.Random) -> list[float]:
    column, row = rng.randrange(6), rng.randrange(4)
    return [_valley(abs(x - column)) + _valley(abs(y - row)) for x in range(6) for y in range(4)]


def flat(_rng: random.Random) -> list[float]:
    return [0.0] * SETTINGS


def ties(rng: random.Random) -> list[float]:
    return [0.0] * 6 + [math.log1p(rng.uniform(0.05, 0.6)) for _ in range(SETTINGS - 6)]


def near(rng: random.Random) -> list[float]:
    close = [math.log1p(rng.uniform(0.01, 0.03)) for _ in range(11)]
    return [0.0, *close, *(math.log1p(rng.uniform(0.05, 0.3)) for _ in range(12))]


def cliffs(rng: random.Random) -> list[float]:
    plain = [math.log1p(rng.uniform(0, 0.01)) for _ in range(7)]
    return [0.0, *plain, *([math.log(1.5)] * 8), *([math.log(3)] * 4), *([FAILS] * 4)]


def _valley(steps: int) -> float:
    return math.log1p(0.04 * steps + 0.03 * steps * steps)


SURFACES: dict[str, Surface] = {"unimodal": unimodal, "flat": flat, "ties": ties, "near": near, "cliffs": cliffs}


class Noise:
    """Simulated noise of batches; `uneven` makes some settings three times as noisy."""

    def __init__(self, seed: int, *, uneven: bool) -> None:
        self._rng = np.random.default_rng(seed)
        self._uneven = uneven
        self._state = float(self._rng.standard_normal())

    def scales(self, costs: Sequence[float]) -> np.ndarray:
        """Return the factor of each setting's own noise."""
        scales = np.ones(len(costs))
        if self._uneven:
            order = np.argsort(costs, kind="stable")
            scales[order[:: len(costs) // (len(costs) // 4)]] = 3.0
        return scales

    def batch(self, scales: np.ndarray) -> np.ndarray:
        """Return log noise, float64 (settings, blocks)."""
        count = len(scales)
        step = math.sqrt(1 - LAG1**2)
        states = []
        for value in self._rng.standard_normal(BLOCKS * count).tolist():
            self._state = LAG1 * self._state + step * value
            states.append(self._state)
        shared = CV * np.array(states).reshape(BLOCKS, count)
        # Every second block runs in the reverse order.
        shared[1::2] = shared[1::2, ::-1]
        own = START * scales * self._rng.standard_normal(count)
        return shared.T + own[:, None]


class Recorded:
    """Noise of real loads: each batch is a stretch of consecutive blocks of different loads of one recording."""

    def __init__(self, recordings: Sequence[np.ndarray], seed: int) -> None:
        self._recordings = recordings
        self._rng = np.random.default_rng(seed)

    def scales(self, costs: Sequence[float]) -> np.ndarray:
        return np.ones(len(costs))

    def batch(self, scales: np.ndarray) -> np.ndarray:
        logs = self._recordings[self._rng.integers(len(self._recordings))]
        loads = self._rng.permutation(len(logs))[: len(scales)]
        start = self._rng.integers(logs.shape[1] - BLOCKS + 1)
        return logs[loads, start : start + BLOCKS]


@dataclass(frozen=True)
class Outcome:
    """`excess` is the true share by which the answer is worse than the best; `blocks` are starts."""

    excess: float
    decided: bool
    blocks: int
    rounds: int


def search(costs: Sequence[float], noise: Noise | Recorded, margin: float, seed: int) -> Outcome:
    """Race the settings as `omni tune` does."""
    names = [str(index) for index in range(len(costs))]
    race = Race(names, margin=margin)
    order = random.Random(seed)
    scales = noise.scales(costs)
    blocks = rounds = 0
    while not race.is_decided and not race.is_exhausted:
        rounds += 1
        batches = []
        control = race.leader
        assert control is not None
        for group in get_groups(race, order):
            running = [control, *group]
            blocks += len(running)
            batches.append(_run(race, running, costs, noise, scales))
        race.add(control, batches)
    leader = race.leader
    best = min(costs)
    excess = math.inf if leader is None else math.expm1(costs[int(leader)] - best)
    return Outcome(excess, race.is_decided, blocks, rounds)


def _run(race: Race, running: list[str], costs: Sequence[float], noise: Noise | Recorded, scales: np.ndarray) -> Batch:
    indices = [int(name) for name in running]
    logs = noise.batch(scales[indices])
    batch = {}
    for name, index, row in zip(running, indices, logs, strict=True):
        if costs[index] != FAILS:
            batch[name] = dict(enumerate((costs[index] + row).tolist()))
    for name in running:
        if name not in batch:
            race.exclude(name)
    return batch


def full_comparison(costs: Sequence[float], noise: Noise, margin: float) -> int:
    """Return the blocks until all pairs are ranked up to the margin."""
    able = np.array([cost for cost in costs if cost != FAILS])
    count, edge = len(able), math.log1p(margin)
    scales = noise.scales(able.tolist())
    first, second = np.triu_indices(count, 1)
    share = ALPHA / len(first)
    values: list[np.ndarray] = []
    blocks = len(costs) - count  # those that fail, once
    for looks in range(1, FULL_LOOKS + 1):
        groups = np.array_split(np.arange(1, count), -(-(count - 1) // (MAX_TOGETHER - 1)))
        blocks += count - 1 + len(groups)
        values.append(_full_round(groups, able, noise, scales)[first, second])
        if looks >= MIN_ROUNDS and are_ranked(np.array(values), share, edge).all():
            break
    return blocks


def are_ranked(values: np.ndarray, share: float, edge: float) -> np.ndarray:
    """Return bool (pairs,) for differences float64 (rounds, pairs), at least `MIN_ROUNDS` rounds.

    A pair is ranked if its interval lies on one side of 0 or within `edge`, the log of the margin. `share` is the error
    of all its looks.
    """
    looks = len(values)
    before = 0 if looks == MIN_ROUNDS else looks - 1
    tail = (spend_alpha(looks / FULL_LOOKS, share) - spend_alpha(before / FULL_LOOKS, share)) / 2
    centre = np.abs(values.mean(axis=0))
    half = student_quantile(tail, looks - 1) * values.std(axis=0, ddof=1) / math.sqrt(looks)
    ranked: np.ndarray = (half < centre) | (centre + half <= edge)
    return ranked


def _full_round(groups: Sequence[np.ndarray], costs: np.ndarray, noise: Noise, scales: np.ndarray) -> np.ndarray:
    """Return the difference of each pair in a round, float64 (n, n); setting 0 runs in each batch."""
    cut = int(TRIM * BLOCKS)

    def trimmed(values: np.ndarray) -> np.ndarray:
        return np.sort(values, axis=-1)[..., cut : BLOCKS - cut].mean(axis=-1)

    to_control = np.zeros(len(costs))
    found = np.zeros((len(costs), len(costs)))
    within = []
    for group in groups:
        members = np.concatenate([[0], group])
        logs = costs[members, None] + noise.batch(scales[members])
        differences = trimmed(logs[:, None] - logs[None])
        to_control[group] = differences[1:, 0]
        within.append((members, differences))
    found[:] = to_control[:, None] - to_control[None]
    for members, differences in within:
        found[np.ix_(members, members)] = differences
    return found


def load_noise(path: Path) -> dict[str, list[np.ndarray]]:
    """Return the recordings of a file by condition, each float64 (loads, blocks): logs around the common median."""
    document = json.loads(path.read_text())
    return {
        name: [np.log(np.array(times)) - np.log(np.median(times)) for times in document[name]]
        for name in ("quiet", "loaded")
    }


def calibrate(name: str, surface: Surface, sources: Mapping[str, Callable[[int], Noise | Recorded]], options) -> list:
    """Search `options.searches` times under each noise; return one row per noise."""
    rows = []
    for kind, source in sources.items():
        outcomes, full = [], []
        for seed in range(options.searches):
            costs = surface(random.Random(seed))
            random.Random(seed + 1).shuffle(costs)
            outcomes.append(search(costs, source(seed), options.margin, seed))
            noise = source(seed + 10**6)
            if isinstance(noise, Noise) and len(full) < options.full:
                full.append(full_comparison(costs, noise, options.margin))
        within = sum(outcome.excess <= options.margin + 1e-12 for outcome in outcomes)
        decided = [outcome for outcome in outcomes if outcome.decided]
        wrong = sum(outcome.excess > options.margin + 1e-12 for outcome in decided)
        blocks = [outcome.blocks for outcome in outcomes]
        rows.append(
            {
                "surface": name, "noise": kind, "searches": len(outcomes), "within_margin": within / len(outcomes),
                "ci95": wilson(within, len(outcomes)), "decided": len(decided) / len(outcomes), "wrong_decided": wrong,
                "blocks": float(np.mean(blocks)), "rounds": float(np.median([o.rounds for o in outcomes])),
                "full_blocks": float(np.mean(full)) if full else None,
                "share_of_full": float(np.mean(blocks) / np.mean(full)) if full else None,
                "share_without_elimination": float(np.mean([o.blocks / (o.rounds * SETTINGS) for o in outcomes])),
            }
        )  # fmt: skip
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--searches", type=int, default=500)
    parser.add_argument("--full", type=int, default=50, help="full comparisons per surface and noise")
    parser.add_argument("--margin", type=float, default=0.05)
    parser.add_argument("--surface", nargs="*", default=list(SURFACES), choices=list(SURFACES))
    parser.add_argument("--noise", type=Path, help="recorded loads: benchmarks/results/tune-noise.json")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    sources: dict[str, Callable[[int], Noise | Recorded]] = {
        "even": lambda seed: Noise(seed, uneven=False),
        "uneven": lambda seed: Noise(seed, uneven=True),
    }
    if options.noise is not None:
        for name, recordings in load_noise(options.noise).items():
            sources[name] = lambda seed, recordings=recordings: Recorded(recordings, seed)
    rows = []
    for name in options.surface:
        for row in calibrate(name, SURFACES[name], sources, options):
            rows.append(row)
            if not options.json:
                sys.stdout.write(_line(row) + "\n")
                sys.stdout.flush()
    if options.json:
        sys.stdout.write(json.dumps({"settings": SETTINGS, "margin": options.margin, "rows": rows}, indent=2) + "\n")
    return 0


def _line(row: Mapping) -> str:
    low, high = row["ci95"]
    full = "" if row["full_blocks"] is None else f"   full {row['full_blocks']:5.0f} blocks, {row['share_of_full']:.0%}"
    return (
        f"{row['surface']:9} {row['noise']:9} within {row['within_margin']:6.1%} [{low:.1%}, {high:.1%}]   "
        f"decided {row['decided']:6.1%}, {row['wrong_decided']} wrong   {row['blocks']:5.0f} blocks, "
        f"{row['rounds']:.0f} rounds   without elimination {row['share_without_elimination']:.0%}{full}"
    )


if __name__ == "__main__":
    assert MAX_TOGETHER <= SETTINGS
    sys.exit(main())
