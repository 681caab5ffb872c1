"""Device utilisation of a stage while it has a request, where the idle time goes, and a lower bound on its time."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from omni_cli.measure.profiling.operators import Operators
from omni_cli.measure.profiling.ranges import (
    ENGINE_STEP,
    Innermost,
    Interval,
    length,
    merge_intervals,
    step_indices,
    within,
    without,
)
from omni_cli.records.profile_record import Activity, LaunchGaps, Limit, Roofline, RooflinePart
from omni_cli.requests.outputs import StageTrace
from omni_cli.stage.recording import Linear, MachineRates, Recording, StageDescription, WorkPart

BETWEEN_OPERATORS = "between operators"
INSIDE_OPERATORS = "inside operators"
BETWEEN_STEPS = "between steps"

_MAX_PARTS = 12
_NOT_MATRICES = "norms, activations, embeddings and sampling: assumed fused into the neighbouring matrix products"


def windows(recording: Recording) -> list[Interval]:
    """Intervals during which the stage had a request."""
    return merge_intervals((request.began_ns, request.ended_ns) for request in recording.requests)


def step_windows(recording: Recording) -> list[Interval]:
    """Intervals during which the engine was working on a step."""
    return merge_intervals((item.began_ns, item.ended_ns) for item in recording.ranges if item.name == ENGINE_STEP)


def measure_activity(traced: Sequence[Operators], description: StageDescription) -> Activity:
    """Return medians over the traced iterations."""
    is_cpu = description.device == "cpu"
    iterations = [_cpu(operators, description.num_threads) if is_cpu else _cuda(operators) for operators in traced]
    names = dict.fromkeys(name for *_, idle in iterations for name, idle_ns in idle.items() if idle_ns)
    columns = zip(*(item[:3] for item in iterations), strict=True)
    window_s, capacity_s, busy_s = (statistics.median(column) / 1e9 for column in columns)
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
        idle_s={name: statistics.median(idle[name] for *_, idle in iterations) / 1e9 for name in names},
        waited_for_core_s=statistics.median(waited) / 1e9 if len(waited) == len(traced) else None,
    )


def _cpu(operators: Operators, num_threads: int) -> tuple[int, int, int, dict[str, int]]:
    """Return the nanoseconds of the window, its capacity, the busy time and the idle time by cause: CPU time of all
    threads; while one prepares an operator, the others are idle."""
    recording = operators.recording
    window_ns = length(windows(recording))
    steps = step_windows(recording)
    idle_ns = max(0, window_ns * num_threads - recording.cpu_ns)
    outside_ns = min(idle_ns, max(0, window_ns - length(steps)) * num_threads)
    idle_ns -= outside_ns
    gaps_ns = min(idle_ns, length(without(steps, operators.outermost_intervals())) * (num_threads - 1))
    idle = {BETWEEN_OPERATORS: gaps_ns, INSIDE_OPERATORS: idle_ns - gaps_ns, BETWEEN_STEPS: outside_ns}
    return window_ns, window_ns * num_threads, recording.cpu_ns, idle


def _cuda(operators: Operators) -> tuple[int, int, int, dict[str, int]]:
    """Return the same for a device that runs kernels or copies: in a step, it idles until the host launches work."""
    recording = operators.recording
    had_request, steps, busy = windows(recording), step_windows(recording), operators.device_intervals()
    idle = without(had_request, busy)
    gaps_ns = length(within(idle, steps))
    window_ns = length(had_request)
    parts = {BETWEEN_OPERATORS: gaps_ns, BETWEEN_STEPS: length(idle) - gaps_ns}
    return window_ns, window_ns, length(within(busy, had_request)), parts


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


def get_waits(traced: Sequence[Operators]) -> dict[str, float]:
    """Return medians over the traced iterations of the waits per step, by operator, the most first."""
    rows = [_count_waits(operators) for operators in traced]
    counts = {name: statistics.median(row.get(name, 0.0) for row in rows) for row in rows for name in row}
    return {name: counts[name] for name in sorted(counts, key=lambda name: -counts[name]) if counts[name]}


def _count_waits(operators: Operators) -> dict[str, float]:
    steps = [operators.recording.ranges[index] for index in step_indices(operators.recording)]
    holders = Innermost(steps).at(np.array([at_ns for at_ns, _ in operators.waits], np.int64))
    counts = Counter(name for (_, name), index in zip(operators.waits, holders, strict=True) if index >= 0)
    return {name: count / len(steps) for name, count in counts.items()}


def compute_roofline(
    description: StageDescription,
    rates: MachineRates,
    work: Recording,
    requests: Sequence[StageTrace],
    num_steps: int,
    measured_s: float,
) -> Roofline | None:
    """Return None if the work is unknown; `measured_s` is the duration of an unprofiled iteration.

    A diffusion stage's work was counted while it ran. An AR stage's follows from its matrices, the token counts of the
    requests and the `num_steps` of the engine, each of which reads every weight once.
    """
    counted = work.work or tuple(_ar_work(description, requests, num_steps))
    if not counted or measured_s <= 0:
        return None
    parts = _parts(counted, rates)
    flops, moved = sum(part.flops for part in parts), sum(part.moved_bytes for part in parts)
    bound_s = sum(part.bound_s for part in parts)
    unknown = [f"operator {name}: its work is unknown" for name in work.omitted]
    omitted = [_NOT_MATRICES, *unknown, *description.uncounted]
    return Roofline(
        flops=flops,
        moved_bytes=moved,
        flops_per_second=rates.flops_per_second,
        copied_bytes_per_second=rates.copied_bytes_per_second,
        dtype=rates.dtype,
        bound_s=bound_s,
        measured_s=measured_s,
        fraction=bound_s / measured_s,
        limit=_limit(flops, moved, rates),
        parts=tuple(parts[:_MAX_PARTS]),
        omitted=tuple(omitted),
    )


def _parts(work: Iterable[WorkPart], rates: MachineRates) -> list[RooflinePart]:
    """By kind of module, the highest bound first."""
    sums: dict[str, tuple[float, float]] = {}
    for part in work:
        flops, moved = sums.get(part.module, (0.0, 0.0))
        sums[part.module] = (flops + part.flops, moved + part.moved_bytes)
    parts = [
        RooflinePart(
            module=module,
            flops=flops,
            moved_bytes=moved,
            bound_s=max(flops / rates.flops_per_second, moved / rates.copied_bytes_per_second),
            limit=_limit(flops, moved, rates),
        )
        for module, (flops, moved) in sums.items()
    ]
    return sorted(parts, key=lambda part: -part.bound_s)


def _limit(flops: float, moved_bytes: float, rates: MachineRates) -> Limit:
    is_compute = flops / rates.flops_per_second >= moved_bytes / rates.copied_bytes_per_second
    return "compute" if is_compute else "memory"


def _ar_work(description: StageDescription, requests: Sequence[StageTrace], num_steps: int) -> Iterable[WorkPart]:
    prompts = [request.num_input_tokens or 0 for request in requests]
    output_tokens = [request.num_output_tokens or 0 for request in requests]
    # The last generated token is never read.
    lengths = [prompt + new - 1 for prompt, new in zip(prompts, output_tokens, strict=True)]
    for linear in description.linears:
        rows = sum(lengths) if linear.rows == "token" else sum(output_tokens)
        flops = 2.0 * linear.num_weights * linear.num_active * linear.num_rows * rows
        num_reads = linear.num_reads * _reads(linear, sum(prompts), sum(lengths) - sum(prompts), num_steps)
        yield WorkPart(linear.module, "linear", num_steps, flops, linear.weight_bytes * num_reads)
    # Each token attends to itself and all before it; their keys and values are read once per step.
    looked_at = sum(length * (length + 1) // 2 for length in lengths)
    read_rows = sum(
        prompt + sum(range(prompt + 1, length + 1)) for prompt, length in zip(prompts, lengths, strict=True)
    )
    for attention in description.attentions:
        flops = 4.0 * attention.num_heads * attention.head_size * looked_at
        row_bytes = 2 * attention.num_kv_heads * attention.head_size * attention.item_bytes
        yield WorkPart(attention.module, "attention", num_steps, flops, float(row_bytes * read_rows))


def _reads(linear: Linear, num_prompt_tokens: int, num_further_tokens: int, num_steps: int) -> float:
    """Count the reads of a matrix: one per step; of experts, those that a step's tokens choose if spread evenly."""
    if linear.num_experts == 1:
        return float(num_steps)
    num_further_steps = max(1, num_steps - 1)

    def count_chosen(num_tokens: float) -> float:
        others: float = (1 - linear.num_active / linear.num_experts) ** num_tokens
        return linear.num_experts * (1 - others)

    return count_chosen(num_prompt_tokens) + num_further_steps * count_chosen(num_further_tokens / num_further_steps)
