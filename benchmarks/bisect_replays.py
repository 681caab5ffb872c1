"""Replays of `omni bisect`: how often it names the right commit, and how often one where there is none.

    python benchmarks/bisect_replays.py                          # 200 replays of each scenario, 64 commits
    python benchmarks/bisect_replays.py --loads-sd 0.007         # also two loads of the same code differ
    python benchmarks/bisect_replays.py --noise benchmarks/results/tune-noise.json     # recorded loads

Each replay is a history of 64 commits after the good one; one, drawn at random, is 5 % slower than those before it, or
none is. A tenth of the commits, drawn independently, do not run. Every comparison takes its own stretch of noise and
is decided by the code of `omni bisect` and of the gate: blocks arrive, the interval is looked at after the planned
numbers of blocks, with the error that the search gives to this comparison.

Noise: AR(1) over single runs of 84 ms, lag-1 autocorrelation 0.75 and CV 5 %, as in `gate_calibration.py`, or, with
`--noise`, recorded runs of eight loads of the same code, CV 13 %: each comparison is of two of them.

A commit cannot be named where the commits beside it do not run: then the smallest set is right that contains the slow
commit and only commits that do not run beside it. That is as often as the slow commit or the one
before it does not run, in 19 % of the histories. Rates are printed with the 95 % Wilson interval of a proportion.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from common import machine, machine_line
from gate_calibration import CV, LAG1, _autocorrelated, _variant, _wilson

from omni_cli.config.gate_limits import GateLimits
from omni_cli.record import StoppingPlan, Variant
from omni_cli.stats.bisection import NextTrial, Search, SearchOutcome, Trial
from omni_cli.stats.compare import compare_variants
from omni_cli.stats.gate import judge
from omni_cli.stats.sequential import plan_looks

RUN_S = 0.084
RUNS_PER_BLOCK = 6
SLOTS = ((0, 3, 4), (1, 2, 5)), ((1, 2, 5), (0, 3, 4))
# Goals of the project: (scenario, share that has to be right).
GOALS = {"one slow commit": 0.95, "none": 0.99}
RIGHT = {"one slow commit": ("right commit", "right range"), "none": ("no regression", "inconclusive")}

Noise = Callable[[int], np.ndarray]
"""Returns the logarithms of the times of so many blocks of runs: float64 (blocks, RUNS_PER_BLOCK)."""


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
        rate, (low, high) = right / len(replays), _wilson(right, len(replays))
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
        trial = Trial(a=step.a, b=step.b, verdict="failed", limit=step.limit, budget_s=step.budget_s)
        if step.b not in history.broken:
            shift = history.logs[step.b] - history.logs[step.a] + rng.normal(0, options.loads_sd * 2**0.5)
            trial = _compared(step, trial, float(shift), noise)
        blocks += trial.blocks
        search = Search(search.last, search.limit, search.budget_s, (*search.trials, trial))
    return _kind(search, history), len(search.trials), blocks


def _kind(search: Search, history: History) -> str:
    outcome, right = search.outcome(), history.right()
    if outcome in (SearchOutcome.FOUND, SearchOutcome.NARROWED):
        if search.bounds == right:
            return "right commit" if outcome is SearchOutcome.FOUND else "right range"
        contains = right is not None and search.bounds[0] <= right[0] and right[1] <= search.bounds[1]
        return "wider range" if contains else "WRONG"
    return outcome.value


def _compared(step: NextTrial, trial: Trial, shift: float, noise: Noise) -> Trial:
    """Add blocks until a look decides, as the harness does."""
    total = int(step.budget_s / (RUNS_PER_BLOCK * RUN_S))
    sampling = StoppingPlan(looks=plan_looks(total), alpha=step.alpha)
    times = noise(total)
    assert step.limit is not None  # a time is searched for
    for look in sampling.looks:
        sides = ([], [])
        for block in range(look):
            for side, slots in enumerate(SLOTS[block % 2]):
                factor = shift if side else 0.0
                sides[side].extend((block, slot, RUN_S * float(np.exp(times[block, slot] + factor))) for slot in slots)
        pair: tuple[Variant, Variant] = (_variant("A", sides[0]), _variant("B", sides[1]))
        (found,) = compare_variants(*pair, same_record=True, sampling=[sampling], metrics=["e2e_s"])
        gate = judge(GateLimits({"e2e_s": step.limit}), [found], [], {})
        if gate.verdict != "inconclusive":
            break
    (metric,) = gate.metrics
    return Trial(
        a=trial.a, b=trial.b, verdict=gate.verdict, limit=step.limit, budget_s=step.budget_s, alpha=step.alpha,
        change=metric.change, ci95=metric.ci95, blocks=look,
    )  # fmt: skip


def _simulated(rng: np.random.Generator) -> Noise:
    return lambda blocks: CV * _autocorrelated(rng, blocks * RUNS_PER_BLOCK).reshape(blocks, RUNS_PER_BLOCK)


def _recorded(path: Path, rng: np.random.Generator) -> Noise:
    """Runs of two loads of the same code, drawn for each comparison: in their order, from a random one on, and from the
    first again at the end."""
    (times,) = json.loads(path.read_text())["quiet"]
    logs = np.log(times) - np.log(np.median(times))

    def stretch(blocks: int) -> np.ndarray:
        found = np.empty((blocks, RUNS_PER_BLOCK))
        for side, load in enumerate(rng.choice(len(logs), 2, replace=False)):
            runs = np.take(logs[load], rng.integers(len(logs[load])) + np.arange(blocks * 3), mode="wrap")
            for block, three in enumerate(runs.reshape(blocks, 3)):
                found[block, SLOTS[block % 2][side]] = three
        return found

    return stretch


if __name__ == "__main__":
    sys.exit(main())
