"""The search for the commit that made a benchmark worse: the next comparison, and the probability of each commit.

Position 0 is the good commit, `last` the bad one. The first comparison, of the two ends, has the user's limit and is
judged by the gate; it must fail, or there is nothing to search for. It also measures the change.

Every further comparison asks whether the change lies in its range, and is evidence either way: the likelihood of its
estimate if the benchmark is as much worse as the bad end, over that if it is as good as the good one. Two loads of the
same code differ, too, so no comparison is worth more than that allows. Together they give each commit a probability
(all are equally likely at first), and the next comparison is that of the commit which halves what is left. It stops at
its first look that tells the two apart at a loose level: an undecided comparison is repeated in new processes and loses
nothing, a wrong one is outvoted. When one commit, or several that only broken ones lie between, have the probability
`1 - ALPHA`, they are compared with the commit before them, and named if they keep it.

A commit that does not run is skipped: one next to it is compared instead. Memory and outputs do not vary, so that
their verdicts are certain.
"""

from __future__ import annotations

import math
from statistics import NormalDist, fmean
from typing import Literal

import msgspec
import numpy as np

from omni_cli.records.results import Bounds, GateVerdict
from omni_cli.stats.sequential import ALPHA

MORE_TIME = 4.0
MOST_TIME = 16.0
ATTEMPTS = 3
"""The two ends are compared so often, each time for `MORE_TIME` times as long, up to `MOST_TIME` times the first."""

LOOSE_ALPHA = 0.35
"""The error at which a comparison between the ends stops."""

LOADS_SD = 0.007
"""Standard deviation of the logarithm of the time between two loads of the same code, as measured."""

_CERTAIN = 20.0  # log odds
_NUM_SPARE = 6  # comparisons beyond three for each halving

Outcome = Literal["found", "narrowed", "no regression", "inconclusive", "not comparable"]
"""The result of a search. `narrowed`: several commits are left, of which one is to blame."""

_WORSE: tuple[GateVerdict, ...] = ("regression", "output mismatch")
BROKEN_VERDICTS: tuple[GateVerdict, ...] = ("failed", "not comparable")


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """A comparison of position `b` with position `a`, and the error `alpha` that it may spend, or has spent.

    `limit` is None where only outputs are compared. `change` is the worsening: 0.05 is 5 %; `standard_error` is that of
    its logarithm. `record` is the file with its samples.
    """

    a: int
    b: int
    verdict: GateVerdict = "inconclusive"
    limit: float | None = None
    budget_s: float = 0.0
    alpha: float = 0.0
    change: float | None = None
    ci95: Bounds | None = None
    standard_error: float | None = None
    blocks: int = 0
    reason: str | None = None
    record: str | None = None


