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

from omni_cli.records.results import GateVerdict
from omni_cli.stats.bisection import LOOSE_ALPHA, MORE_TIME, Search, Trial
from omni_cli.stats.sequential import ALPHA

SURE = 0.008
"""A standard error at which a comparison of 5 % is worth nine nats: no single one is wrong, and none is certain."""

Judge = Callable[[Trial], GateVerdict]


def searched(
    last: int, judge: Judge, limit: float | None = 0.02, change: float | None = 0.05, error: float = SURE
) -> Search:
    """The search at its end, if each comparison has the verdict that `judge` gives."""
    search = Search(last, limit, 60.0)
    while step := search.next_step():
        verdict = judge(step)
        decided = verdict not in ("failed", "not comparable")
        found = {"regression": change, "pass": change and 0.0}.get(verdict)
        trial = Trial(
            a=step.a, b=step.b, verdict=verdict, limit=step.limit, budget_s=step.budget_s,
            alpha=step.alpha if decided else 0.0, change=found if decided else None,
            standard_error=error if decided and change else None,
        )  # fmt: skip
        search = Search(last, limit, 60.0, (*search.trials, trial))
        assert len(search.trials) < 10 * last + 10, "it does not end"
    return search


def searched_once(last: int, change: float) -> Trial:
    return Trial(a=0, b=last, verdict="regression", limit=0.01, budget_s=60.0, alpha=0.01, change=change)


def slow_from(culprit: int, unusable: dict[int, GateVerdict] | None = None) -> Judge:
    def judge(step: Trial) -> GateVerdict:
        if unusable and step.b in unusable:
            return unusable[step.b]
        return "regression" if step.a < culprit <= step.b else "pass"

    return judge


@pytest.mark.parametrize("last", [1, 2, 3, 64])
def test_every_commit_can_be_found(last: int) -> None:
    for culprit in range(1, last + 1):
        search = searched(last, slow_from(culprit))
        assert search.outcome() == "found" and search.bounds == (culprit - 1, culprit)
        assert len(search.trials) <= math.ceil(math.log2(last)) + 2


def test_the_limits_of_the_comparisons() -> None:
    """The ends have the user's limit, the others the middle of the change; the last one has the error of a verdict."""
    first, *between, final = searched(64, slow_from(40)).trials
    assert (first.a, first.b, first.limit) == (0, 64, 0.02)
    assert {trial.a for trial in between} == {0}
    assert all(trial.limit == pytest.approx(math.sqrt(1.05) - 1) for trial in (*between, final))
    assert {trial.alpha for trial in between} == {LOOSE_ALPHA} and final.alpha == ALPHA
    assert (final.a, final.b) == (39, 40)


def test_a_range_without_a_slowdown_ends_after_one_comparison() -> None:
    search = searched(64, slow_from(65))
    assert search.outcome() == "no regression" and len(search.trials) == 1


def test_commits_that_do_not_run_are_skipped() -> None:
    source = random.Random(0)
    for _ in range(300):
        culprit = source.randrange(1, 65)
        broken: dict[int, GateVerdict] = {p: "failed" for p in range(1, 64) if source.random() < 0.3}
        search = searched(64, slow_from(culprit, broken))
        low, high = search.bounds
        assert low < culprit <= high
        assert all(position in broken for position in range(low + 1, high)), "nothing else is left between them"
        assert search.outcome() == ("found" if high - low == 1 else "narrowed")
        assert len({trial.b for trial in search.trials if trial.verdict == "failed"}) == sum(
            trial.verdict == "failed" for trial in search.trials
        ), "a commit that does not run is tried once"


def test_a_long_stretch_that_does_not_run_is_left_quickly() -> None:
    broken: dict[int, GateVerdict] = {position: "failed" for position in range(16, 49)}
    search = searched(64, slow_from(60, broken))
    assert search.bounds == (59, 60)
    assert sum(trial.verdict == "failed" for trial in search.trials) <= 7


def test_an_undecided_comparison_counts_and_is_repeated() -> None:
    """Weak evidence adds up: nothing of what was measured is lost."""
    step = searched_once(16, change=0.05)
    search = Search(16, 0.02, 60.0, (step,))
    for _ in range(12):
        following = search.next_step()
        if following is None:
            break
        weak = Trial(a=following.a, b=following.b, verdict="inconclusive", limit=following.limit, budget_s=60.0,
                     alpha=LOOSE_ALPHA, change=0.05 if following.b >= 9 else 0.0, standard_error=0.02)  # fmt: skip
        before = search.probabilities[8]
        search = Search(16, 0.02, 60.0, (*search.trials, weak))
        assert search.probabilities[8] > before


def test_a_wrong_comparison_is_outvoted() -> None:
    wrong = {12: 1}

    def judge(step: Trial) -> GateVerdict:
        if wrong.get(step.b):
            wrong[step.b] -= 1
            return "regression"
        return slow_from(40)(step)

    search = searched(64, judge, error=0.014)
    assert search.outcome() == "found" and search.bounds == (39, 40)


def test_a_search_that_learns_nothing_ends() -> None:
    search = searched(64, lambda step: "regression" if step.b == 64 and not step.a else "inconclusive")
    assert search.outcome() == "narrowed" and len(search.trials) < 40
    assert search.bounds[1] - search.bounds[0] > 55


def test_inconclusive_ends_are_repeated_and_again_with_a_larger_budget() -> None:
    search = searched(8, lambda step: "inconclusive")
    assert [trial.budget_s for trial in search.trials] == [60, 240, 960]
    assert search.outcome() == "inconclusive"
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
    def judge(step: Trial) -> GateVerdict:
        return "pass" if step.a else "regression" if step.b >= 5 else "pass"

    assert searched(8, judge).outcome() != "found"


def test_no_comparison_is_worth_more_than_two_loads_of_the_same_code_differ() -> None:
    ends = searched_once(8, change=0.02)
    exact = Trial(a=0, b=4, verdict="regression", limit=0.01, budget_s=60.0, alpha=LOOSE_ALPHA, change=0.02,
                  standard_error=1e-6)  # fmt: skip
    search = Search(8, 0.01, 60.0, (ends, exact))
    assert 0.8 < search.probabilities[:4].sum() < 0.95


def test_outputs_have_no_limit_and_spend_nothing() -> None:
    def judge(step: Trial) -> GateVerdict:
        return "output mismatch" if step.a < 7 <= step.b else "pass"

    search = searched(16, judge, limit=None, change=None)
    assert search.outcome() == "found" and search.bounds == (6, 7) and search.confidence is None
    assert {trial.limit for trial in search.trials} == {None}


def test_ends_that_cannot_be_compared() -> None:
    assert searched(8, lambda step: "not comparable").outcome() == "not comparable"


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
