"""A race of settings for the fastest, with a bound on the probability of returning one that is worse by the margin.

Settings run in batches: several of them, each in new processes, with their runs interleaved in blocks. Two starts of
the same code differ for as long as they live, so that more runs of a start say nothing about the next one. A round, in
which each running setting is started once, counts therefore as one value of a pair: the trimmed mean over the blocks of
the difference of their log costs. If a round has several batches, one setting runs in each, and settings of different
batches are compared through it. Rounds have processes of their own, so these values do not depend on each other,
whatever the correlation within a batch.

The bound on the true gap of two settings is Student's, one-sided, from the pair's own spread; nothing is borrowed from
other pairs, because settings may differ in their noise. A wrong answer needs a bound to fail that compares the best
setting with another one. There are K - 1 of those, and each is looked at after 3, 4, ... common rounds. `alpha` is
divided by K - 1 and then spent over these looks, so that the sum over all of them is `alpha` (Bonferroni): no order of
elimination and no reason to stop makes a wrong answer more probable than that. See docs/tuning.md.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from functools import lru_cache

import msgspec
import numpy as np

from omni_cli.records.metrics import GOODPUT, higher_is_better
from omni_cli.records.record import Variant
from omni_cli.records.results import Bounds
from omni_cli.records.tune_record import Candidate, Standing, State, TuneRecord
from omni_cli.stats.blocks import block_medians, get_values
from omni_cli.stats.compare import get_ratios
from omni_cli.stats.estimate import TRIM
from omni_cli.stats.sequential import ALPHA, spend_alpha

MIN_ROUNDS = 3
"""The first look. Two values have a spread, but its error would make every bound useless."""

MAX_ROUNDS = 20
"""The last look; a pair that is open then is closer to the margin than is worth the time."""

_CLOSE = 0.25
"""Share of the margin by which the best estimate may be ahead of a leader that stays."""

_MIN_SPREAD = 0.001
"""Floor of a pair's standard deviation, for counts of requests, which may be equal by chance."""

Batch = Mapping[str, Mapping[int, float]]
"""The log cost of each setting that finished a batch, by block; less is better."""


class Gap(msgspec.Struct, frozen=True):
    """The log cost of one setting over that of another: the mean over `rounds`, its interval of 95 %, and the largest
    value that the race has not excluded."""

    rounds: int
    centre: float
    ci95: Bounds | None = None
    upper: float = math.inf


class _Pair(msgspec.Struct):
    """The values of a pair's common rounds among the first `seen`, and the smallest bound of all looks, which hold
    together."""

    values: list[float] = msgspec.field(default_factory=list)
    upper: float = math.inf
    seen: int = 0


