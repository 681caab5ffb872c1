"""Device utilisation of a stage while it has a request, and where the idle time goes."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from omni_cli.profile_record import Activity, LaunchGaps
from omni_cli.profiling.operators import Operators
from omni_cli.profiling.ranges import ENGINE_STEP
from omni_cli.profiling.tracks import Interval, length, merged, within, without
from omni_cli.stage.recording import Recording, StageDescription

BETWEEN_OPERATORS = "between operators"
INSIDE_OPERATORS = "inside operators"
BETWEEN_STEPS = "between steps"


def windows(recording: Recording) -> list[Interval]:
    """Intervals during which the stage had a request."""
    return merged((request.began_ns, request.ended_ns) for request in recording.requests)


def step_windows(recording: Recording) -> list[Interval]:
    """Intervals during which the engine was working on a step."""
    return merged((item.began_ns, item.ended_ns) for item in recording.ranges if item.name == ENGINE_STEP)


def measure_activity(traced: Sequence[Operators], description: StageDescription) -> Activity:
    """Return medians over the traced iterations."""
    is_cpu = description.device == "cpu"
    iterations = [_cpu(operators, description.num_threads) if is_cpu else _cuda(operators) for operators in traced]
    names = list(dict.fromkeys(name for item in iterations for name in item["idle"]))
    window_s, capacity_s, busy_s = (
        statistics.median(item[key] for item in iterations) for key in ("window", "full", "busy")
    )
    busy = min(busy_s / capacity_s, 1.0) if capacity_s else 0.0
    waited = [o.recording.waited_ns for o in traced if o.recording.waited_ns is not None]
    return Activity(
        device=description.device,
        num_threads=description.num_threads,
        window_s=window_s,
        capacity_s=capacity_s,
        busy_s=busy_s,
        busy_fraction=busy,
        idle_fraction=1 - busy,
        idle_s={name: statistics.median(item["idle"].get(name, 0.0) for item in iterations) for name in names},
        waited_for_core_s=statistics.median(waited) / 1e9 if len(waited) == len(traced) else None,
    )


def _cpu(operators: Operators, num_threads: int) -> dict[str, Any]:
    """CPU time of all threads; while one prepares an operator, the others are idle."""
    recording = operators.recording
    window_ns = length(windows(recording))
    steps = step_windows(recording)
    idle_ns = max(0, window_ns * num_threads - recording.cpu_ns)
    outside_ns = min(idle_ns, max(0, window_ns - length(steps)) * num_threads)
    idle_ns -= outside_ns
    gaps_ns = min(idle_ns, length(without(steps, operators.outermost_intervals())) * (num_threads - 1))
    idle = {BETWEEN_OPERATORS: gaps_ns, INSIDE_OPERATORS: idle_ns - gaps_ns, BETWEEN_STEPS: outside_ns}
    return _seconds(window_ns, window_ns * num_threads, recording.cpu_ns, idle)


def _cuda(operators: Operators) -> dict[str, Any]:
    """Time with a kernel or copy running; idle time inside a step is spent waiting for the host to launch work."""
    recording = operators.recording
    had_request, steps, busy = windows(recording), step_windows(recording), operators.device_intervals()
    idle = without(had_request, busy)
    gaps_ns = length(within(idle, steps))
    window_ns = length(had_request)
    parts = {BETWEEN_OPERATORS: gaps_ns, BETWEEN_STEPS: length(idle) - gaps_ns}
    return _seconds(window_ns, window_ns, length(within(busy, had_request)), parts)


def _seconds(window_ns: int, full_ns: int, busy_ns: int, idle_ns: dict[str, int]) -> dict[str, Any]:
    return {
        "window": window_ns / 1e9,
        "full": full_ns / 1e9,
        "busy": busy_ns / 1e9,
        "idle": {name: ns / 1e9 for name, ns in idle_ns.items() if ns},
    }


def launch_gaps(traced: Sequence[Operators], description: StageDescription) -> LaunchGaps | None:
    """Return medians over the traced iterations; None if nothing ran."""
    rows = []
    for operators in traced:
        steps = step_windows(operators.recording)
        ran = operators.outermost_intervals() if description.device == "cpu" else operators.device_intervals()
        gaps = [end - begin for begin, end in without(steps, ran)]
        if gaps and steps:
            rows.append((len(gaps), sum(gaps), statistics.median(gaps), max(gaps), sum(gaps) / length(steps)))
    if not rows:
        return None
    count, total, middle, largest, fraction = (statistics.median(column) for column in zip(*rows, strict=True))
    return LaunchGaps(
        count=round(count), total_s=total / 1e9, median_s=middle / 1e9, largest_s=largest / 1e9,
        fraction_of_steps=fraction,
    )  # fmt: skip
