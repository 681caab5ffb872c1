"""What disturbed a measurement, by the utilisation that was recorded beside it: rules, and nothing else.

A disturbance is reported when it lasted: a single look that shows something is how machines are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from omni_cli.record import GpuUtilisation, Utilisation

OTHERS_CORES, OTHERS_SHARE = 0.5, 0.03
"""Other programs are a neighbour when they use more than half a core, or than 3 % of a machine with many."""

STOLEN_CORES = 0.1
HELD_BACK = 0.1
"""The share of a quota's periods in which it ran out."""

SLOW_CLOCK = 0.85
"""A clock below this share of its own fast ones is a slow one."""

MIN_SHARE = 0.1
"""Of the time: what lasted less long is not reported."""

MIN_LOOKS = 3
_FAST = 0.9  # the quantile of a clock that counts as its usual speed under load

Kind = Literal["neighbour", "stolen", "quota", "slow processor", "throttled device"]


@dataclass(frozen=True)
class Disturbance:
    """`share` is of the time; `amount` is what it came to while it lasted: cores, a share of periods, or of the clock.

    `device` and `causes` (`power_cap`, `thermal`, ...) are of a throttled device.
    """

    kind: Kind
    share: float
    amount: float
    device: str = ""
    causes: tuple[str, ...] = ()


def disturbances(found: Utilisation) -> tuple[Disturbance, ...]:
    """Everything that lasted for `MIN_SHARE` of the time, and for `MIN_LOOKS` looks."""
    others = [max(0.0, busy - own) for busy, own in zip(found.busy_cores, found.own_cores, strict=True)]
    fast = _quantile(found.cpu_mhz, _FAST)
    clock = [mhz / fast for mhz in found.cpu_mhz] if fast else []
    limit = max(OTHERS_CORES, OTHERS_SHARE * found.usable_cores)
    candidates = [
        _lasting("neighbour", others, [value > limit for value in others]),
        _lasting("stolen", found.stolen_cores, [value > STOLEN_CORES for value in found.stolen_cores]),
        _lasting("quota", found.held_back, [value > HELD_BACK for value in found.held_back]),
        _lasting("slow processor", clock, [value < SLOW_CLOCK for value in clock]),
        *(_throttled(gpu) for gpu in found.gpus),
    ]
    return tuple(item for item in candidates if item is not None)


def _throttled(gpu: GpuUtilisation) -> Disturbance | None:
    """Looks at an idle device do not count: its clock is low by itself."""
    fast = max(gpu.sm_clock_mhz, default=0.0)
    clock = [mhz / fast for mhz in gpu.sm_clock_mhz] if fast else [1.0] * len(gpu.throttled)
    active = [percent > 0 for percent in gpu.utilisation_percent]
    is_held = [bool(why) and busy for why, busy in zip(gpu.throttled, active, strict=True)]
    found = _lasting("throttled device", clock, is_held)
    if found is None:
        return None
    causes = dict.fromkeys(
        cause for why, held in zip(gpu.throttled, is_held, strict=True) if held for cause in why.split("+")
    )
    return Disturbance(found.kind, found.share, found.amount, f"GPU {gpu.index} ({gpu.name})", tuple(causes))


def _lasting(kind: Kind, amounts: Sequence[float], shows: Sequence[bool]) -> Disturbance | None:
    count = sum(shows)
    if count < MIN_LOOKS or count < MIN_SHARE * len(shows):
        return None
    shown = [amount for amount, is_shown in zip(amounts, shows, strict=True) if is_shown]
    return Disturbance(kind, count / len(shows), sum(shown) / len(shown))


def _quantile(values: Sequence[float], share: float) -> float:
    return sorted(values)[int(share * (len(values) - 1))] if values else 0.0