class Race:
    """The batches so far, and the settings that further batches are about.

    The first of `names` leads until another one is ahead. `margin` is a ratio: 0.02 is 2 %.
    """

    def __init__(
        self, names: Sequence[str], *, margin: float, alpha: float = ALPHA, max_rounds: int = MAX_ROUNDS
    ) -> None:
        self._names = list(names)
        self._edge = math.log1p(margin)
        self._share = alpha / max(len(self._names) - 1, 1)
        self._max_rounds = max_rounds
        self._rounds: list[tuple[str, list[Batch]]] = []
        self._excluded: set[str] = set()
        self._beaten_by: dict[str, str] = {}
        self._pairs: dict[tuple[str, str], _Pair] = {}
        self._leader = self._names[0] if self._names else ""

    @property
    def leader(self) -> str | None:
        """The best setting so far; None if none is left."""
        return None if self._leader in self._excluded or not self._leader else self._leader

    @property
    def rivals(self) -> tuple[str, ...]:
        """The settings that may be better than the leader by more than the margin."""
        return self._get_rivals(self._leader)

    @property
    def is_decided(self) -> bool:
        """True if no setting can be better than the leader by more than the margin."""
        return self.leader is not None and self.has_started and not self.rivals

    @property
    def is_exhausted(self) -> bool:
        """True if an open pair has had all its looks, or no setting is left."""
        if self.leader is None:
            return True
        return any(len(self._pair(self._leader, name).values) >= self._max_rounds for name in self.rivals)

    @property
    def has_started(self) -> bool:
        return any(self._leader in batch for _, batches in self._rounds for batch in batches)

    @property
    def excess(self) -> float:
        """The share by which the leader's cost may exceed that of the best setting: 0.02 is 2 %; may be infinite."""
        bound = max((self._pair(self._leader, name).upper for name in self._running()), default=0.0)
        return max(0.0, math.expm1(bound)) if bound < 100 else math.inf

    def add(self, control: str, batches: Sequence[Batch]) -> None:
        """Add a round, with `control` in each batch; then choose the leader and drop what it has beaten."""
        self._rounds.append((control, list(batches)))
        self._lead()
        for name in self._running():
            if self._pair(self._leader, name).upper <= 0:
                self._beaten_by[name] = self._leader

    def exclude(self, name: str) -> None:
        """Remove a setting that failed or exceeds a limit; those that it beat return."""
        self._excluded.add(name)
        if name == self._leader:
            self._lead()

    def gap(self, a: str, b: str) -> Gap:
        """Compare `a` with `b` over the rounds that both finished; above 0, `b` is better."""
        pair = self._pair(a, b)
        if not pair.values:
            return Gap(0, 0.0)
        centre, error = _moments(pair.values)
        half = student_quantile(0.025, len(pair.values) - 1) * error if len(pair.values) >= MIN_ROUNDS else None
        return Gap(len(pair.values), centre, None if half is None else (centre - half, centre + half), pair.upper)

    def values(self, a: str, b: str) -> tuple[float, ...]:
        """Return the log cost of `a` over that of `b` in each of their common rounds."""
        return tuple(self._pair(a, b).values)

    def _pair(self, a: str, b: str) -> _Pair:
        pair = self._pairs.setdefault((a, b), _Pair())
        for control, batches in self._rounds[pair.seen :]:
            if (value := _difference(batches, a, b, control)) is not None:
                pair.values.append(value)
                self._look(pair)
        pair.seen = len(self._rounds)
        return pair

    def _look(self, pair: _Pair) -> None:
        count = len(pair.values)
        if MIN_ROUNDS <= count <= self._max_rounds:
            earlier = spend_alpha((count - 1) / self._max_rounds, self._share) if count > MIN_ROUNDS else 0.0
            tail = spend_alpha(count / self._max_rounds, self._share) - earlier
            centre, error = _moments(pair.values)
            pair.upper = min(pair.upper, centre + student_quantile(tail, count - 1) * error)

    def _running(self) -> list[str]:
        """The settings that are neither out nor beaten by one that is still in, without the leader."""
        return [
            name
            for name in self._names
            if name != self._leader
            and name not in self._excluded
            and self._beaten_by.get(name, name) in (name, *self._excluded)
        ]

    def _get_rivals(self, leader: str) -> tuple[str, ...]:
        names = (self._leader, *self._running())
        return tuple(name for name in names if name != leader and self._pair(leader, name).upper > self._edge)

    def _lead(self) -> None:
        """Take the setting with the smallest estimate; one that never ran with the leader only if there is no other.

        The leader stays if it is close to that setting and has fewer rivals: the others ran side by side with it.
        """
        names = [self._leader, *self._running()]
        gaps = {name: self.gap(self._leader, name) for name in names if name not in self._excluded}
        if not gaps:
            return
        best = min(gaps, key=lambda name: (name != self._leader and not gaps[name].rounds, -gaps[name].centre))
        is_close = self._leader in gaps and gaps[best].centre <= _CLOSE * self._edge
        if not is_close or len(self._get_rivals(best)) <= len(self.rivals):
            self._leader = best


def _difference(batches: Sequence[Batch], a: str, b: str, control: str) -> float | None:
    """Return the difference in a round, of the same batch if there is one; None without a common round."""
    with_a = [batch for batch in batches if a in batch]
    for batch in with_a:
        if b in batch:
            return _compare_pair(batch, a, b)
    for mine in with_a:
        for other in batches:
            if b in other and control in mine and control in other:
                return _compare_pair(mine, a, control) - _compare_pair(other, b, control)
    return None


def _compare_pair(batch: Batch, a: str, b: str) -> float:
    """Return the 20 % trimmed mean of the differences in the common blocks, of which there is at least one."""
    values = sorted(value - batch[b][block] for block, value in batch[a].items() if block in batch[b])
    cut = int(TRIM * len(values))
    return math.fsum(values[cut : len(values) - cut]) / (len(values) - 2 * cut)


