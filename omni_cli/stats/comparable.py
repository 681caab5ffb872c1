"""The conditions under which two measurements may be compared: machine, versions, workload, settings, work.

Also the disturbances of a measurement, from the utilisation recorded beside it and from the requests of a load test.
Their rules are fixed. One of the machine is reported only if it lasted: a single reading proves nothing.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Literal

from msgspec import UNSET, Struct
from msgspec.structs import replace

from omni_cli.records.metrics import E2E, HEARD, STUTTER, WORDS
from omni_cli.records.record import GpuUtilisation, Record, Utilisation, Variant, is_of_server, mapping
from omni_cli.records.results import Difference
from omni_cli.stats.blocks import get_values, request_values
from omni_cli.stats.compare import MARGIN, Doubt
from omni_cli.stats.estimate import MIN_BLOCKS

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
_FULL_CLOCK = 0.98  # of the tokens that were asked for
_BUSY_CORES, _BUSY_SHARE = 0.8, 0.1

Kind = Literal[
    "late client", "no usage", "bursts", "short answers", "assumed rate", "busy client", "neighbour", "stolen", "quota",
    "slow processor", "throttled device", "repeated prompts", "seen prompts", "warming up", "estimated tpot",
    "prompt tokens", "answer tokens", "bundled", "parallel limit", "cut window", "silent", "power limit",
    "unequal clocks", "one order",
]  # fmt: skip
# The measured work itself, or what no time depends on.
_NOT_SLOWER = (
    "no usage", "bursts", "short answers", "assumed rate", "cut window", "silent", "power limit", "unequal clocks",
    "one order",
)  # fmt: skip
_OWN_LIMIT = "power_cap"


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
    # Servers of which somebody heard the words may leave some out, or take longer over them.
    spoken = {WORDS, "audio_s"} if WORDS in amounts_a.keys() & amounts_b.keys() else set[str]()
    for name in sorted((amounts_a.keys() | amounts_b.keys()) - spoken):
        left, right = amounts_a.get(name, ()), amounts_b.get(name, ())
        if len(left) != len(right) or not all(
            math.isclose(*pair, rel_tol=1e-9) for pair in zip(left, right, strict=True)
        ):
            differences.append(Difference(f"work.{name}", _list_amounts(left), _list_amounts(right)))
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
            differences.append(Difference(f"work.{name}", _list_amounts((left,)), _list_amounts((right,))))
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


def _list_amounts(amounts: tuple[float | None, ...]) -> str:
    if not amounts or amounts == (None,):
        return ABSENT
    shown = [f"{amount:g}" for amount in amounts[:_MAX_LISTED]]
    return ", ".join(shown) + (", ..." if len(amounts) > _MAX_LISTED else "")


class Disturbance(Struct, frozen=True):
    """`share` is of the time; `amount` is the size while it lasted: cores, a share of periods, or of the clock.

    `causes` (`power_cap`, `thermal`, ...) belong to a throttled `device`. For a client that sent requests of `variant`
    late, `share` is of the requests and `amount` the longest delay in seconds; for short answers, the mean of tokens.
    The kinds of `referee` say there what these are; `other` is the server that `variant` is compared with. For
    `unequal clocks`, `amount` and `share` are those of `variant` and `other` in MHz. A clock's share `is_of_record` if
    the highest one of the device is not known, and the record's own has to do.
    """

    kind: Kind
    share: float
    amount: float
    device: str = ""
    causes: tuple[str, ...] = ()
    variant: str = ""
    other: str = ""
    is_of_record: bool = False


def disturbances(record: Record) -> tuple[Disturbance, ...]:
    """Return the disturbances by the client of a load test, then those of the machine."""
    utilisation = record.utilisation
    of_machine = () if utilisation is None else machine_disturbances(utilisation)
    first, *others = record.variants
    of_machine += tuple(
        Disturbance("unequal clocks", b, a, f"GPU {device}", variant=first.name, other=other.name)
        for other in others
        for device, (a, b) in _unequal_clocks((record, record), (first, other)).items()
    )
    if mapping(record.environment.get("conditions")).get("loading_orders") == 1:
        has_verdict = len({sample.block for sample in first.samples}) >= MIN_BLOCKS
        of_machine += (Disturbance("one order", 1.0, 1, variant=first.name),) * has_verdict
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
    return any(item.kind not in _NOT_SLOWER for item in disturbances(record))


def find_doubt(
    records: tuple[Record, Record], variants: tuple[Variant, Variant], margin: float = MARGIN
) -> Doubt | None:
    """Return what may have slowed down one of two variants of two records, None if nothing did.

    A device's clock accounts for its own ratio at most. Clocks that differ by less than the margin explain nothing that
    counts.
    """
    slowed_a, slowed_b = (math.inf if is_slowed(record) else 0.0 for record in records)
    names = " and ".join(name for name, amount in (("A", slowed_a), ("B", slowed_b)) if amount)
    reasons = [f"{names} ran on a disturbed machine, and not interleaved with the other"] if names else []
    for device, (a, b) in _unequal_clocks(records, variants, margin).items():
        slowed_a, slowed_b = max(slowed_a, math.log(b / a)), max(slowed_b, math.log(a / b))
        reasons.append(f"GPU {device} ran at {a:,.0f} MHz in A and at {b:,.0f} MHz in B, which may be the reason")
    return Doubt(slowed_a, slowed_b, "; ".join(reasons)) if reasons else None


def _unequal_clocks(
    records: tuple[Record, Record], variants: tuple[Variant, Variant], margin: float = MARGIN
) -> dict[int, tuple[float, float]]:
    """Return the clocks under load of each device on which they differ: the variants' own, else those of the record."""
    a, b = (
        {load.index: load.sm_clock_mhz for load in variant.device_load} or _clocks(record)
        for record, variant in zip(records, variants, strict=True)
    )
    pairs = {device: (a[device], b[device]) for device in sorted(a.keys() & b.keys())}
    return {device: pair for device, pair in pairs.items() if min(pair) > 0 and max(pair) / min(pair) > 1 + margin}


