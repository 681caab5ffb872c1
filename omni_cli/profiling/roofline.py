"""Lower bound on the time of a stage's work on this machine."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from omni_cli.outputs import StageTrace
from omni_cli.profile_record import Limit, Roofline, RooflinePart
from omni_cli.stage.recording import Linear, MachineRates, Recording, StageDescription, WorkPart

_MAX_PARTS = 12
_NOT_MATRICES = "norms, activations, embeddings and sampling: assumed fused into the neighbouring matrix products"


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

    def chosen(num_tokens: float) -> float:
        others: float = (1 - linear.num_active / linear.num_experts) ** num_tokens
        return linear.num_experts * (1 - others)

    return chosen(num_prompt_tokens) + num_further_steps * chosen(num_further_tokens / num_further_steps)
