"""Searches of real models with `omni tune`, against the exhaustive search of the same settings on the same machine.

    python benchmarks/tune_real.py CASE FOLDER [--minutes N]       # measures; again: continues from FOLDER
    python benchmarks/tune_real.py CASE FOLDER --compare           # measures nothing and prints the result

The exhaustive search starts every setting in every round, with the same batches, iterations, bounds and margin, until
it has ranked every pair: the interval of each lies on one side of 0 or within the margin. The rounds of both searches
alternate, so that other programs on the machine slow both alike. An exhaustive search that has taken more than
`PATIENCE` times as long as the other one ends unranked; the result says that it would have taken longer.

With `--warm`, starts are new processes forked from one that has done the imports, as in the tests: on two busy cores
the imports would be most of either search's time.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from tune_calibration import are_ranked

from omni_cli.cli.tune.run import SettingsSearch, TuneProgress, write_profile
from omni_cli.config.bundled import find_profile
from omni_cli.measure.bench.local import local_plan
from omni_cli.measure.bench.profile_source import ProfileSource
from omni_cli.measure.bench.schedule import RunLimits
from omni_cli.measure.bench.tuning import TuneLimits, Tuning, plan_space
from omni_cli.measure.bench.workload import Workload
from omni_cli.records.tune_record import TuneRecord, load_tune_record
from omni_cli.stats.race import MIN_ROUNDS, Race, get_race
from omni_cli.stats.sequential import ALPHA

PATIENCE = 4.0


@dataclass(frozen=True)
class Case:
    """A search, and the iterations of each start."""

    profile: str
    workload: Workload
    searches: tuple[str, ...]
    num_iters: int
    num_iters_warmup: int
    margin: float = 0.1
    overrides: tuple[str, ...] = ()


CASES = {
    "tiny-image": Case(
        "tiny-image",
        Workload("all", 8),
        ("max_num_seqs=1,2,4,8", "batching=exact,stacked"),
        12,
        2,
    ),
    "tiny-image-24": Case(
        "tiny-image",
        Workload("all", 8),
        ("max_num_seqs=1,2,3,4,6,8", "batching=exact,stacked", "enable_vae_slicing=false,true"),
        12,
        2,
    ),
    "thinker": Case(
        "small-omni",
        Workload("thinker", 8, output_len=4),
        ("max_num_seqs=1..8",),
        6,
        1,
        # Room for eight copies in the memory of a small machine.
        overrides=("thinker.max_model_len=256", "thinker.kv_cache_memory_bytes=67108864"),
    ),
}


class EveryPair(Race):
    """A race in which all settings run until all pairs are ranked."""

    @property
    def rivals(self) -> tuple[str, ...]:
        return tuple(name for name in self._names if name != self._leader and name not in self._excluded)

    @property
    def is_decided(self) -> bool:
        return not unranked(self, [name for name in self._names if name not in self._excluded], self._edge)

    @property
    def is_exhausted(self) -> bool:
        return False


class Exhaustive(Tuning):
    """A search without elimination."""

    def _race(self) -> Race:
        race = get_race(self.record)
        race.__class__ = EveryPair
        return race


def unranked(race: Race, names: Sequence[str], edge: float) -> list[tuple[str, str]]:
    """Return the pairs whose interval lies neither on one side of 0 nor within `edge`, the log of the margin."""
    pairs = list(itertools.combinations(names, 2))
    values = [race.values(a, b) for a, b in pairs]
    if any(len(found) < MIN_ROUNDS for found in values):
        return pairs
    share = ALPHA / len(pairs)
    return [
        pair
        for pair, found in zip(pairs, values, strict=True)
        if not are_ranked(np.array(found)[:, None], share, edge)[0]
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("case", choices=list(CASES))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--minutes", type=float, default=120.0, help="start no round after this time")
    parser.add_argument("--warm", action="store_true")
    parser.add_argument("--compare", action="store_true")
    options = parser.parse_args()
    if options.warm:
        return _run_warm([options.case, str(options.folder.resolve()), "--minutes", str(options.minutes)])
    if not options.compare:
        asyncio.run(_measure(CASES[options.case], options.folder, time.monotonic() + 60 * options.minutes))
    sys.stdout.write(json.dumps({"case": options.case, **_compared(options.folder)}, indent=2) + "\n")
    return 0


def _run_warm(arguments: list[str]) -> int:
    """Run this script with these arguments beside a process that has done the imports."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    from support.omni_process import OmniProcess

    with tempfile.TemporaryDirectory() as folder:
        process = OmniProcess(
            Path(folder), *arguments, warm=True, program=(str(Path(__file__).resolve()),), stderr=subprocess.STDOUT
        )
        out, _ = process.popen.communicate()
    sys.stdout.write(out)
    return process.popen.returncode


