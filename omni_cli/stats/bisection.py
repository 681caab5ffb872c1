"""The search for the commit that made a benchmark worse: the next comparison, and the error that it may spend.

Position 0 is the good commit, `last` the bad one. Each comparison is judged by the gate. The first one, of the two
ends, has the user's limit; it must fail, or there is nothing to search for. The following ones compare a commit with
the good one and ask on which side of the middle it lies: their limit is the square root of the ratio of the ends. The
last one compares the found commit with the one before it, and has the smaller of the two limits.

An inconclusive comparison is repeated up to twice, in new processes, because two loads of the same code differ. After
each of these, all comparisons get `MORE_TIME` times the budget, up to `MOST_TIME` times the first: the noise is the
machine's, not the commit's. A commit that does not run, or stays inconclusive, decides nothing: a neighbour is compared
instead.

The error `ALPHA` of the search is shared by its comparisons: each gets an equal part of what is left for those that
are still needed, and one more. Their sum is below `ALPHA`, however many there are, and bounds the probability that any
interval of the search is wrong.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from statistics import fmean

import msgspec

from omni_cli.results import Bounds, GateVerdict
from omni_cli.stats.sequential import ALPHA

MORE_TIME = 4.0
MOST_TIME = 16.0
ATTEMPTS = 3
MIN_ALPHA = 1e-4

_WORSE: tuple[GateVerdict, ...] = ("regression", "output mismatch")
_BROKEN: tuple[GateVerdict, ...] = ("failed", "not comparable")


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """A comparison of position `b` with position `a` that has ended, and the error `alpha` that it spent.

    `change` is the worsening: 0.05 is 5 %. `record` is the file with its samples.
    """

    a: int
    b: int
    verdict: GateVerdict
    limit: float | None = None
    budget_s: float = 0.0
    alpha: float = 0.0
    change: float | None = None
    ci95: Bounds | None = None
    blocks: int = 0
    reason: str | None = None
    record: str | None = None


@dataclass(frozen=True)
class NextTrial:
    """The next comparison; `limit` is None where only outputs are compared."""

    a: int
    b: int
    limit: float | None
    budget_s: float
    alpha: float


class SearchOutcome(Enum):
    """The result of a search. `NARROWED`: several commits are left, because those between them cannot be compared."""

    FOUND = "found"
    NARROWED = "narrowed"
    NO_REGRESSION = "no regression"
    INCONCLUSIVE = "inconclusive"
    NOT_COMPARABLE = "not comparable"


@dataclass(frozen=True)
class Search:
    """The trials so far. `limit` is the worsening that counts, None if outputs have to be identical."""

    last: int
    limit: float | None
    budget_s: float
    trials: tuple[Trial, ...] = ()

    @property
    def bounds(self) -> tuple[int, int]:
        """The last position that is as good as the first one, and the first one that is not."""
        seen = [trial for trial in self.trials if trial.a == 0]
        low = max((trial.b for trial in seen if trial.verdict == "pass"), default=0)
        return low, min((trial.b for trial in seen if trial.verdict in _WORSE), default=self.last)

    @property
    def confidence(self) -> float | None:
        """The probability that all intervals hold, at least; None if outputs are compared, which are exact."""
        return None if self.limit is None else 1 - sum(trial.alpha for trial in self.trials)

    def trial(self, a: int, b: int) -> Trial | None:
        """Return the latest comparison of the two."""
        return next((trial for trial in reversed(self.trials) if (trial.a, trial.b) == (a, b)), None)

    def next_step(self) -> NextTrial | None:
        """Return the next comparison; None at the end of the search."""
        ends = self.trial(0, self.last)
        if ends is None or ends.verdict not in _WORSE:
            return self._again(0, self.last, self.limit)
        low, high = self.bounds
        between = range(low + 1, high)
        for position in between:
            if self.trial(0, position) is not None and (step := self._again(0, position, self._middle(ends))):
                return step
        seen = [trial.verdict for position in between if (trial := self.trial(0, position))]
        new = [position for position in between if self.trial(0, position) is None]
        if new and seen.count("inconclusive") < ATTEMPTS:
            # Broken commits come in stretches: after each one, look further away.
            new.sort(key=lambda position: abs(2 * position - low - high))
            misses = len(between) - len(new)
            return self._step(0, new[min(2**misses - 1, len(new) - 1)], self._middle(ends))
        return self._again(low, high, self._last_limit(ends)) if low else None

    @property
    def final(self) -> Trial:
        """The comparison that measures the size of the change, once there is no next step."""
        ends = self.trial(0, self.last)
        final = self.trial(*self.bounds) if ends is not None and ends.verdict in _WORSE else ends
        assert final is not None, "the search has not ended"
        return final

    def outcome(self) -> SearchOutcome:
        """Return the result of a search without a next step."""
        low, high = self.bounds
        final = self.final
        if final.verdict in _WORSE:
            return SearchOutcome.FOUND if high - low == 1 else SearchOutcome.NARROWED
        if (final.a, final.b) == (0, self.last) and final.verdict in _BROKEN:
            return SearchOutcome.NOT_COMPARABLE
        is_good = (final.a, final.b) == (0, self.last) and final.verdict == "pass"
        return SearchOutcome.NO_REGRESSION if is_good else SearchOutcome.INCONCLUSIVE

    def _again(self, a: int, b: int, limit: float | None) -> NextTrial | None:
        """Return a first comparison of the two, or another one after an inconclusive one."""
        before = [trial for trial in self.trials if (trial.a, trial.b) == (a, b)]
        is_open = all(trial.verdict == "inconclusive" for trial in before) and (limit is not None or not before)
        tried = sum(trial.budget_s >= self.budget_s for trial in before)
        return self._step(a, b, limit) if is_open and tried < ATTEMPTS else None

    def _step(self, a: int, b: int, limit: float | None) -> NextTrial:
        low, high = self.bounds
        needed = math.ceil(math.log2(high - low)) + 1 + (self.trial(0, self.last) is None)
        left = ALPHA - sum(trial.alpha for trial in self.trials)
        longer = [MORE_TIME * trial.budget_s for trial in self.trials if trial.verdict == "inconclusive"]
        budget_s = min(max(self.budget_s, *longer, 0.0), MOST_TIME * self.budget_s)
        return NextTrial(a, b, limit, budget_s, max(left / (needed + 1), MIN_ALPHA))

    def _middle(self, ends: Trial) -> float | None:
        """Return the limit in the middle between good and bad, on a logarithmic scale.

        The change of the ends is a first guess, because their comparison stops early. Bad is the mean of all commits
        beyond its middle.
        """
        if self.limit is None or ends.change is None:
            return None
        guess = math.log1p(ends.change) / 2
        logs = [math.log1p(trial.change) for trial in self.trials if trial.a == 0 and trial.change is not None]
        return math.expm1(fmean(log for log in logs if log > guess) / 2)

    def _last_limit(self, ends: Trial) -> float | None:
        middle = self._middle(ends)
        return None if middle is None or self.limit is None else min(middle, self.limit)