def _clocks(record: Record) -> dict[int, float]:
    """Return the median clock of each device that was busy for long enough; an idle device's is always low."""
    clocks = {}
    for gpu in () if record.utilisation is None else record.utilisation.gpus:
        shows = [percent > 0 for percent in gpu.utilisation_percent]
        if _lasts(shows):
            clocks[gpu.index] = statistics.median(itertools.compress(gpu.sm_clock_mhz, shows))
    return clocks


def _client_disturbances(record: Record, variant: Variant) -> list[Disturbance]:
    disturbances = []
    lags, answers, tokens = (request_values(variant, name) for name in ("lag_s", E2E, "output_tokens"))
    late = statistics.fmean(lag >= LATE_S for lag in lags) if lags else 0.0
    # A client cannot send all requests at the same time.
    loads = [load for load in (record.workload.get("load"), variant.settings) if isinstance(load, Mapping)]
    if late > _LATE_SHARE and "inf" not in [load.get("request_rate") for load in loads]:
        disturbances.append(Disturbance("late client", late, max(lags), variant=variant.name))
    if record.workload.get("endpoint") == "chat" and answers and not tokens:
        disturbances.append(Disturbance("no usage", 1.0, 0.0, variant=variant.name))
    lengths = _asked_and_received(variant, record.workload.get("output_len"))
    if lengths and sum(got for _, got in lengths) < _FULL_CLOCK * sum(asked for asked, _ in lengths):
        short = statistics.fmean(got < asked for asked, got in lengths)
        received = statistics.fmean(got for _, got in lengths)
        disturbances.append(Disturbance("short answers", short, received, variant=variant.name))
    if answers and (assumed := len(request_values(variant, "is_rate_assumed"))):
        disturbances.append(Disturbance("assumed rate", assumed / len(answers), 0.0, variant=variant.name))
    for waits in (sample.unanswered_s for sample in variant.samples if sample.unanswered_s is not UNSET):
        disturbances.append(Disturbance("cut window", len(waits), max(waits, default=0.0), variant=variant.name))
    # Those of which the listener's metrics are known.
    heard, listened = (len(request_values(variant, name)) for name in (HEARD, STUTTER))
    if heard < listened:
        disturbances.append(Disturbance("silent", listened - heard, listened, variant=variant.name))
    gaps = [value for _, value in get_values(variant, "itl_s")]
    if gaps and statistics.median(gaps) < _BURST_S:
        disturbances.append(Disturbance("bursts", 1.0, statistics.median(gaps), variant=variant.name))
    return disturbances


