"""The power of a measurement: the blocks that would decide, and the smallest regression that some blocks can show."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from omni_cli.errors import ExitCode, OmniError
from omni_cli.metrics import E2E
from omni_cli.record import Sample, Variant
from omni_cli.stats.blocks import block_medians, independent_units
from omni_cli.stats.estimate import MIN_BLOCKS, Estimate, get_centre
from omni_cli.stats.sequential import ALPHA

POWER = 0.8
MAX_BLOCKS = 100_000
"""Above this number of blocks, the effect lies on the bound, and no number is reported."""


class NoiseError(OmniError):
    """The machine is too noisy for the limit."""

    exit_code = ExitCode.INCONCLUSIVE


@dataclass(frozen=True)
class SelfCheck:
    """A against A: `ratio` should be 1, and `ci95` contain 1; `detectable` is the smallest regression (0.02 is 2 %)
    that `blocks` blocks show in 80 % of the cases."""

    ratio: float
    ci95: tuple[float, float]
    detectable: float
    blocks: int


def minimum_detectable(estimate: Estimate, blocks: int, planned: int, level: float = ALPHA) -> float:
    """Return the smallest slowdown (0.02 is 2 %) whose interval excludes 0 in 80 % of the runs of `planned` blocks.

    `estimate` is of the log ratio over `blocks` blocks. Infinite if these are too few.
    """
    error = estimate.standard_error * math.sqrt(blocks / planned)
    if error == 0:
        return 0.0
    reach = (_quantile(level, planned) + NormalDist().inv_cdf(POWER)) * error
    return math.expm1(reach) if reach < 100 else math.inf


def blocks_needed(estimate: Estimate, blocks: int, gap: float, level: float) -> int | None:
    """Estimate how many more blocks decide in 80 % of the cases, for a bound that is `gap` away (log units, above 0).

    None if the estimate lies on the bound, so that no sensible number would decide.
    """
    scale = estimate.standard_error * math.sqrt(blocks)
    if not math.isfinite(scale) or gap <= 0:
        return None
    needed = float(blocks)
    for _ in range(3):  # the quantile falls slightly with more blocks
        reach = _quantile(level, needed) + NormalDist().inv_cdf(POWER)
        needed = max((reach * scale / gap) ** 2, MIN_BLOCKS)
    return max(math.ceil(needed) - blocks, 1) if needed <= MAX_BLOCKS else None


def self_check(variant: Variant, metric: str = E2E, planned: int | None = None, level: float = ALPHA) -> SelfCheck:
    """Halve the runs of one variant in ABBA order within each pair of blocks and compare the halves.

    `planned` is the number of blocks of the real comparison; by default, that of the variant. Raises `NoiseError` for
    fewer than `MIN_BLOCKS` blocks of runs.
    """
    first, second = _halves(variant)
    blocks, a = block_medians(first, metric)
    _, b = block_medians(second, metric)
    if len(blocks) < MIN_BLOCKS:
        message = f"a self-check needs {MIN_BLOCKS} blocks of `{variant.name}`, there are {len(blocks)}"
        raise NoiseError(message, hint="raise `--num-iters` or `--time-budget`")
    units = independent_units(np.log(b) - np.log(a))
    estimate = get_centre(units.values, units.inflation)
    low, high = (math.exp(bound) for bound in estimate.interval(level))
    detectable = minimum_detectable(estimate, len(blocks), planned or len(blocks), level)
    return SelfCheck(math.exp(estimate.centre), (low, high), detectable, planned or len(blocks))


def refuse_limits_below(check: SelfCheck, limits: dict[str, float]) -> None:
    """Raise `NoiseError` for the first limit below the smallest detectable regression."""
    for metric, limit in limits.items():
        if limit < check.detectable:
            raise NoiseError(
                f"a limit of {limit:.2%} for `{metric}` cannot be judged here: {check.blocks} blocks would not show a"
                f" regression below {check.detectable:.1%} (A against A: {check.ratio - 1:+.1%})",
                hint="raise the limit or `--time-budget`, or use a quieter machine",
            )


def _quantile(level: float, blocks: float) -> float:
    """Estimate the half width of an interval over that many blocks in standard errors."""
    return NormalDist().inv_cdf(1 - level / 2) * (1 + 3 / blocks)


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