async def _measure(case: Case, folder: Path, end_s: float) -> None:
    """Alternate the rounds of both searches until both have ended or the time is up."""
    source = ProfileSource(str(find_profile(case.profile)), case.overrides, None, None, False)
    space = plan_space(case.searches, source.load(), case.workload, source, 2)
    with tempfile.TemporaryDirectory() as inputs:
        plan = partial(
            local_plan, source, case.workload, against=None, command=(), verbose=False, inputs=Path(inputs) / "inputs"
        )
        wanted = SettingsSearch(
            case.workload.describe(source.load()),
            space,
            "e2e_s",
            case.margin,
            TuneLimits(),
            lambda variants: plan(tuple(variants)),
            partial(write_profile, source),
        )
        search = _tuning(Tuning, case, wanted, folder / "search")
        every = _tuning(Exhaustive, case, wanted, folder / "exhaustive")
        runs = {search, every}
        while runs and time.monotonic() < end_s:
            for tuning in [found for found in (search, every) if found in runs]:
                is_patient = tuning is search or every.record.elapsed_s <= PATIENCE * search.record.elapsed_s
                if (search not in runs and not is_patient) or not await tuning.advance():
                    runs.discard(tuning)


def _tuning(kind: type[Tuning], case: Case, wanted: SettingsSearch, folder: Path) -> Tuning:
    """Return a search that continues from the folder."""
    path = folder / "tune.json"
    folder.mkdir(parents=True, exist_ok=True)
    return kind(
        wanted.space.variants,
        load_tune_record(path) if path.exists() else wanted.record(tuple(sys.argv)),
        wanted.plan,
        limits=wanted.limits,
        iterations=RunLimits(case.num_iters, case.num_iters_warmup, None),
        time_budget_s=None,
        watcher=TuneProgress(quiet=False, verbose=False),
        path=path,
    )


def _compared(folder: Path) -> dict[str, object]:
    """Return the times of both, and how much the search's answer costs by the exhaustive measurements."""
    found, every = (load_tune_record(folder / name / "tune.json") for name in ("search", "exhaustive"))
    race = get_race(every)
    names = [item.name for item in every.candidates if item.problem is None]
    assert found.winner is not None and every.winner is not None
    gap = race.gap(found.winner, every.winner)
    return {
        "settings": len(names),
        "margin": found.margin,
        "search": {**_summary(found), "verdict": found.verdict, "excess": found.excess},
        "exhaustive": {
            **_summary(every),
            "pairs": len(names) * (len(names) - 1) // 2,
            "pairs_not_ranked_yet": len(unranked(race, names, math.log1p(every.margin))),
        },
        "share_of_starts": found.starts / every.starts,
        "share_of_time": found.elapsed_s / every.elapsed_s,
        "cost_over_the_exhaustive_optimum": math.exp(gap.centre) if found.winner != every.winner else 1.0,
    }


def _summary(record: TuneRecord) -> dict[str, object]:
    return {
        "winner": record.winner, "starts": record.starts, "rounds": len(record.rounds),
        "elapsed_s": round(record.elapsed_s, 1),
    }  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
