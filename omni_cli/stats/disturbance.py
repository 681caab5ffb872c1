"""Disturbances of a measurement, from the utilisation recorded beside it and from the requests of a load test.

Fixed rules. A disturbance of the machine is reported only if it lasted: a single reading proves nothing.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from omni_cli.metrics import E2E
from omni_cli.record import GpuUtilisation, Record, Utilisation, Variant, get_values, is_of_server, request_values

OTHERS_CORES, OTHERS_SHARE = 0.5, 0.03
"""Other programs are reported from half a core on; on machines with many cores, from 3 % of them."""

STOLEN_CORES = 0.1
HELD_BACK = 0.1
"""Minimum share of a quota's periods in which it ran out."""

SLOW_CLOCK = 0.85
"""A clock below this share of its usual speed is slow."""

MIN_SHARE = 0.1
"""Minimum share of the time; shorter disturbances are not reported."""

MIN_READINGS = 3
_FAST = 0.9  # the quantile of a clock that is taken as its usual speed under load

LATE_S = 0.005
"""A request that is sent this much later than it was due was delayed by the client."""

_LATE_SHARE = 0.01
_BURST_S = 1e-5
_WHOLE = 0.98  # of the tokens that were asked for
_BUSY_CORES, _BUSY_SHARE = 0.8, 0.1

Kind = Literal[
    "late client", "no usage", "bursts", "short answers", "busy client", "neighbour", "stolen", "quota",
    "slow processor", "throttled device",
]  # fmt: skip


@dataclass(frozen=True)
class Disturbance:
    """`share` is of the time; `amount` is the size while it lasted: cores, a share of periods, or of the clock.

    `causes` (`power_cap`, `thermal`, ...) belong to a throttled `device`. For a client that sent requests of `variant`
    late, `share` is of the requests and `amount` the longest delay in seconds; for short answers, the mean of tokens.
    """

    kind: Kind
    share: float
    amount: float
    device: str = ""
    causes: tuple[str, ...] = ()
    variant: str = ""


def disturbances(record: Record) -> tuple[Disturbance, ...]:
    """Return the disturbances by the client of a load test, then those of the machine."""
    utilisation = record.utilisation
    of_machine = () if utilisation is None else machine_disturbances(utilisation)
    if not is_of_server(record):
        return of_machine
    of_client = [item for variant in record.variants for item in _client_disturbances(record, variant)]
    busy = [cores > _BUSY_CORES for cores in utilisation.own_cores] if utilisation is not None else []
    if busy and statistics.fmean(busy) > _BUSY_SHARE:
        of_client.append(Disturbance("busy client", statistics.fmean(busy), _BUSY_CORES))
    # A server on the same machine is not a disturbance.
    return (*of_client, *(item for item in of_machine if item.kind != "neighbour"))


def is_slowed(record: Record) -> bool:
    """True if something that is not measured made the times of a record longer."""
    return any(item.kind not in ("no usage", "bursts", "short answers") for item in disturbances(record))


def _client_disturbances(record: Record, variant: Variant) -> list[Disturbance]:
    disturbances = []
    lags = request_values(variant, "lag_s")
    late = statistics.fmean(lag >= LATE_S for lag in lags) if lags else 0.0
    # A client cannot send all requests at the same time.
    if late > _LATE_SHARE and "inf" not in (_rate(record.workload.get("load")), _rate(variant.settings)):
        disturbances.append(Disturbance("late client", late, max(lags), variant=variant.name))
    if record.workload.get("endpoint") == "chat" and _lacks_usage(variant):
        disturbances.append(Disturbance("no usage", 1.0, 0.0, variant=variant.name))
    asked, tokens = record.workload.get("output_len"), request_values(variant, "output_tokens")
    if isinstance(asked, int) and tokens and statistics.fmean(tokens) < _WHOLE * asked:
        short = statistics.fmean(value < asked for value in tokens)
        disturbances.append(Disturbance("short answers", short, statistics.fmean(tokens), variant=variant.name))
    gaps = [value for _, value in get_values(variant, "itl_s")]
    if gaps and statistics.median(gaps) < _BURST_S:
        disturbances.append(Disturbance("bursts", 1.0, statistics.median(gaps), variant=variant.name))
    return disturbances


def _rate(load: object) -> object:
    return load.get("request_rate") if isinstance(load, Mapping) else None


def _lacks_usage(variant: Variant) -> bool:
    return bool(variant.samples) and bool(request_values(variant, E2E)) and not request_values(variant, "output_tokens")


def machine_disturbances(utilisation: Utilisation) -> tuple[Disturbance, ...]:
    """Return the disturbances that lasted for `MIN_SHARE` of the time and for `MIN_READINGS` readings."""
    others = [max(0.0, busy - own) for busy, own in zip(utilisation.busy_cores, utilisation.own_cores, strict=True)]
    fast = _quantile(utilisation.cpu_mhz, _FAST)
    clock = [mhz / fast for mhz in utilisation.cpu_mhz] if fast else []
    limit = max(OTHERS_CORES, OTHERS_SHARE * utilisation.usable_cores)
    candidates = [
        _lasting("neighbour", others, [value > limit for value in others]),
        _lasting("stolen", utilisation.stolen_cores, [value > STOLEN_CORES for value in utilisation.stolen_cores]),
        _lasting("quota", utilisation.held_back, [value > HELD_BACK for value in utilisation.held_back]),
        _lasting("slow processor", clock, [value < SLOW_CLOCK for value in clock]),
        *(_throttled(gpu) for gpu in utilisation.gpus),
    ]
    return tuple(item for item in candidates if item is not None)


def _throttled(gpu: GpuUtilisation) -> Disturbance | None:
    """Return throttling while the device was busy; the clock of an idle device is always low."""
    fast = max(gpu.sm_clock_mhz, default=0.0)
    clock = [mhz / fast for mhz in gpu.sm_clock_mhz] if fast else [1.0] * len(gpu.throttled)
    active = [percent > 0 for percent in gpu.utilisation_percent]
    is_held = [bool(why) and busy for why, busy in zip(gpu.throttled, active, strict=True)]
    lasting = _lasting("throttled device", clock, is_held)
    if lasting is None:
        return None
    causes = dict.fromkeys(
        cause for why, held in zip(gpu.throttled, is_held, strict=True) if held for cause in why.split("+")
    )
    return Disturbance(lasting.kind, lasting.share, lasting.amount, f"GPU {gpu.index} ({gpu.name})", tuple(causes))


def _lasting(kind: Kind, amounts: Sequence[float], shows: Sequence[bool]) -> Disturbance | None:
    count = sum(shows)
    if count < MIN_READINGS or count < MIN_SHARE * len(shows):
        return None
    shown = [amount for amount, is_shown in zip(amounts, shows, strict=True) if is_shown]
    return Disturbance(kind, count / len(shows), sum(shown) / len(shown))


def _quantile(values: Sequence[float], share: float) -> float:
    return sorted(values)[int(share * (len(values) - 1))] if values else 0.0