def _moments(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean and its standard error."""
    centre = math.fsum(values) / len(values)
    if len(values) < 2:
        return centre, math.inf
    variance = math.fsum((value - centre) ** 2 for value in values) / (len(values) - 1)
    return centre, max(math.sqrt(variance), _MIN_SPREAD) / math.sqrt(len(values))


@lru_cache(maxsize=4096)
def student_quantile(tail: float, freedom: int) -> float:
    """Return t with P(T > t) = `tail`, below 0.5, for a whole number of degrees of freedom; by bisection."""
    low, high = 0.0, math.pi / 2
    for _ in range(60):
        middle = (low + high) / 2
        if (1 - _central(middle, freedom)) / 2 > tail:
            low = middle
        else:
            high = middle
    return math.tan(high) * math.sqrt(freedom)


def _central(angle: float, freedom: int) -> float:
    """P(|T| < t) with t = sqrt(freedom) tan(angle): Abramowitz and Stegun 26.7.3 and 26.7.4."""
    cosine, sine = math.cos(angle), math.sin(angle)
    term, total = 1.0, 0.0
    first = freedom % 2
    if first:
        term = cosine
    for power in range(first, freedom - 1, 2):
        total += term
        term *= cosine * cosine * (power + 1) / (power + 2)
    return 2 / math.pi * (angle + sine * total) if first else sine * total


def get_race(record: TuneRecord) -> Race:
    """Return the race after the rounds of the record, without settings that were refused before any start."""
    started = {variant.name for round_ in record.rounds for batch in round_.batches for variant in batch}
    entered = [item for item in record.candidates if item.problem is None or item.name in started]
    race = Race([candidate.name for candidate in entered], margin=record.margin, alpha=record.alpha)
    for candidate in entered:
        if candidate.problem is not None:
            race.exclude(candidate.name)
    for round_ in record.rounds:
        race.add(round_.control, [batch_costs(batch, record.objective) for batch in round_.batches])
    return race


def batch_costs(batch: Sequence[Variant], objective: str) -> dict[str, Mapping[int, float]]:
    """Return the log costs of the settings that finished a batch, by block.

    Good requests are counts, often 0 in a single run: of these there is one cost, of the whole batch.
    """
    costs: dict[str, Mapping[int, float]] = {}
    sign = -1 if higher_is_better(objective) else 1
    for variant in batch:
        if variant.error is not None:
            continue
        blocks, medians = block_medians(variant, objective)
        if objective == GOODPUT and len(medians):
            blocks, medians = blocks[:1] * 0, np.array([statistics.fmean(v for _, v in get_values(variant, objective))])
        if len(medians) and (medians > 0).all():
            costs[variant.name] = dict(zip(blocks.tolist(), (sign * np.log(medians)).tolist(), strict=True))
    return costs


def conclude(record: TuneRecord, *, stopped: bool = False) -> TuneRecord:
    """Return the record with its verdict, winner and standings; `stopped`: no further round is run."""
    race = get_race(record)
    winner = race.leader if race.has_started else None
    standings = [_standing(candidate, record, race, winner) for candidate in record.candidates]
    verdict = record.verdict
    if race.is_decided:
        verdict = "decided"
    elif race.leader is None:
        verdict = "infeasible"
    elif stopped or race.is_exhausted:
        verdict = "inconclusive"
    excess = race.excess
    return msgspec.structs.replace(
        record,
        verdict=verdict,
        winner=winner,
        excess=excess if winner is not None and math.isfinite(excess) else None,
        standings=tuple(msgspec.structs.replace(item, on_front=_is_on_front(item, standings)) for item in standings),
    )


def _standing(candidate: Candidate, record: TuneRecord, race: Race, winner: str | None) -> Standing:
    name = candidate.name
    starts = [
        variant for round_ in record.rounds for batch in round_.batches for variant in batch if variant.name == name
    ]
    values = [value for variant in starts for _, value in get_values(variant, record.objective)]
    peaks = [peak for variant in starts if (peak := peak_bytes(variant)) is not None]
    gap = race.gap(name, winner) if winner is not None and name != winner else None
    known = gap is not None and gap.rounds > 0
    return Standing(
        name=name,
        state=_state(candidate, record, race, winner),
        starts=len(starts),
        value=statistics.median(values) if values else None,
        ratio=math.exp(gap.centre) if gap is not None and known else 1.0 if name == winner else None,
        ci95=get_ratios(gap.ci95, 50.0) if gap is not None and gap.ci95 is not None else None,
        memory_bytes=max(peaks, default=None),
        outputs=candidate.outputs,
        problem=candidate.problem,
    )


def _state(candidate: Candidate, record: TuneRecord, race: Race, winner: str | None) -> State:
    if candidate.problem is not None:
        return "infeasible"
    if winner is None:
        return "open"
    if candidate.name == winner:
        return "best"
    gap = race.gap(candidate.name, winner)
    if gap.ci95 is not None and gap.ci95[0] > 0:
        return "worse"
    return "open" if candidate.name in race.rivals else "no worse"


def peak_bytes(variant: Variant) -> int | None:
    """Return the peak of allocated device memory, or of resident host memory without a device."""
    return variant.memory.peak_allocated_bytes or variant.memory.peak_host_rss_bytes


def _is_on_front(item: Standing, standings: Sequence[Standing]) -> bool:
    """Return True if no other feasible setting is at least as fast and needs at most as much memory."""
    if item.state == "infeasible" or item.ratio is None or item.memory_bytes is None:
        return False
    mine = (item.ratio, item.memory_bytes)
    others = [
        (other.ratio, other.memory_bytes)
        for other in standings
        if other.name != item.name and other.state != "infeasible"
    ]
    return not any(
        ratio is not None and size is not None and ratio <= mine[0] and size <= mine[1] and (ratio, size) != mine
        for ratio, size in others
    )
