"""Two variants, metric by metric: the ratio of their medians, its interval, and the verdict; and their memory."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from omni_cli.core.errors import ExitCode, OmniError
from omni_cli.records.metrics import E2E, HOST_RSS, REPORTED_MEMORY, RESOLUTION, WORD_ERRORS, higher_is_better
from omni_cli.records.record import Sample, StoppingPlan, Variant, get_counters, mapping
from omni_cli.records.results import Bounds, BreakEven, Comparison, MemoryPeak, MemoryVerdict, SelfCheck, Verdict
from omni_cli.stats.blocks import (
    PairedBlocks,
    Units,
    are_interleaved,
    independent_units,
    lasted_s,
    pair_blocks,
    shared_metrics,
)
from omni_cli.stats.estimate import (
    MIN_BLOCKS,
    Estimate,
    even_halves,
    get_batches,
    get_centre,
    get_difference,
    of_counts,
)
from omni_cli.stats.sequential import ALPHA, blocks_needed, level_at, minimum_detectable

MARGIN = 0.02
"""Practical equivalence: ratios from 1/1.02 to 1.02 count as no difference.

Two loads of the same stage differ by up to about that much for as long as they live (standard deviation 0.7 %
each, measured over 15 loads, `benchmarks/gate_calibration.md`), so a smaller difference between two variants shows
no effect of their settings."""

RUN_NOISE = 0.12
"""Standard deviation between loads, as a share of what running adds to the peak of loading; measured: 0.119."""

LOAD_NOISE_BYTES = 2**20
"""Standard deviation of the peak while loading, per process; measured: 0.2 MiB."""

REACH = 3.0
"""Width of the interval to either side in standard deviations: one comparison of equal code in several hundred
exceeds it."""

_FARTHEST = 69.0  # about the logarithm of 1e30, up to which records have ratios

PREPARATION = ("capture_s", "compile_s")
"""Counters of seconds that are spent once, so that later runs are faster."""

PREPARED_MODES = frozenset({"execution", "cudagraph_mode"})
MODES = PREPARED_MODES | {"output_copy"}


class Doubt(Struct, frozen=True):
    """Logarithms of how much longer something that was not measured may have made the times of a and of b, without a
    limit if infinite; `reason` is the sentence on it."""

    a: float
    b: float
    reason: str

    def widen(self, worsening: tuple[float, float]) -> tuple[float, float]:
        """Return an interval of the log ratio of times, b to a, with what may be behind it."""
        return worsening[0] - self.b, worsening[1] + self.a


class Compared(Struct, frozen=True):
    """A comparison with what a gate needs beyond it.

    `level` is the two-sided error of the interval at this look; `estimate` is of the log ratio, None if there are no
    ratios. `block_s` are the seconds of a block; 0 if they are unknown.
    """

    result: Comparison
    level: float
    estimate: Estimate | None = None
    doubt: Doubt | None = None
    block_s: float = 0.0

    def seconds(self, blocks: int | UnsetType | None) -> float | None:
        """Return the time of so many more blocks; None without blocks, or if their time is unknown."""
        return blocks * self.block_s or None if blocks else None


def compare_variants(
    a: Variant,
    b: Variant,
    *,
    same_record: bool,
    sampling: Sequence[StoppingPlan] = (),
    metrics: Sequence[str] | None = None,
    margin: float = MARGIN,
    doubt: Doubt | None = None,
    block_s: float = 0.0,
) -> tuple[Compared, ...]:
    """Compare two variants in all metrics that both have, or in `metrics`.

    `same_record`: the blocks of both are the same blocks. `sampling` are the plans of the records, which determine the
    level of the intervals. Metrics that are 0 throughout were not measured and are left out. `doubt` counts for sides
    that did not run interleaved.
    """
    paired = a.samples == b.samples or (same_record and are_interleaved(a, b))
    names = shared_metrics(a, b) if metrics is None else metrics
    compared = (_compare(a, b, name, paired, sampling, margin) for name in names)
    found = tuple(_time(replace(item, block_s=block_s)) for item in compared if item is not None)
    if paired or doubt is None:
        return found
    # What slows a machine down changes no words.
    return tuple(item if item.result.metric in WORD_ERRORS else _withhold(item, doubt) for item in found)


def block_time(*variants: Variant) -> float:
    """Return the time that one more block of each variant takes."""
    blocks = (max(len({sample.block for sample in variant.samples}), 1) for variant in variants)
    spent = (sum(map(lasted_s, variant.samples)) for variant in variants)
    return sum(seconds / number for seconds, number in zip(spent, blocks, strict=True))


def _time(compared: Compared) -> Compared:
    seconds = compared.seconds(compared.result.blocks_needed)
    return replace(compared, result=replace(compared.result, seconds_needed=seconds or UNSET))


def get_verdict(interval: tuple[float, float], margin: float, *, higher: bool) -> Verdict:
    """Return the verdict on an interval of the log ratio.

    "Faster" and "slower" need the whole interval beyond the margin, "no difference" the whole interval within it.
    """
    edge = math.log1p(margin)
    low, high = interval
    if -edge <= low and high <= edge:
        return "no difference"
    if low > edge:
        return "faster" if higher else "slower"
    if high < -edge:
        return "slower" if higher else "faster"
    return "inconclusive"


def _compare(
    a: Variant, b: Variant, metric: str, interleaved: bool, sampling: Sequence[StoppingPlan], margin: float
) -> Compared | None:
    pairs = pair_blocks(a, b, metric, interleaved=interleaved)
    if pairs is None:
        return None
    blocks = len(pairs)
    # A figure of energy may be of several blocks, each of which could have been the last.
    ran = max(blocks, min(len({sample.block for sample in variant.samples}) for variant in (a, b)))
    level = min((level_at(plan.looks, ran, plan.alpha) for plan in sampling), default=StoppingPlan().alpha)
    empty = Comparison(
        metric=metric, a=a.name, b=b.name, margin=max(margin, pairs.margin), blocks=blocks, interleaved=interleaved,
        a_median=pairs.medians[0], b_median=pairs.medians[1], blocks_needed=None,
    )  # fmt: skip
    if not np.isfinite(pairs.a).all() or not np.isfinite(pairs.b).all() or blocks == 0:
        reason = "some values are 0" if blocks else pairs.missing
        return Compared(replace(empty, reason=reason), level)
    estimate = _estimate(pairs, sampling)
    if pairs.floor:
        estimate = of_counts(estimate, pairs.floor)
    centre = _centre_of_a(pairs, sampling)
    of_ratio = {"a_centre": math.exp(centre), "b_centre": math.exp(centre + estimate.centre)}
    result = _judge(replace(empty, **of_ratio), estimate, level)
    if pairs.num_blocks is not None and estimate.units < MIN_BLOCKS:
        reason = f"{len(pairs.a)} different sentences; a verdict needs {MIN_BLOCKS}"
        result = replace(result, reason=reason, blocks_needed=None)
    if pairs.is_lone_queue:
        reason = "requests that were all sent at once are one measurement, comparable with 10 or more others, as many"
        result = replace(result, reason=reason, blocks_needed=None)
    return Compared(result, level, estimate)


def _withhold(compared: Compared, doubt: Doubt) -> Compared:
    """Withhold a verdict that what slowed down one side explains as well."""
    compared, item = replace(compared, doubt=doubt), compared.result
    if item.verdict == "inconclusive" or compared.estimate is None:
        return compared
    sign = -1 if higher_is_better(item.metric) else 1
    low, high = sorted(sign * bound for bound in compared.estimate.interval(compared.level))
    if get_verdict(doubt.widen((low, high)), item.margin, higher=False) == item.verdict:
        return compared
    doubted = replace(item, verdict="inconclusive", reason=doubt.reason, blocks_needed=None)
    return replace(compared, result=doubted)


def _estimate(pairs: PairedBlocks, sampling: Sequence[StoppingPlan] = ()) -> Estimate:
    """Estimate the log ratio."""
    if pairs.is_paired:
        units = _get_units(pairs, pairs.b - pairs.a, sampling)
        return get_centre(units.values, units.inflation, pairs.trim)
    a, b = _get_units(pairs, pairs.a, sampling), _get_units(pairs, pairs.b, sampling, side=1)
    return get_difference(a.values, b.values, (a.inflation, b.inflation), pairs.trim)


def _get_units(pairs: PairedBlocks, values: np.ndarray, sampling: Sequence[StoppingPlan], side: int = 0) -> Units:
    """Batch the blocks; the halves of a record before and after it was loaded again count the same."""
    start = sampling[min(side, len(sampling) - 1)].reversed_from if sampling else UNSET
    if start is UNSET or pairs.blocks is None:
        return independent_units(values)
    even, factor = even_halves(values, pairs.blocks[side] >= start, pairs.trim)
    units = independent_units(even)
    return replace(units, inflation=factor * units.inflation)


def _centre_of_a(pairs: PairedBlocks, sampling: Sequence[StoppingPlan]) -> float:
    """Return the centre of a's logarithms: of the blocks whose differences count, where it is paired with b."""
    differences = pairs.b - pairs.a if pairs.is_paired else pairs.a
    units = _get_units(pairs, differences, sampling)
    cut = int(pairs.trim * len(units.values))
    kept = np.argsort(units.values, kind="stable")[cut : len(units.values) - cut]
    return float(get_batches(pairs.a, units.length)[kept].mean())