class Search(msgspec.Struct, frozen=True):
    """The trials so far. `limit` is the worsening that counts, None if outputs have to be identical."""

    last: int
    limit: float | None
    budget_s: float
    trials: tuple[Trial, ...] = ()

    @property
    def probabilities(self) -> np.ndarray:
        """float64 (last,): how likely each commit is to blame; item 0 is position 1."""
        logs = np.zeros(self.last)
        for trial in self.trials:
            logs[trial.a : trial.b] += self.odds(trial)
        weights = np.exp(logs - logs.max())
        return np.asarray(weights / weights.sum())

    @property
    def bounds(self) -> tuple[int, int]:
        """The smallest range that has the commit to blame with the probability `1 - ALPHA`: after the first position,
        up to the second. Commits that do not run cannot be told apart from the next one that does."""
        edges = np.setdiff1d(np.arange(self.last + 1), list(self._broken_commits - {self.last}))
        below = np.concatenate([[0.0], np.cumsum(self.probabilities)])[edges]
        # For each beginning, the first end that is far enough.
        ends = np.searchsorted(below, below + 1 - ALPHA)
        ranges = [
            (int(edges[end] - edges[start]), float(below[start] - below[end]), int(edges[start]), int(edges[end]))
            for start, end in enumerate(ends)
            if end < len(edges)
        ]
        _, _, low, high = min(ranges)
        return low, high

    @property
    def confidence(self) -> float | None:
        """The probability that the commit to blame is in the bounds; None without one, or if outputs are compared."""
        ends = self.trial(0, self.last)
        if self.limit is None or ends is None or ends.verdict not in _WORSE:
            return None
        low, high = self.bounds
        return float(self.probabilities[low:high].sum())

    def trial(self, a: int, b: int) -> Trial | None:
        """Return the latest comparison of the two."""
        return next((trial for trial in reversed(self.trials) if (trial.a, trial.b) == (a, b)), None)

    def next_step(self) -> Trial | None:
        """Return the next comparison; None at the end of the search."""
        ends = self.trial(0, self.last)
        if ends is None or ends.verdict not in _WORSE:
            return self._ends()
        compared = sum(trial.verdict not in BROKEN_VERDICTS for trial in self.trials)
        if compared > 3 * math.ceil(math.log2(self.last + 1)) + _NUM_SPARE:
            return None
        low, high = self.bounds
        broken = self._broken_commits
        untold = [position for position in range(low + 1, high) if position not in broken]
        if untold:
            # Broken commits come in stretches: after each one, look further away.
            below = np.cumsum(self.probabilities)
            untold.sort(key=lambda position: abs(below[position - 1] - 0.5))
            misses = high - low - 1 - len(untold)  # those that do not run
            position = untold[min(2**misses - 1, len(untold) - 1)]
            return Trial(a=0, b=position, limit=self._middle, budget_s=self.budget_s, alpha=LOOSE_ALPHA)
        final = self.trial(low, high)
        if final is None or self._contradicts(final):
            return Trial(a=low, b=high, limit=self._middle, budget_s=self.budget_s, alpha=ALPHA)
        return None

    @property
    def final(self) -> Trial:
        """The comparison that measures the size of the change, once there is no next step."""
        final = self.trial(*self.bounds) or self.trial(0, self.last)
        assert final is not None, "the search has not ended"
        return final

    def outcome(self) -> Outcome:
        """Return the result of a search without a next step."""
        ends = self.trial(0, self.last)
        assert ends is not None, "the search has not ended"
        if ends.verdict in _WORSE:
            low, high = self.bounds
            if high - low > 1:
                return "narrowed"
            final = self.trial(low, high)
            is_found = final is not None and not self._contradicts(final)
            return "found" if is_found else "inconclusive"
        if ends.verdict in BROKEN_VERDICTS:
            return "not comparable"
        return "no regression" if ends.verdict == "pass" else "inconclusive"

    @property
    def _broken_commits(self) -> frozenset[int]:
        return frozenset(trial.b for trial in self.trials if trial.verdict in BROKEN_VERDICTS)

    def _contradicts(self, final: Trial) -> bool:
        """True if a comparison of what is left finds no change, whatever the others found."""
        return (final.a, final.b) != (0, self.last) and self.odds(final) <= 0

    def _ends(self) -> Trial | None:
        """Return a first comparison of the ends, or another one after an inconclusive one."""
        is_open = all(trial.verdict == "inconclusive" for trial in self.trials)
        is_open = is_open and (self.limit is not None or not self.trials)
        if not is_open or sum(trial.budget_s >= self.budget_s for trial in self.trials) >= ATTEMPTS:
            return None
        longer = max((MORE_TIME * trial.budget_s for trial in self.trials), default=0.0)
        budget_s = min(max(self.budget_s, longer), MOST_TIME * self.budget_s)
        return Trial(a=0, b=self.last, limit=self.limit, budget_s=budget_s, alpha=ALPHA / ATTEMPTS)

    @property
    def _middle(self) -> float | None:
        """The worsening in the middle between good and bad, on a logarithmic scale; None where outputs are compared.

        The change of the ends is a first guess, because their comparison stops early. Bad is the mean of all commits
        beyond its middle.
        """
        ends = self.trial(0, self.last)
        if self.limit is None or ends is None or ends.change is None:
            return None
        guess = math.log1p(ends.change) / 2
        logs = [math.log1p(trial.change) for trial in self.trials if trial.a == 0 and trial.change is not None]
        return math.expm1(fmean(log for log in logs if log > guess) / 2)

    def odds(self, trial: Trial) -> float:
        """Return the logarithm of the odds that the change lies in the range of a comparison, by this comparison; 0 for
        the ends, between which it lies."""
        if (trial.a, trial.b) == (0, self.last) or trial.verdict in BROKEN_VERDICTS:
            return 0.0
        if trial.change is None or trial.standard_error is None or (middle := self._middle) is None:
            return _CERTAIN * ((trial.verdict in _WORSE) - (trial.verdict == "pass"))
        middle = math.log1p(middle)
        odds = 2 * middle * (math.log1p(trial.change) - middle) / (trial.standard_error**2 + 2 * LOADS_SD**2)
        return min(max(odds, -_CERTAIN), _CERTAIN)


def standard_error(interval: Bounds | None, level: float) -> float | None:
    """Return the standard error of the logarithm, from an interval of a worsening with coverage 1 - `level`."""
    if interval is None:
        return None
    width = math.log1p(interval[1]) - math.log1p(interval[0])
    return width / 2 / NormalDist().inv_cdf(1 - level / 2)
