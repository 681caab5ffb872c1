"""Searches of real models with `omni tune`, against the exhaustive search of the same settings on the same machine.

    python benchmarks/tune_real.py CASE FOLDER [--exhaustive-s SECONDS] [--search-only | --compare]

The exhaustive search starts every setting in every round, with the same heats, iterations, bounds and margin, until it
has ranked every pair: the interval of each lies on one side of 0 or within the margin. It continues from FOLDER like
`omni tune` does, and stops after `--exhaustive-s` seconds of measuring in all, ranked or not; a comparison with one
that is not ranked yet says that it would have taken longer. `--compare` measures nothing and prints the result.
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
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from omni_cli.bench.harness import RunLimits
from omni_cli.bench.profile_source import ProfileSource
from omni_cli.bench.search import plan_space
from omni_cli.bench.tuning import TuneLimits, Tuning
from omni_cli.bench.workload import Workload
from omni_cli.cli.tune.run import TuneProgress, local_search
from omni_cli.config.bundled import find_profile
from omni_cli.stats.race import MIN_ROUNDS, Race, student_quantile
from omni_cli.stats.sequential import ALPHA, spent
from omni_cli.stats.tuning import race_of
from omni_cli.tune_record import TuneRecord, load_tune_record

LOOKS = 60


@dataclass(frozen=True)
class Case:
    """A search, and the iterations of each start."""

    profile: str
    stage: str
    batch_size: int
    output_len: int
    searches: tuple[str, ...]
    num_iters: int
    num_iters_warmup: int
    margin: float = 0.1
    overrides: tuple[str, ...] = ()


CASES = {
    "tiny-image": Case(
        "tiny-image",
        "all",
        4,
        32,
        ("num_inference_steps=4,8,16", "batching=exact,stacked"),
        12,
        3,
    ),
    "thinker": Case(
        "small-omni",
        "thinker",
        8,
        4,
        ("max_num_seqs=1..8",),
        4,
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
        return ranked(self, [name for name in self._names if name not in self._excluded], math.expm1(self._edge))

    @property
    def is_exhausted(self) -> bool:
        return False


class Exhaustive(Tuning):
    """A search without elimination."""

    def _race(self) -> Race:
        race = race_of(self.record)
        race.__class__ = EveryPair
        return race


def ranked(race: Race, names: Sequence[str], margin: float) -> bool:
    """True if the interval of every pair lies on one side of 0 or within the margin."""
    pairs = list(itertools.combinations(names, 2))
    for a, b in pairs:
        gap = race.gap(a, b)
        values = np.array(race.values(a, b))
        if gap.rounds < MIN_ROUNDS:
            return False
        share = ALPHA / len(pairs)
        earlier = spent((gap.rounds - 1) / LOOKS, share) if gap.rounds > MIN_ROUNDS else 0.0
        tail = (spent(gap.rounds / LOOKS, share) - earlier) / 2
        half = student_quantile(tail, gap.rounds - 1) * values.std(ddof=1) / math.sqrt(gap.rounds)
        if not (half < abs(gap.centre) or abs(gap.centre) + half <= math.log1p(margin)):
            return False
    return True


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("case", choices=list(CASES))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--exhaustive-s", type=float, default=3600.0)
    parser.add_argument("--search-only", action="store_true")
    parser.add_argument("--compare", action="store_true")
    options = parser.parse_args()
    if options.compare:
        sys.stdout.write(json.dumps(_compared(options.folder), indent=2) + "\n")
        return 0
    if options.search_only:
        return _search(options.case, options.folder / "search")
    asyncio.run(_exhaust(options.case, options.folder / "exhaustive", options.exhaustive_s))
    return 0


def _search(case: str, folder: Path) -> int:
    of = CASES[case]
    command = [sys.executable, "-m", "omni_cli", "tune", "-p", of.profile, "--stage", of.stage]
    command += ["--batch-size", str(of.batch_size), "--output-len", str(of.output_len), "--margin", f"{of.margin:.0%}"]
    command += ["--num-iters", str(of.num_iters), "--num-iters-warmup", str(of.num_iters_warmup)]
    command += ["--output-dir", str(folder)]
    for text in of.searches:
        command += ["--search", text]
    for text in of.overrides:
        command += ["--set", text]
    return subprocess.run(command, check=False).returncode


async def _exhaust(case: str, folder: Path, budget_s: float) -> None:
    of = CASES[case]
    source = ProfileSource(str(find_profile(of.profile)), of.overrides, None, None, False)
    config = source.load()
    workload = Workload(of.stage, of.batch_size, output_len=of.output_len)
    space = plan_space(of.searches, config, workload, source, 2)
    limits = TuneLimits()
    path = folder / "tune.json"
    with tempfile.TemporaryDirectory() as inputs:
        wanted = local_search(
            source, workload, space, "e2e_s", of.margin, limits, inputs=Path(inputs), verbose=False
        )  # fmt: skip
        record = load_tune_record(path) if path.exists() else wanted.record(("benchmarks/tune_real.py", case))
        await Exhaustive(
            space.treatments,
            record,
            wanted.plan,
            limits=limits,
            iterations=RunLimits(of.num_iters, of.num_iters_warmup, None),
            time_budget_s=budget_s,
            watcher=TuneProgress(quiet=False, verbose=False),
            path=path,
        ).run()


def _compared(folder: Path) -> dict[str, object]:
    """Return the times of both, and how much the search's answer costs by the exhaustive measurements."""
    found, every = (load_tune_record(folder / name / "tune.json") for name in ("search", "exhaustive"))
    race = race_of(every)
    names = [item.name for item in every.candidates if item.problem is None]
    assert found.winner is not None and every.winner is not None
    gap = race.gap(found.winner, every.winner)
    return {
        "settings": len(names),
        "margin": found.margin,
        "search": _summary(found),
        "exhaustive": {**_summary(every), "ranked_all_pairs": ranked(race, names, every.margin)},
        "share_of_starts": found.starts / every.starts,
        "share_of_time": found.elapsed_s / every.elapsed_s,
        "cost_over_the_exhaustive_optimum": math.exp(gap.centre) if found.winner != every.winner else 1.0,
    }


def _summary(record: TuneRecord) -> dict[str, object]:
    return {
        "winner": record.winner, "verdict": record.verdict, "excess": record.excess, "starts": record.starts,
        "rounds": len(record.rounds), "elapsed_s": round(record.elapsed_s, 1),
    }  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