def _judge(empty: Comparison, estimate: Estimate, level: float) -> Comparison:
    blocks = empty.blocks
    assert empty.a_median is not None and empty.b_median is not None  # both have blocks
    least = RESOLUTION.get(empty.metric, 0.0)
    ratio_of_medians = max(empty.b_median, least) / max(empty.a_median, least)
    comparison = replace(empty, ratio=math.exp(estimate.centre), ratio_of_medians=ratio_of_medians)
    if estimate.units < MIN_BLOCKS:
        reason = f"{'1 block' if blocks == 1 else f'{blocks} blocks'}; a verdict needs {MIN_BLOCKS}"
        return replace(comparison, blocks_needed=MIN_BLOCKS - blocks, reason=reason)
    interval = estimate.interval(level)
    verdict = get_verdict(interval, empty.margin, higher=higher_is_better(empty.metric))
    needed: int | UnsetType | None = UNSET
    if verdict == "inconclusive":
        gap = abs(abs(estimate.centre) - math.log1p(empty.margin))
        needed = blocks_needed(estimate, blocks, gap, level)
    return replace(comparison, ci95=get_ratios(interval), verdict=verdict, blocks_needed=needed)


def get_ratios(interval: Bounds, farthest: float = _FARTHEST) -> Bounds | None:
    """Convert an interval of log ratios to ratios; None if it is not bounded, or too wide."""
    is_near = all(abs(bound) < farthest for bound in interval)
    return (math.exp(interval[0]), math.exp(interval[1])) if is_near else None