def _asked_and_received(variant: Variant, output_len: object) -> list[tuple[float, float]]:
    """Return the output tokens of each answer that a request asked for, and those that came. Earlier records do not
    have the former of each request; it is `output_len`."""
    default = output_len if isinstance(output_len, int) else None
    pairs: list[tuple[float | None, float | None]] = []
    for sample in variant.samples:
        received = sample.requests.get("output_tokens", ())
        pairs += zip(sample.requests.get("asked_output_len") or (default,) * len(received), received, strict=False)
    return [(asked, got) for asked, got in pairs if asked is not None and got is not None]


def machine_disturbances(utilisation: Utilisation) -> tuple[Disturbance, ...]:
    """Return the disturbances that lasted for `MIN_SHARE` of the time and for `MIN_READINGS` readings."""
    others = [max(0.0, busy - own) for busy, own in zip(utilisation.busy_cores, utilisation.own_cores, strict=True)]
    ranked = sorted(utilisation.cpu_mhz)
    fast = ranked[int(_FAST * (len(ranked) - 1))] if ranked else 0.0
    clock = [mhz / fast for mhz in utilisation.cpu_mhz] if fast else []
    limit = max(OTHERS_CORES, OTHERS_SHARE * utilisation.usable_cores)
    candidates = [
        _lasting("neighbour", others, [value > limit for value in others]),
        _lasting("stolen", utilisation.stolen_cores, [value > STOLEN_CORES for value in utilisation.stolen_cores]),
        _lasting("quota", utilisation.held_back, [value > HELD_BACK for value in utilisation.held_back]),
        _lasting("slow processor", clock, [value < SLOW_CLOCK for value in clock]),
        *(_find_throttling(gpu) for gpu in utilisation.gpus),
    ]
    return tuple(item for item in candidates if item is not None)


def _find_throttling(gpu: GpuUtilisation) -> Disturbance | None:
    """Return throttling while the device was busy; the clock of an idle device is always low.

    A device at its power limit works as fast as it can for this work, so that only another cause is trouble.
    """
    fast = gpu.max_sm_clock_mhz or max(gpu.sm_clock_mhz, default=0.0)
    clock = [mhz / fast for mhz in gpu.sm_clock_mhz] if fast else [1.0] * len(gpu.throttled)
    busy = [percent > 0 for percent in gpu.utilisation_percent]
    held = [why.split("+") if why and works else [] for why, works in zip(gpu.throttled, busy, strict=True)]
    is_trouble = _lasts([any(cause != _OWN_LIMIT for cause in causes) for causes in held])
    if not is_trouble:
        held = [[cause for cause in causes if cause == _OWN_LIMIT] for causes in held]
    lasting = _lasting("throttled device" if is_trouble else "power limit", clock, [bool(causes) for causes in held])
    return lasting and replace(
        lasting,
        device=f"GPU {gpu.index} ({gpu.name})",
        causes=tuple(dict.fromkeys(itertools.chain.from_iterable(held))),
        is_of_record=not gpu.max_sm_clock_mhz,
    )


def _lasting(kind: Kind, amounts: Sequence[float], shows: Sequence[bool]) -> Disturbance | None:
    if not _lasts(shows):
        return None
    shown = list(itertools.compress(amounts, shows))
    return Disturbance(kind, len(shown) / len(shows), sum(shown) / len(shown))


def _lasts(shows: Sequence[bool]) -> bool:
    return sum(shows) >= max(MIN_READINGS, MIN_SHARE * len(shows))
