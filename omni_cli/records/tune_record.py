"""A search of `omni tune`, `omni.tune/2`: every start of every setting, and the standings computed from them.

The file is written after each batch, so that an interrupted search continues from it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec

from omni_cli.records.record import Alpha, Variant, first_variant_problem
from omni_cli.records.record_file import Kind, get_digest, load_checked
from omni_cli.records.results import Bounds, Outputs

SCHEMA: Final = "omni.tune/2"
_NEW_NAMES = {"omni.tune/1": {"heats": "batches"}}
SCHEMAS = (SCHEMA, *_NEW_NAMES)

State = Literal["best", "no worse", "worse", "open", "infeasible"]
"""`no worse`: the best is not better by more than the margin; `open`: neither that nor worse is shown."""


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """A setting. `problem` is the reason why it cannot be the answer; `outputs` compare it with the first candidate,
    and are None if they were not asked for or not measured."""

    name: str
    settings: dict[str, Any] = {}
    problem: str | None = None
    outputs: Outputs | None = None


class Round(msgspec.Struct, frozen=True, kw_only=True):
    """Each running setting started once, in one or more batches; `control` is the setting that runs in every batch.

    The variants of a batch carry the samples of the objective.
    """

    control: str
    batches: tuple[tuple[Variant, ...], ...] = ()


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a candidate: the median of the objective over all runs, and its cost over that of the best setting
    (1.1: a tenth slower) with an interval. `memory_bytes` is the largest peak of its starts."""

    name: str
    state: State
    starts: int = 0
    value: float | None = None
    ratio: float | None = None
    ci95: Bounds | None = None
    memory_bytes: int | None = None
    outputs: Outputs | None = None
    on_front: bool = False
    problem: str | None = None


class TuneRecord(msgspec.Struct, frozen=True, kw_only=True):
    """`fingerprint` is of everything that has to be equal for a search to be continued.

    `excess` is the share by which the best of all settings may be better than `winner`, with probability 1 - alpha.
    """

    schema: Literal["omni.tune/2"] = SCHEMA
    created: str
    command: tuple[str, ...] = ()
    environment: dict[str, Any]
    workload: dict[str, Any]
    objective: str
    margin: Annotated[float, msgspec.Meta(gt=0, le=10)]
    alpha: Alpha = 0.05
    limits: dict[str, Any] = {}
    elapsed_s: float = 0.0
    candidates: tuple[Candidate, ...]
    rounds: tuple[Round, ...] = ()
    verdict: Literal["unfinished", "decided", "inconclusive", "infeasible"] = "unfinished"
    winner: str | None = None
    excess: float | None = None
    standings: tuple[Standing, ...] = ()
    digest: str | None = None

    @property
    def fingerprint(self) -> str:
        """A digest of the candidates, the machine, the workload, the objective, the margin and the limits."""
        machine = {key: value for key, value in self.environment.items() if key not in ("code", "conditions")}
        names = [candidate.name for candidate in self.candidates]
        return get_digest([machine, self.workload, self.objective, self.margin, self.limits, names])

    @property
    def starts(self) -> int:
        return sum(len(batch) for round_ in self.rounds for batch in round_.batches)


_AGAIN = "search again with `omni tune`; records must not be edited by hand"
_KIND = Kind("tune record", SCHEMA, "omni tune", _AGAIN, renamed=_NEW_NAMES)


def load_tune_record(path: Path) -> TuneRecord:
    """Read and check a record. Raises `InputError`: unreadable, truncated, foreign, incomplete or edited."""
    return load_checked(path, TuneRecord, _KIND, _first_problem)


def _first_problem(record: TuneRecord) -> str | None:
    names = [candidate.name for candidate in record.candidates]
    if not names or len(set(names)) != len(names):
        return "the names of its candidates are missing or not unique"
    for round_ in record.rounds:
        for batch in round_.batches:
            if problem := first_variant_problem(batch):
                return problem
            if not {variant.name for variant in batch} <= set(names):
                return "a batch has a setting that is not among its candidates"
    return None