def memory_peaks(a: Variant, b: Variant, margin: float) -> tuple[MemoryPeak, ...]:
    """Compare the peaks that both variants measured: exact if an allocator counts them, else with an interval.

    Host RSS is the size of a process, and differs between two loads of the same code: the peak while loading hardly
    (0.2 MiB), the peak while running by an eighth of what running adds, depending on which threads' buffers exist at
    the same time (`benchmarks/equal_variants.py`). A variant is usually loaded once, so its samples do not show this
    noise.
    """
    peaks = []
    for metric in REPORTED_MEMORY:
        a_bytes, b_bytes = getattr(a.memory, metric), getattr(b.memory, metric)
        if not (a_bytes and b_bytes):
            continue
        verdict: MemoryVerdict = "same" if a_bytes == b_bytes else "more memory" if b_bytes > a_bytes else "less memory"
        bounds: Bounds | UnsetType = UNSET
        if metric == HOST_RSS:
            reach = REACH * math.hypot(_noise_bytes(a), _noise_bytes(b))
            bounds = (max(0.0, b_bytes - reach) / a_bytes, (b_bytes + reach) / a_bytes)
            verdict = _memory_verdict(bounds, margin)
        peaks.append(
            MemoryPeak(
                metric=metric, a=a.name, b=b.name, a_bytes=a_bytes, b_bytes=b_bytes, ratio=b_bytes / a_bytes,
                verdict=verdict, bounds=bounds,
            )
        )  # fmt: skip
    return tuple(peaks)


def _memory_verdict(bounds: Bounds, margin: float) -> MemoryVerdict:
    """Judge as for times: a verdict needs the whole interval beyond the margin, no difference all of it within."""
    low, high = bounds
    if low > 1 + margin:
        return "more memory"
    if high < 1 / (1 + margin):
        return "less memory"
    return "no difference" if 1 / (1 + margin) <= low and high <= 1 + margin else "inconclusive"


def _noise_bytes(variant: Variant) -> float:
    """Return the standard deviation of a variant's host RSS between loads, over all its processes."""
    stages = [stage for stage in variant.memory.stages.values() if isinstance(stage, Mapping)]
    added = [_peak(stage, "run") - _peak(stage, "load") for stage in stages if _peak(stage, "run")]
    if not added:
        # The share of loading is unknown, so all of it may be what running added.
        added = [float(variant.memory.peak_host_rss_bytes or 0)]
    return math.hypot(*(math.hypot(RUN_NOISE * max(0.0, more), LOAD_NOISE_BYTES) for more in added))


def _peak(stage: Mapping[str, object], phase: str) -> float:
    value = mapping(stage.get(phase)).get(HOST_RSS)
    return float(value) if isinstance(value, int | float) else 0.0


