"""Verdicts in records: summaries, comparisons and gates, encoded and decoded by the same types.

`omni_cli.stats` computes them, `omni_cli.report` shows them. Fields with the default UNSET are omitted from the JSON if
they do not apply; all others are always written.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, UnsetType

from omni_cli.core.errors import ExitCode

COMPARE_SCHEMA: Final = "omni.compare/1"
HISTORY_SCHEMA: Final = "omni.history/1"

Verdict = Literal["faster", "slower", "no difference", "inconclusive"]
MemoryVerdict = Literal["more memory", "less memory", "same", "no difference", "inconclusive"]
GateVerdict = Literal["pass", "regression", "inconclusive", "not comparable", "output mismatch", "failed"]

_REVERSED_VERDICTS: dict[Verdict, Verdict] = {"faster": "slower", "slower": "faster"}

Bounds = tuple[float, float]
# The range that a page can draw on a logarithmic axis.
Ratio = Annotated[float, msgspec.Meta(ge=1e-30, le=1e30)]

EXIT_CODES: dict[GateVerdict, ExitCode] = {
    "pass": ExitCode.OK,
    "regression": ExitCode.REGRESSION,
    "inconclusive": ExitCode.INCONCLUSIVE,
    "not comparable": ExitCode.NOT_COMPARABLE,
    "output mismatch": ExitCode.OUTPUT_MISMATCH,
    "failed": ExitCode.RUN_FAILED,
}


class Difference(msgspec.Struct, frozen=True):
    """A field with different values; `absent` on a side that lacks it."""

    field: str
    a: Any = None
    b: Any = None


class Summary(msgspec.Struct, frozen=True, kw_only=True, rename={"minimum": "min", "maximum": "max"}):
    """All samples of one metric, in the metric's unit; None for numbers that the samples do not support.

    If samples are windows of requests to a server, `minimum`, `maximum` and percentiles are of single requests, and
    `requests` counts them. For `slo_attainment` and rates, `median` is the share or the rate of all windows together.
    """

    n: int
    median: float
    ci95: Bounds | None = None
    minimum: float | None = None
    maximum: float | None = None
    p90: float | None = None
    p99: float | None = None
    requests: int | UnsetType = UNSET
    p90_of_all: float | UnsetType | None = UNSET
    p99_of_all: float | UnsetType | None = UNSET

    def percentile(self, percentile: int) -> float | None:
        """The 90th or the 99th percentile; None with fewer than `samples_for` samples."""
        return {90: self.p90, 99: self.p99}[percentile]


class MeasureMean(msgspec.Struct, frozen=True):
    """The mean of a measure over `n` requests, each with its own prompt and seed; `ci95` is None for fewer than 8."""

    n: int
    mean: float
    ci95: Bounds | None = None


class Outputs(msgspec.Struct, frozen=True):
    """Agreement of the outputs of b with those of a; None if it was not recorded.

    The others exist for outputs that differ, by kind, and are the worst of all outputs: decibels and similarity of
    images and videos, decibels of audio, the share of equal token sequences and the first token that differs; and
    those of models with weights of their own (`MODEL_BASED_MEASURES`). With
    `reduced`, they are those of smaller copies, all that two records have. `means` are the means of the same measures
    over the requests that differ, of `compared` requests. `unmatched` requests have an image, a video or
    a sound of another size, length or rate, and `missing` ones another number of these: they have no measure.
    """

    identical: bool | None = None
    max_abs_diff: float | None = None
    psnr_db: float | UnsetType = UNSET
    ssim: float | UnsetType = UNSET
    worst_frame_psnr_db: float | UnsetType = UNSET
    worst_frame_ssim: float | UnsetType = UNSET
    log_mel_distance_db: float | UnsetType = UNSET
    snr_db: float | UnsetType = UNSET
    exact_match: float | UnsetType = UNSET
    first_difference: float | UnsetType = UNSET
    lpips: float | UnsetType = UNSET
    clip_score: float | UnsetType = UNSET
    wer: float | UnsetType = UNSET
    reduced: bool | UnsetType = UNSET
    compared: int | UnsetType = UNSET
    unmatched: int | UnsetType = UNSET
    missing: int | UnsetType = UNSET
    means: dict[str, MeasureMean] | UnsetType = UNSET

    @property
    def measures(self) -> dict[str, float]:
        """The measures of outputs that differ, by name."""
        values = {name: getattr(self, name) for name in MEASURES[1:]}
        return {name: value for name, value in values.items() if value is not UNSET}


MEASURES = Outputs.__struct_fields__[1 : Outputs.__struct_fields__.index("reduced")]
"""Names of the measures of outputs that differ, `max_abs_diff` first."""
MODEL_BASED_MEASURES = ("lpips", "clip_score", "wer")
"""Those of models, whose weights the user names."""


class BreakEven(msgspec.Struct, frozen=True, kw_only=True):
    """The gain and the cost of `mode` against `other`, the other variant of the pair.

    `gained_s` are seconds per request, below 0 if it is slower; `ci95` is their interval, if there is one. `bytes_more`
    is allocated device memory, or resident host memory without a device. `requests` is the number of them that earn
    `preparation_s` back; None if it is not faster, or not surely.
    """

    mode: str
    other: str
    gained_s: float
    ci95: Bounds | None = None
    bytes_more: int | None = None
    preparation_s: float
    requests: int | None = None


class Comparison(msgspec.Struct, frozen=True, kw_only=True, rename={"break_even": "payback"}):
    """One metric of variant `b` against variant `a`.

    `ratio` is b over a of the medians, block by block if the two were `interleaved`; `ci95` is its interval. Both are
    None if there are no ratios. `a_centre` and `b_centre` are the values that the ratio is of: centres of the same
    blocks, so that it follows from them, as it does not from medians of all runs. `blocks_needed` estimates how many
    more blocks would decide, in `seconds_needed`: absent if the verdict is decided, None if no number would. `work` are
    the intended differences in the amount of work, and `conditions` those of two servers that were unequal.
    `break_even`, in JSON `payback`, belongs to the end-to-end time.
    """

    metric: str
    a: str
    b: str
    a_median: float | None = None
    b_median: float | None = None
    a_centre: float | UnsetType = UNSET
    b_centre: float | UnsetType = UNSET
    ratio: Ratio | None = None
    ci95: tuple[Ratio, Ratio] | None = None
    ratio_of_medians: float | None = None
    verdict: Verdict = "inconclusive"
    margin: Annotated[float, msgspec.Meta(ge=0, le=100)] = 0.0
    blocks: int = 0
    interleaved: bool = False
    blocks_needed: int | UnsetType | None = UNSET
    seconds_needed: float | UnsetType = UNSET
    reason: str | UnsetType = UNSET
    work: tuple[Difference, ...] | UnsetType = UNSET
    conditions: tuple[Difference, ...] | UnsetType = UNSET
    outputs: Outputs = Outputs()
    break_even: BreakEven | UnsetType = UNSET

    def verdict_on(self, variant: str) -> Verdict:
        """Return the verdict on one of the two variants, against the other."""
        return self.verdict if variant == self.b else _REVERSED_VERDICTS.get(self.verdict, self.verdict)


class SelfCheck(msgspec.Struct, frozen=True):
    """A against A: `ratio` should be 1, and `ci95` contain 1; `detectable` is the smallest regression (0.02 is 2 %)
    that `blocks` blocks show in 80 % of the cases."""

    ratio: float
    ci95: Bounds
    detectable: float
    blocks: int


class MemoryPeak(msgspec.Struct, frozen=True, kw_only=True):
    """A peak that both variants measured, in bytes.

    `bounds` are those of the ratio, if two loads of the same code differ (host RSS); sizes that an allocator counts are
    exact and have none.
    """

    metric: str
    a: str
    b: str
    a_bytes: int
    b_bytes: int
    ratio: float = 1.0
    verdict: MemoryVerdict = "same"
    bounds: Bounds | UnsetType = UNSET


class GateMetric(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One limit. `change` and `ci95` are the worsening of b: 0.05 is 5 %, below 0 is better.

    `detectable` is the smallest regression that this number of blocks shows in 80 % of the cases. `place` is the
    position of a limit in a file.
    """

    metric: str
    a: str
    b: str
    verdict: GateVerdict
    limit: float
    change: float | None
    ci95: Bounds | None
    detectable: float | None = None
    p_value: float | None = None
    place: str | None = None
    reason: str | None = None
    blocks_needed: int | None = None
    seconds_needed: float | None = None


