"""Replays of `omni bisect`: how often it names the right commit, and how often one where there is none.

    python benchmarks/bisect_replays.py                          # 200 replays of each scenario, 64 commits
    python benchmarks/bisect_replays.py --loads-sd 0.007         # also two loads of the same code differ
    python benchmarks/bisect_replays.py --noise benchmarks/results/tune-noise.json --loads-sd 0.007    # recorded

Each replay is a history of 64 commits after the good one; one, drawn at random, is 5 % slower than those before it, or
none is. A tenth of the commits, drawn independently, do not run. Every comparison takes its own stretch of noise and
is decided by the code of `omni bisect` and of the gate: blocks arrive, the interval is looked at after the planned
numbers of blocks, with the error that the search gives to this comparison.

Noise: AR(1) over single runs of 84 ms, lag-1 autocorrelation 0.75 and CV 5 %, as in `gate_calibration.py`, or, with
`--noise`, recorded rounds of eight loads of the same code, CV 13 %. Interleaved runs share much of that noise (their
correlation is 0.4), so the sides of a comparison are the same rounds of two loads. Every 80 rounds, which is what was
recorded, two other loads follow: what differs between two loads for good is left to `--loads-sd`, because 80 rounds
know it to 1.6 % only.

A commit cannot be named where the commits beside it do not run: then the smallest set is right that contains the slow
commit and only commits that do not run beside it. That is as often as the slow commit or the one
before it does not run, in 19 % of the histories. Rates are printed with the 95 % Wilson interval of a proportion.
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from common import machine, machine_line, wilson
from gate_calibration import CV, LAG1, _autocorrelated, _variant
from msgspec.structs import replace

from omni_cli.config.gate_limits import GateLimits
from omni_cli.measure.bench.schedule import BlockSchedule, schedule_for_time
from omni_cli.records.record import StoppingPlan
from omni_cli.stats import estimate
from omni_cli.stats.bisection import Search, Trial, standard_error
from omni_cli.stats.compare import compare_variants
from omni_cli.stats.gate import judge
from omni_cli.stats.sequential import level_at, plan_looks

RUN_S = 0.084
# Every look draws again for its number of blocks; here the same numbers return thousands of times.
estimate._draws = functools.lru_cache(maxsize=256)(estimate._draws.__wrapped__)
# Goals of the project: (scenario, share that has to be right).
GOALS = {"one slow commit": 0.95, "none": 0.99}
RIGHT = {"one slow commit": ("right commit", "right range"), "none": ("no regression", "inconclusive")}

Noise = Callable[[BlockSchedule], np.ndarray]
"""Returns the logarithms of the times of both sides' runs in their order: float64 (2, rounds)."""


@dataclass(frozen=True)
class History:
    """Logarithms of the times of each commit, and which of them do not run."""

    logs: np.ndarray
    broken: frozenset[int]

    def right(self) -> tuple[int, int] | None:
        """The bounds of the smallest range that can be found; None if no commit is slow."""
        slow = np.flatnonzero(self.logs > 0)
        if not len(slow):
            return None
        low, high = int(slow[0]) - 1, int(slow[0])
        while low in self.broken:
            low -= 1
        while high in self.broken:
            high += 1
        return low, high


def main() -> int:
    options = _options()
    rng = np.random.default_rng(options.seed)
    noise = _recorded(options.noise, rng) if options.noise else _simulated(rng)
    document = {"machine": machine(), "replays": options.replays, "commits": options.commits, "results": {}}
    say = (sys.stderr if options.json else sys.stdout).write
    source = str(options.noise) if options.noise else f"AR(1), lag-1 autocorrelation {LAG1}, CV {CV:.0%}"
    say(f"{machine_line()}\n{options.replays} replays of {options.commits} commits, {options.budget_s:g} s per ")
    say(f"comparison, noise: {source}, standard deviation between loads {options.loads_sd:.1%}\n")
    met = True
    for scenario, bound in GOALS.items():
        slowdown = options.slowdown if scenario != "none" else 0.0
        replays = [_replay(_history(options, slowdown, rng), noise, options, rng) for _ in range(options.replays)]
        right = sum(kind in RIGHT[scenario] for kind, _, _ in replays)
        rate, (low, high) = right / len(replays), wilson(right, len(replays))
        kinds = Counter(kind for kind, _, _ in replays)
        steps, blocks = (float(np.median([replay[which] for replay in replays])) for which in (1, 2))
        listed = "   ".join(f"{kind} {number}" for kind, number in kinds.most_common())
        say(f"\n{scenario}: {listed}\n  median {steps:g} comparisons, {blocks:g} blocks in all\n")
        verdict = "met" if rate >= bound else "NOT MET"
        say(f"  goal: right {rate:.1%} [{low:.1%}, {high:.1%}], at least {bound:.0%}: {verdict}\n")
        met = met and rate >= bound
        document["results"][scenario] = {"right": rate, "ci95": [low, high], "bound": bound, **kinds}
    if options.json:
        sys.stdout.write(json.dumps(document, indent=2) + "\n")
    return 0 if met else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replays", type=int, default=200)
    parser.add_argument("--commits", type=int, default=64)
    parser.add_argument("--slowdown", type=float, default=0.05)
    parser.add_argument("--broken", type=float, default=0.1, help="share of the commits that do not run")
    parser.add_argument("--limit", type=float, default=0.02, help="`--max-regression` (0.02 is 2 %%)")
    parser.add_argument("--budget-s", type=float, default=60.0)
    parser.add_argument("--loads-sd", type=float, default=0.0, help="standard deviation between loads of equal code")
    parser.add_argument("--noise", type=Path, help="recorded loads: benchmarks/results/tune-noise.json")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def _history(options: argparse.Namespace, slowdown: float, rng: np.random.Generator) -> History:
    logs = np.zeros(options.commits + 1)
    if slowdown:
        logs[int(rng.integers(1, options.commits + 1)) :] = np.log1p(slowdown)
    # The ends run: the user names two commits that do.
    broken = np.flatnonzero(rng.random(options.commits + 1) < options.broken).tolist()
    return History(logs, frozenset(broken) - {0, options.commits})