def break_even(a: Variant, b: Variant, comparison: Comparison, memory: Sequence[MemoryPeak]) -> BreakEven | None:
    """Return the price of a faster mode: seconds to prepare it, bytes to keep it, requests to earn it back.

    The mode is the variant that took longer to prepare; None without preparation and modes.
    """
    prepared_a, prepared_b = (_preparation_s(variant) for variant in (a, b))
    keys = a.settings.keys() | b.settings.keys()
    varied = {str(key).rpartition(".")[2] for key in keys if a.settings.get(key) != b.settings.get(key)}
    # Equal preparation has a time that varies.
    more_s = 0.0 if prepared_a and prepared_b and not varied & PREPARED_MODES else prepared_b - prepared_a
    if comparison.metric != E2E or comparison.ratio is None or not (more_s or varied & MODES):
        return None
    num_requests = next((sample.work["requests"] for sample in a.samples if sample.work.get("requests")), 1.0)
    per_request = (comparison.a_centre or comparison.a_median or 0.0) / num_requests
    gained_s = per_request * (1 - comparison.ratio)
    interval = None
    if comparison.ci95 is not None:
        interval = (per_request * (1 - comparison.ci95[1]), per_request * (1 - comparison.ci95[0]))
    peak = next(iter(memory), None)
    is_noise = peak is None or peak.verdict in ("inconclusive", "no difference")
    bytes_more = None if peak is None or is_noise else peak.b_bytes - peak.a_bytes
    mode, other = b.name, a.name
    if more_s < 0:
        mode, other, more_s, gained_s = other, mode, -more_s, -gained_s
        interval = None if interval is None else (-interval[1], -interval[0])
        bytes_more = None if bytes_more is None else -bytes_more
    is_faster = comparison.verdict_on(mode) == "faster"
    return BreakEven(
        mode=mode, other=other, gained_s=gained_s, ci95=interval, bytes_more=bytes_more, preparation_s=more_s,
        requests=math.ceil(more_s / gained_s) if is_faster else None,
    )  # fmt: skip


def _preparation_s(variant: Variant) -> float:
    return sum(float(counters.get(name, 0.0)) for counters in get_counters(variant).values() for name in PREPARATION)


class NoiseError(OmniError):
    """The machine is too noisy for the limit."""

    exit_code = ExitCode.INCONCLUSIVE


def self_check(variant: Variant) -> SelfCheck:
    """Halve the runs of one variant in ABBA order within each pair of blocks and compare the halves.

    Raises `NoiseError` for fewer than `MIN_BLOCKS` blocks of runs.
    """
    pairs = pair_blocks(*_halves(variant), E2E, interleaved=True)
    blocks = 0 if pairs is None else len(pairs)
    if pairs is None or blocks < MIN_BLOCKS:
        message = f"a self-check needs {MIN_BLOCKS} blocks of `{variant.name}`, there are {blocks}"
        raise NoiseError(message, hint="raise `--num-iters` or `--time-budget`")
    estimate = _estimate(pairs)
    low, high = (math.exp(bound) for bound in estimate.interval(ALPHA))
    return SelfCheck(math.exp(estimate.centre), (low, high), minimum_detectable(estimate, blocks, blocks), blocks)


def refuse_limits_below(check: SelfCheck, limits: dict[str, float]) -> None:
    """Raise `NoiseError` for the first limit below the smallest detectable regression."""
    for metric, limit in limits.items():
        if limit < check.detectable:
            raise NoiseError(
                f"a limit of {limit:.2%} for `{metric}` cannot be judged here: {check.blocks} blocks would not show a"
                f" regression below {check.detectable:.1%} (A against A: {check.ratio - 1:+.1%})",
                hint="raise the limit or `--time-budget`, or use a quieter machine",
            )


def _halves(variant: Variant) -> tuple[Variant, Variant]:
    """Split into runs 0 and 3 of every four, and runs 1 and 2, in the order in which they ran."""
    ordered = sorted(variant.samples, key=lambda sample: (sample.block, sample.position))
    halves: tuple[list[Sample], list[Sample]] = ([], [])
    # Four consecutive runs are one ABBA block of the check, in whichever blocks they ran.
    for number, sample in enumerate(ordered[: len(ordered) // 4 * 4]):
        renumbered = Sample(
            block=number // 4, position=number % 4, e2e_s=sample.e2e_s, metrics=sample.metrics, work=sample.work
        )
        halves[number % 4 in (1, 2)].append(renumbered)
    return Variant(name="A", samples=tuple(halves[0])), Variant(name="A'", samples=tuple(halves[1]))
