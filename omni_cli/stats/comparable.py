"""The conditions under which two measurements may be compared: machine, versions, workload, settings, work."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping

from omni_cli.record import Record, Variant
from omni_cli.results import Difference

# The subject of the measurement (omni's version and commit), and conditions that cannot be chosen (load, clocks).
EXEMPT = frozenset({"code", "conditions"})
_MAX_LISTED = 4
_SAME_WORK = 0.02

# Settings of variants that are no profile keys: the commit of `--against`, and the load on a server.
_NOT_OF_PROFILE = frozenset({"code", "url", "concurrency", "request_rate"})
# Keys of a profile that affect how the work is done, but not its amount.
_WORK_NEUTRAL = frozenset({
    "dtype", "backend", "execution", "cudagraph_mode", "output_copy", "batching", "devices", "max_num_seqs",
    "max_num_batched_tokens", "gpu_memory_utilization", "kv_cache_memory_bytes", "block_size", "enable_prefix_caching",
    "enable_chunked_prefill", "tensor_parallel_size", "pipeline_parallel_size", "distributed_executor_backend",
    "max_payload_bytes", "max_payload_tensor_bytes", "max_payload_entries", "max_payload_items", "load_timeout_s",
    "step_timeout_s", "attention_backend", "ulysses_degree", "ring_degree", "method", "threshold", "quantization",
    "channels_last",
})  # fmt: skip


ABSENT = "absent"


def record_mismatches(a: Record, b: Record) -> tuple[Difference, ...]:
    """Return the fields of environment and workload that rule out a comparison."""
    differences = [
        *_differences("environment", _without(a.environment, EXEMPT), _without(b.environment, EXEMPT)),
        *_differences("workload", _without(a.workload, {"fingerprint"}), _without(b.workload, {"fingerprint"})),
    ]
    if not any(item.field.startswith("workload") for item in differences):
        # The fingerprint differs if any field does, so it is reported only if no field explains it.
        fingerprints = a.workload.get("fingerprint", ABSENT), b.workload.get("fingerprint", ABSENT)
        if fingerprints[0] != fingerprints[1]:
            differences.append(Difference("workload.fingerprint", *fingerprints))
    return tuple(differences)


def code_differences(a: Record, b: Record) -> tuple[Difference, ...]:
    """Return intended differences: version and commit of the measured code."""
    return tuple(_differences("code", a.environment.get("code", {}), b.environment.get("code", {})))


def settings_differences(a: Variant, b: Variant) -> tuple[Difference, ...]:
    return tuple(_differences("settings", a.settings, b.settings))


def work_differences(a: Variant, b: Variant) -> tuple[Difference, ...]:
    """Return the kinds of work of which the two did different amounts per run.

    Runs of one variant may differ from each other (other prompts), but both variants must have had the same prompts.
    Only runs of equal numbers are compared if both have such; if a run has no number, the means are.
    """
    numbers = {sample.number for sample in a.samples} & {sample.number for sample in b.samples}
    if any(sample.number is None for sample in (*a.samples, *b.samples)):
        return mean_work_differences(a, b)
    numbers = numbers or {sample.number for sample in (*a.samples, *b.samples)}
    amounts_a, amounts_b = _amounts(a, numbers), _amounts(b, numbers)
    differences = []
    for name in sorted(amounts_a.keys() | amounts_b.keys()):
        left, right = amounts_a.get(name, ()), amounts_b.get(name, ())
        if len(left) != len(right) or not all(map(_close, left, right)):
            differences.append(Difference(f"work.{name}", _listed(left), _listed(right)))
    return tuple(differences)


def mean_work_differences(a: Variant, b: Variant) -> tuple[Difference, ...]:
    """Return the kinds of work whose mean amount per run, or per request of a run, differs by more than 2 %.

    A smaller difference does not explain a step that counts, and where outputs are sampled, no two records agree. How
    many requests a run has is a setting, or what fitted into its time.
    """
    differences = []
    names = {name for variant in (a, b) for sample in variant.samples for name in sample.work}
    for name in sorted(names - {"requests"}):
        left, right = (_mean(variant, name) for variant in (a, b))
        if left is None or right is None or not math.isclose(left, right, rel_tol=_SAME_WORK):
            differences.append(Difference(f"work.{name}", _listed((left,)), _listed((right,))))
    return tuple(differences)


def changes_work(settings: Collection[Difference]) -> bool:
    """True if a varied setting of the profile changes the amount of work, so that a difference in work is intended.

    Settings of how the work is done do not change it, and neither does an environment variable or another commit: a
    difference in work between such variants is an error.
    """
    keys = [item.field.partition(".")[2] for item in settings]
    return any(
        not key.startswith("env.") and key not in _NOT_OF_PROFILE and key.rpartition(".")[2] not in _WORK_NEUTRAL
        for key in keys
    )


def split_allowed(
    differences: Iterable[Difference], allowed: Iterable[str]
) -> tuple[tuple[Difference, ...], tuple[Difference, ...]]:
    """Return (mismatches, allowed differences); `allowed` names fields, or whole parts of a record."""
    prefixes = tuple(allowed)
    kept: list[Difference] = []
    excused: list[Difference] = []
    for item in differences:
        is_allowed = any(item.field == name or item.field.startswith(f"{name}.") for name in prefixes)
        (excused if is_allowed else kept).append(item)
    return tuple(kept), tuple(excused)


def _differences(prefix: str, a: object, b: object) -> Iterable[Difference]:
    """Yield the leaves in which two JSON values differ, with their dotted paths."""
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        for key in dict.fromkeys([*a, *b]):
            yield from _differences(f"{prefix}.{key}", a.get(key, ABSENT), b.get(key, ABSENT))
    elif isinstance(a, bool) != isinstance(b, bool) or a != b:
        yield Difference(prefix, a, b)


def _without(part: Mapping[str, object], names: Iterable[str]) -> dict[str, object]:
    left_out = set(names)
    return {key: value for key, value in part.items() if key not in left_out}


def _amounts(variant: Variant, numbers: Collection[int | None]) -> dict[str, tuple[float, ...]]:
    amounts: dict[str, set[float]] = {}
    for sample in (item for item in variant.samples if item.number in numbers):
        for name, value in sample.work.items():
            amounts.setdefault(name, set()).add(value)
    return {name: tuple(sorted(values)) for name, values in amounts.items()}


def _mean(variant: Variant, name: str) -> float | None:
    amounts = [sample.work[name] for sample in variant.samples if name in sample.work]
    return sum(amounts) / sum(sample.work.get("requests", 1.0) for sample in variant.samples) if amounts else None


def _close(a: float, b: float) -> bool:
    return math.isclose(a, b, rel_tol=1e-9)


def _listed(amounts: tuple[float | None, ...]) -> str:
    if not amounts or amounts == (None,):
        return ABSENT
    shown = [f"{amount:g}" for amount in amounts[:_MAX_LISTED]]
    return ", ".join(shown) + (", ..." if len(amounts) > _MAX_LISTED else "")
