"""The search of `omni bisect`: which comparison comes next, and what the search ends with."""

from __future__ import annotations

import json
import math
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from omni_cli.results import GateVerdict
from omni_cli.stats.bisection import ATTEMPTS, MORE_TIME, NextTrial, Search, SearchOutcome, Trial
from omni_cli.stats.sequential import ALPHA

Judge = Callable[[NextTrial], GateVerdict]


def searched(last: int, judge: Judge, limit: float | None = 0.02, change: float | None = 0.05) -> Search:
    """The search at its end, if each comparison has the verdict that `judge` gives."""
    search = Search(last, limit, 60.0)
    while step := search.next_step():
        verdict = judge(step)
        decided = verdict not in ("failed", "not comparable")
        trial = Trial(
            a=step.a, b=step.b, verdict=verdict, limit=step.limit, budget_s=step.budget_s,
            alpha=step.alpha if decided else 0.0, change=change if decided else None,
        )  # fmt: skip
        search = Search(last, limit, 60.0, (*search.trials, trial))
        assert len(search.trials) < 10 * last + 10, "it does not end"
    return search


def slow_from(culprit: int, unusable: dict[int, GateVerdict] | None = None) -> Judge:
    def judge(step: NextTrial) -> GateVerdict:
        if unusable and step.b in unusable:
            return unusable[step.b]
        return "regression" if step.a < culprit <= step.b else "pass"

    return judge


@pytest.mark.parametrize("last", [1, 2, 3, 64])
def test_every_commit_can_be_found(last: int) -> None:
    for culprit in range(1, last + 1):
        search = searched(last, slow_from(culprit))
        assert search.outcome() is SearchOutcome.FOUND and search.bounds == (culprit - 1, culprit)
        assert len(search.trials) <= math.ceil(math.log2(last)) + 2


def test_the_limits_of_the_comparisons() -> None:
    """The ends have the user's limit, commits between them the middle of the change, the last one the smaller."""
    first, *between, final = searched(64, slow_from(40)).trials
    assert (first.a, first.b, first.limit) == (0, 64, 0.02)
    assert {trial.a for trial in between} == {0}
    assert all(trial.limit == pytest.approx(math.sqrt(1.05) - 1) for trial in between)
    assert (final.a, final.b, final.limit) == (39, 40, 0.02)
    assert searched(64, slow_from(40), change=0.03).trials[-1].limit == pytest.approx(math.sqrt(1.03) - 1)


def test_a_range_without_a_slowdown_ends_after_one_comparison() -> None:
    search = searched(64, slow_from(65))
    assert search.outcome() is SearchOutcome.NO_REGRESSION and len(search.trials) == 1


def test_commits_that_do_not_run_are_skipped() -> None:
    source = random.Random(0)
    for _ in range(300):
        culprit = source.randrange(1, 65)
        broken = {p: "failed" for p in range(1, 64) if source.random() < 0.3}
        search = searched(64, slow_from(culprit, broken))
        low, high = search.bounds
        assert low < culprit <= high
        assert all(position in broken for position in range(low + 1, high)), "nothing else is left between them"
        assert search.outcome() is (SearchOutcome.FOUND if high - low == 1 else SearchOutcome.NARROWED)
        assert len({trial.b for trial in search.trials if trial.verdict == "failed"}) == sum(
            trial.verdict == "failed" for trial in search.trials
        ), "a commit that does not run is tried once"


def test_a_long_stretch_that_does_not_run_is_left_quickly() -> None:
    broken = {position: "failed" for position in range(16, 49)}
    search = searched(64, slow_from(60, broken))
    assert search.bounds == (59, 60)
    assert sum(trial.verdict == "failed" for trial in search.trials) <= 7


def test_an_inconclusive_commit_is_repeated_with_more_time_and_then_left_for_a_neighbour() -> None:
    search = searched(4, slow_from(2, {2: "inconclusive", 1: "pass", 3: "regression"}))
    tried = [(trial.a, trial.b, trial.budget_s) for trial in search.trials]
    assert tried == [(0, 4, 60), (0, 2, 60), (0, 2, 240), *((0, b, 960) for b in (2, 3, 1)), (1, 3, 960)]
    assert search.outcome() is SearchOutcome.NARROWED and search.bounds == (1, 3)


