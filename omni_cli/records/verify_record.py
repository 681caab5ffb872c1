"""A saved verification, `omni.verify/1`: one row per check and stage.

Written by `omni verify`, read by `omni report` and `omni compare`. Imports neither torch nor NumPy. Log-probabilities,
margins and noise are in nats; samples are in [-1, 1], pixels in 256 values.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from omni_cli.core.errors import ExitCode
from omni_cli.records.record import KeptOutput
from omni_cli.records.record_file import Kind, load_checked

SCHEMA: Final = "omni.verify/1"
COMPARE_SCHEMA: Final = "omni.verify-compare/1"
Verdict = Literal["equal", "near tie", "different", "not checked"]
Check = Literal[
    "reference", "tokenizer", "alone = batched", "streamed = whole", "repeat", "seed", "limits", "modes", "modalities",
    "coverage",
]  # fmt: skip
_AGAIN = "verify again with `omni verify --output-json FILE`; records must not be edited by hand"
_KIND = Kind("verify record", SCHEMA, "omni verify --output-json FILE", _AGAIN)


class MeanMax(msgspec.Struct, frozen=True, kw_only=True):
    """Mean and maximum of absolute differences."""

    mean: float
    max: float


class DifferentPair(msgspec.Struct, frozen=True, kw_only=True):
    """Expected and actual output, for readers: texts, or outputs that a page can show."""

    expected_text: str | None = None
    got_text: str | None = None
    expected: KeptOutput | None = None
    got: KeptOutput | None = None


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one check of one stage over all requests; the details are those of the worst request.

    `position` counts tokens from 0, `codebook` the codes of a frame. `expected` and `got` are the token of either side
    at the first difference, or a word on it, with the reference's probabilities; `margin` is by how much the
    reference prefers the expected one. `logprob_diff` is over all tokens and candidates that were compared
    (`num_compared` numbers), `noise` the reference's own difference between its ways. `kl` is the mean divergence over
    the engine's most likely tokens, `same_top` the share of positions at which the reference chooses the same token.
    `max_abs_diff`, `psnr_db` and `log_mel_distance_db` are of images and sound.
    """

    check: Check
    stage: str | None = None
    verdict: Verdict
    mode: str | None = None
    request: str | None = None
    position: int | None = None
    codebook: int | None = None
    expected: str | None = None
    got: str | None = None
    expected_probability: float | None = None
    got_probability: float | None = None
    margin: float | None = None
    logprob_diff: MeanMax | None = None
    noise: MeanMax | None = None
    num_compared: int | None = None
    kl: float | None = None
    same_top: float | None = None
    max_abs_diff: float | None = None
    psnr_db: float | None = None
    log_mel_distance_db: float | None = None
    why: str | None = None
    pair: DifferentPair | None = None

    @property
    def name(self) -> str:
        """The check with its stage and mode, as in `reference talker` or `modes thinker (execution=cudagraph)`."""
        mode = "" if self.mode is None else f" ({self.mode})"
        return f"{self.check}{'' if self.stage is None else f' {self.stage}'}{mode}"


class TokenProbability(msgspec.Struct, frozen=True, kw_only=True):
    """The log-probability of one token by the engine and by the reference; `ratio` is the reference's over the
    engine's probability, the weight of importance sampling."""

    request: str
    stage: str
    position: int
    token_id: int
    token: str | None = None
    engine_logprob: float
    reference_logprob: float
    ratio: float


class VerifyRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A run of `omni verify`. `subject` names what was verified, with the hashes of the requests.

    `stopped` is why it ended before all checks, None if it did not. `notes` are sentences on what the stages changed
    about the requests.
    """

    schema: Literal["omni.verify/1"] = SCHEMA
    created: str
    command: tuple[str, ...] = ()
    environment: dict[str, Any]
    subject: dict[str, Any]
    rows: tuple[Row, ...]
    elapsed_s: float = 0.0
    stopped: str | None = None
    notes: tuple[str, ...] = ()
    digest: str | None = None


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """A row whose verdict is another one than before; None for a row that one record lacks."""

    name: str
    before: Verdict | None
    after: Verdict | None
    is_worse: bool
    why: str | None = None


class VerifyComparison(msgspec.Struct, frozen=True, kw_only=True):
    """The document of `omni compare --json` of two verify records."""

    schema: Literal["omni.verify-compare/1"] = COMPARE_SCHEMA
    a: str
    b: str
    changes: tuple[Change, ...]


def load_verify_record(path: Path) -> VerifyRecord:
    """Read a record. Raises `InputError`: unreadable, truncated, foreign, incomplete or edited."""
    return load_checked(path, VerifyRecord, _KIND)


def is_verify_record(path: Path) -> bool:
    """True if the file begins as records of `omni verify` do; False if it cannot be read."""
    try:
        with path.open("rb") as file:
            return SCHEMA.encode() in file.read(200)
    except OSError:
        return False


def exit_code(rows: tuple[Row, ...], *, strict: bool = False) -> ExitCode:
    """Return 5 for a difference (with `strict` also for a near tie), 3 if nothing was decided, else 0."""
    verdicts = {row.verdict for row in rows}
    if "different" in verdicts or (strict and "near tie" in verdicts):
        return ExitCode.OUTPUT_MISMATCH
    return ExitCode.OK if verdicts & {"equal", "near tie"} else ExitCode.INCONCLUSIVE


_RANK: dict[Verdict | None, int] = {"equal": 0, "near tie": 1, "not checked": 2, None: 2, "different": 3}


def get_changes(before: VerifyRecord, after: VerifyRecord) -> tuple[Change, ...]:
    """Return the rows whose verdicts differ, those that became worse first."""
    first, second = ({row.name: row for row in record.rows} for record in (before, after))
    changes = []
    for name in dict.fromkeys([*first, *second]):
        a, b = first.get(name), second.get(name)
        old, new = (None if row is None else row.verdict for row in (a, b))
        if old != new:
            is_worse = _RANK[new] > _RANK[old]
            changes.append(
                Change(name=name, before=old, after=new, is_worse=is_worse, why=None if b is None else b.why)
            )
    return tuple(sorted(changes, key=lambda change: not change.is_worse))
