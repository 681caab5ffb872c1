"""From the starts of a search to its standings: the race is run again from the record."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from omni_cli.metrics import GOODPUT, higher_is_better
from omni_cli.record import Variant, get_values
from omni_cli.results import Bounds
from omni_cli.stats.blocks import block_medians
from omni_cli.stats.race import Gap, Race
from omni_cli.tune_record import Candidate, Standing, State, TuneRecord


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


def concluded(record: TuneRecord, *, stopped: bool = False) -> TuneRecord:
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
        ci95=_ratios(gap) if gap is not None else None,
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


def _ratios(gap: Gap) -> Bounds | None:
    if gap.ci95 is None or not all(abs(bound) < 50 for bound in gap.ci95):
        return None
    return math.exp(gap.ci95[0]), math.exp(gap.ci95[1])


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