def test_commits_that_stay_inconclusive_end_the_search() -> None:
    search = searched(64, lambda step: "regression" if step.b == 64 else "inconclusive")
    assert len(search.trials) == 1 + ATTEMPTS * ATTEMPTS and search.outcome() is SearchOutcome.NARROWED


def test_inconclusive_ends_are_repeated_and_again_with_a_larger_budget() -> None:
    search = searched(8, lambda step: "inconclusive")
    assert [trial.budget_s for trial in search.trials] == [60, 240, 960]
    assert search.outcome() is SearchOutcome.INCONCLUSIVE
    assert Search(8, 0.02, 60.0, search.trials).next_step() is None
    more = Search(8, 0.02, 1000.0, search.trials).next_step()
    assert more is not None and more.budget_s == 960 * MORE_TIME


def test_the_middle_follows_the_comparisons_beyond_it() -> None:
    """The ends were compared until they differ, and by how much is known better later."""
    ends = Trial(a=0, b=8, verdict="regression", limit=0.02, budget_s=60.0, alpha=0.001, change=0.1)
    worse, good = (msgspec.structs.replace(ends, b=b, verdict=v, change=c) for b, v, c in
                   ((4, "regression", 0.05), (2, "pass", 0.01)))  # fmt: skip
    step = Search(8, 0.02, 60.0, (ends, worse, good)).next_step()
    assert step is not None and step.limit == pytest.approx((1.1 * 1.05) ** 0.25 - 1)


def test_a_last_comparison_that_contradicts_names_no_commit() -> None:
    def judge(step: NextTrial) -> GateVerdict:
        return "pass" if step.a else "regression" if step.b >= 5 else "pass"

    assert searched(8, judge).outcome() is SearchOutcome.INCONCLUSIVE


@pytest.mark.parametrize("verdict", ["inconclusive", "pass", "failed"])
def test_the_error_of_the_search_is_never_spent(verdict: GateVerdict) -> None:
    """However many comparisons are inconclusive or fail."""
    source = random.Random(1)
    for _ in range(100):
        unusable = {position: verdict for position in range(1, 200) if source.random() < 0.2}
        search = searched(200, slow_from(source.randrange(1, 201), unusable))
        assert 1 - ALPHA <= search.confidence <= 1
    search = Search(64, 0.02, 60.0)
    step = search.next_step()
    assert step is not None and step.alpha == pytest.approx(ALPHA / 9), "6 halvings, the ends, the last, one more"


def test_outputs_have_no_limit_and_spend_nothing() -> None:
    def judge(step: NextTrial) -> GateVerdict:
        return "output mismatch" if step.a < 7 <= step.b else "pass"

    search = searched(16, judge, limit=None, change=None)
    assert search.outcome() is SearchOutcome.FOUND and search.bounds == (6, 7) and search.confidence is None
    assert {trial.limit for trial in search.trials} == {None}


def test_ends_that_cannot_be_compared() -> None:
    assert searched(8, lambda step: "not comparable").outcome() is SearchOutcome.NOT_COMPARABLE


@pytest.mark.slow
@pytest.mark.parametrize(("slowdown", "named"), [("0.05", 1.0), ("0.01", 0.0)])
def test_replays_of_histories(slowdown: str, named: float) -> None:
    """The committed result is of 200 replays; a slowdown below the limit is not named."""
    root = Path(__file__).parents[3]
    script = root / "benchmarks" / "bisect_replays.py"
    command = [sys.executable, str(script), "--replays", "15", "--slowdown", slowdown, "--json"]
    ended = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(root)}, timeout=120
    )
    assert ended.returncode == (0 if named else 1), ended.stderr
    found = json.loads(ended.stdout)["results"]
    assert found["one slow commit"]["right"] == named
    assert found["none"]["right"] == 1.0
