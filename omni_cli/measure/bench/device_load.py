"""The load of a device while one variant ran, from the sampler's readings; and whether it works at its power limit."""

from __future__ import annotations

import statistics
import time
from collections.abc import Awaitable, Callable

from omni_cli.measure.bench.schedule import TURN_S
from omni_cli.measure.bench.utilisation import GpuState, UtilisationSampler
from omni_cli.records.record import DeviceLoad

SETTLED_S = 1.0
"""A reading counts for a variant that has run for so long: a device's power is its mean over the last second."""

MAX_GAP_S = 0.1
"""Without work for longer than this, a device has to settle again."""

PROBE_NUMBER = 2**20
"""The number of the first iteration that shows a device's power, far from those that are measured."""

LIMIT_SHARE = 0.9
"""A device that takes this share of its power limit works at it: the mean of a second has gaps."""


class RunSpans:
    """The spans of time in which each variant ran without a pause."""

    def __init__(self, num_variants: int) -> None:
        self._spans: list[list[tuple[float, float]]] = [[] for _ in range(num_variants)]
        self._last: int | None = None

    def ran(self, variant: int, began_s: float, ended_s: float) -> None:
        """Note an iteration, by `time.monotonic`."""
        spans = self._spans[variant]
        if variant == self._last and began_s - spans[-1][1] < MAX_GAP_S:
            began_s = spans.pop()[0]
        spans.append((began_s, ended_s))
        self._last = variant

    def device_load(self, variant: int, sampler: UtilisationSampler) -> tuple[DeviceLoad, ...]:
        """Return the load of each device that was busy while the variant ran."""
        settled = [(began_s + SETTLED_S, ended_s) for began_s, ended_s in self._spans[variant]]
        return tuple(
            DeviceLoad(
                index=index,
                sm_clock_mhz=statistics.median(state.sm_clock_mhz for state in states),
                max_sm_clock_mhz=states[-1].max_sm_clock_mhz,
                power_w=round(statistics.median(state.power_w for state in states), 1),
                power_limit_w=states[-1].power_limit_w,
            )
            for index, states in sampler.device_readings(settled)
            if any(state.utilisation_percent for state in states)
        )


async def run_a_turn(sampler: UtilisationSampler, run: Callable[[int], Awaitable[float]]) -> tuple[float, bool]:
    """Run iterations of a variant, by their numbers, for the length of a turn. Return the median of their seconds, and
    True if the power of a device held its clock down, or was about to."""
    times: list[float] = []
    began_s = time.monotonic()
    while sum(times) < TURN_S:
        times.append(await run(PROBE_NUMBER + len(times)))
    readings = sampler.device_readings([(began_s, time.monotonic())])
    return statistics.median(times), any(_is_at_limit(state) for _, states in readings for state in states)


def _is_at_limit(state: GpuState) -> bool:
    limit_w = state.power_limit_w
    return "power_cap" in state.throttled or (limit_w is not None and state.power_w >= LIMIT_SHARE * limit_w)