def _replay(
    history: History, noise: Noise, options: argparse.Namespace, rng: np.random.Generator
) -> tuple[str, int, int]:
    """Search one history; return the kind of its result, and the numbers of comparisons and of blocks."""
    search, blocks = Search(len(history.logs) - 1, options.limit, options.budget_s), 0
    while step := search.next_step():
        trial = replace(step, verdict="failed", alpha=0.0)
        if step.b not in history.broken:
            shift = history.logs[step.b] - history.logs[step.a] + rng.normal(0, options.loads_sd * 2**0.5)
            trial = _compared(step, float(shift), noise)
        blocks += trial.blocks
        search = Search(search.last, search.limit, search.budget_s, (*search.trials, trial))
    return _kind(search, history), len(search.trials), blocks


def _kind(search: Search, history: History) -> str:
    outcome, right = search.outcome(), history.right()
    if outcome in ("found", "narrowed"):
        if search.bounds == right:
            return "right commit" if outcome == "found" else "right range"
        contains = right is not None and search.bounds[0] <= right[0] and right[1] <= search.bounds[1]
        return "wider range" if contains else "WRONG"
    return outcome


def _compared(step: Trial, shift: float, noise: Noise) -> Trial:
    """Add blocks until a look decides, as the harness does."""
    schedule = schedule_for_time(2 * RUN_S, step.budget_s)
    sampling = StoppingPlan(looks=plan_looks(schedule.blocks), alpha=step.alpha)
    times = RUN_S * np.exp(noise(schedule) + np.array([[0.0], [shift]]))
    order = np.array(_order(schedule)).reshape(schedule.blocks, -1)
    sides = [
        [(block, int(slot), time) for (block, slot), time in zip(np.argwhere(order == side), of_side, strict=True)]
        for side, of_side in enumerate(times.tolist())
    ]
    assert step.limit is not None  # a time is searched for
    for look in sampling.looks:
        pair = [_variant(name, side[: look * schedule.rounds]) for name, side in zip("AB", sides, strict=True)]
        (found,) = compare_variants(pair[0], pair[1], same_record=True, sampling=[sampling], metrics=["e2e_s"])
        gate = judge(GateLimits({"e2e_s": step.limit}), [found], [], {})
        if gate.verdict != "inconclusive":
            break
    (metric,) = gate.metrics
    return replace(
        step, verdict=gate.verdict, change=metric.change, ci95=metric.ci95, blocks=look,
        standard_error=standard_error(metric.ci95, level_at(sampling.looks, look, step.alpha)),
    )  # fmt: skip


def _order(schedule: BlockSchedule) -> list[int]:
    """Return the side of each run."""
    return [side for block in range(schedule.blocks) for side in schedule.block(block, 2)]


def _simulated(rng: np.random.Generator) -> Noise:
    def runs(schedule: BlockSchedule) -> np.ndarray:
        order = np.array(_order(schedule))
        logs = CV * _autocorrelated(rng, len(order))
        return np.stack([logs[order == side] for side in (0, 1)])

    return runs


def _recorded(path: Path, rng: np.random.Generator) -> Noise:
    """Rounds of two loads of the same code: the same rounds of both, from a random one on, and from the first again at
    the end; after as many rounds as were recorded, of two other loads."""
    (times,) = json.loads(path.read_text())["quiet"]
    logs = np.log(times) - np.log(np.median(times))
    recorded = np.arange(logs.shape[1])

    def stretch() -> np.ndarray:
        pair = logs[rng.choice(len(logs), 2, replace=False)]
        return np.roll(pair, rng.choice(recorded), axis=1)

    def rounds(schedule: BlockSchedule) -> np.ndarray:
        stretches = [stretch() for _ in range(-(-schedule.total_rounds // len(recorded)))]
        return np.concatenate(stretches, axis=1)[:, : schedule.total_rounds]

    return rounds


if __name__ == "__main__":
    sys.exit(main())