class GateQuality(msgspec.Struct, frozen=True, kw_only=True):
    """One limit on a measure of outputs, such as `psnr_db>=40`, which every output has to meet.

    `worst` is the value of the output that is furthest off, None if outputs are equal or have no such measure.
    `sure_share` is the share of prompts that meet the limit at least, with 95 % confidence: all `compared` ones did.
    """

    limit: str
    a: str
    b: str
    verdict: GateVerdict
    worst: float | None = None
    spread: MeasureMean | None = None
    compared: int | None = None
    sure_share: float | None = None


class GateResult(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict on all limits. `blocks_needed` estimates how many more blocks would decide every open limit, in
    `seconds_needed`."""

    verdict: GateVerdict
    max_regression: float | None = None
    max_abs_diff: float | None = None
    blocks_needed: int | None = None
    seconds_needed: float | UnsetType = UNSET
    metrics: tuple[GateMetric, ...] = ()
    quality: tuple[GateQuality, ...] | UnsetType = UNSET
    mismatches: tuple[Difference, ...] = ()
    reasons: tuple[str, ...] = ()

    @property
    def exit_code(self) -> ExitCode:
        return EXIT_CODES[self.verdict]


class RecordOrigin(msgspec.Struct, frozen=True):
    """The file of a record that was compared."""

    path: str
    created: str = ""


class CompareRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The document of `omni compare --json`.

    Records that may not be compared have no comparisons, because they could be mistaken for verdicts.
    """

    schema: Literal["omni.compare/1"] = COMPARE_SCHEMA
    a: RecordOrigin
    b: RecordOrigin
    comparable: bool
    mismatches: tuple[Difference, ...] = ()
    differences: tuple[Difference, ...] = ()
    unmatched: tuple[str, ...] = ()
    failures: tuple[str, ...] = ()
    comparisons: tuple[Comparison, ...] = ()
    memory: tuple[MemoryPeak, ...] = ()
    gate: GateResult | None = None


class HistoryPoint(msgspec.Struct, frozen=True, kw_only=True):
    """One record of a series: its file, and the median of the metric with its interval within the record."""

    record: str
    created: str
    commit: str | None = None
    median: Annotated[float, msgspec.Meta(ge=1e-30, le=1e30)]
    ci95: Bounds | None = None


class HistoryChange(msgspec.Struct, frozen=True, kw_only=True):
    """A step of a series before point `at`, counted from 0.

    It lies between the points `earliest - 1` and `latest`, and their commits: `good` still had the old level, `bad`
    has the new one. `found` is the point at which it was first seen, `ratio` the new level over the old. `is_open`: the
    level is still worse than before it. `same_commit`: no commit lies in between, so that the machine changed.
    """

    at: int
    earliest: int
    latest: int
    found: int
    ratio: Ratio
    ci95: tuple[Ratio, Ratio]
    verdict: Literal["faster", "slower"]
    good: str | None = None
    bad: str | None = None
    is_open: bool = False
    same_commit: bool = False


class HistorySeries(msgspec.Struct, frozen=True, kw_only=True):
    """A metric of a variant over all records of one machine, workload and amount of work.

    `differences` are those between its first record and the first of the variant's earlier series. `detectable` is the
    smallest worsening that would have been found within the newest points in 80 % of the cases; None if there are too
    few. `is_current`: it goes on, as the newest record of this variant and workload is its. `label` is the variant with
    what tells this series from its others.
    """

    variant: str
    metric: str
    points: tuple[HistoryPoint, ...]
    changes: tuple[HistoryChange, ...] = ()
    detectable: float | None = None
    differences: tuple[Difference, ...] = ()
    is_current: bool = True
    label: str = ""

    @property
    def name(self) -> str:
        """The variant, told from others of the same name."""
        return self.label or self.variant


class HistoryFailure(msgspec.Struct, frozen=True, kw_only=True):
    """A variant of a record that failed, in part or as a whole, and so is in no series.

    `is_current`: it belongs to the last night, and no comparable record since then was without failures.
    """

    record: str
    created: str
    variant: str
    reason: str
    commit: str | None = None
    is_current: bool = True


class HistoryRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The document of `omni history show --json` and `omni history check --json`, which has the verdict."""

    schema: Literal["omni.history/1"] = HISTORY_SCHEMA
    folder: str
    series: tuple[HistorySeries, ...]
    failures: tuple[HistoryFailure, ...] = ()
    verdict: GateVerdict | None = None
    reasons: tuple[str, ...] = ()
