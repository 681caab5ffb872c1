"""A saved measurement, `omni.bench/1`: raw samples and their conditions. Everything else is recomputable.

Contains no statistics and imports neither torch nor NumPy, because `omni compare` starts with it. Times are seconds,
sizes bytes; names of measured values end in their unit.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from omni_cli.core.errors import InputError
from omni_cli.core.text import visible
from omni_cli.records.metrics import E2E
from omni_cli.records.record_file import Kind, digest_problem, get_digest, read_document
from omni_cli.records.results import Comparison, GateResult, Summary

SCHEMA: Final = "omni.bench/1"
COUNTERS_KEY: Final = "engagement"
"""The name of the execution counters in JSON, which stays as long as the schema's number does."""

# Limits that no measurement exceeds and arithmetic can handle: a century in picoseconds, an exabyte in bytes.
_MIN_VALUE = 1e-30
_Count = Annotated[int, Meta(ge=0, lt=2**31)]
_Bytes = Annotated[int, Meta(ge=0, lt=2**60)]
_Seconds = Annotated[float, Meta(ge=1e-12, le=1e10)]
_Reading = Annotated[float, Meta(ge=0, le=1e10)]
_Value = Annotated[float, Meta(ge=0, le=1e30)]
Alpha = Annotated[float, Meta(ge=1e-4, lt=0.5)]


class Failures(msgspec.Struct, frozen=True, kw_only=True):
    """The number of requests or runs that failed in the same way, and the message of the first."""

    count: int
    first: str


class Sample(msgspec.Struct, frozen=True, kw_only=True, rename={"execution_counters": COUNTERS_KEY}):
    """One iteration of the workload.

    `position` counts the iterations of all variants within the block, in the order in which they ran: two interleaved
    variants never share one. `work` is the amount of work (tokens, steps, pixels, seconds of audio). `number` is the
    iteration's; equal numbers mean equal prompts and seeds. `execution_counters` are by stage: graphs replayed, calls
    made eagerly, bytes copied, seconds hidden.

    For a window of requests to a server, `e2e_s` and the times among the metrics are medians over the answered
    requests. `requests` has all of them, one column per value (`start_s`, `e2e_s`, `ttft_s`, ...), null if a request
    lacks it; a request without `e2e_s` failed. `failures` counts those by kind. A window that an interrupt cut has
    `unanswered_s`, the times for which requests had waited for their answers, which are not among `requests`.
    """

    block: _Count
    position: _Count
    number: int | None = None
    e2e_s: _Seconds
    metrics: dict[str, _Value] = {}
    work: dict[str, _Value] = {}
    execution_counters: dict[str, dict[str, float]] = {}
    requests: dict[str, tuple[_Value | None, ...]] = {}
    failures: dict[str, Failures] = {}
    unanswered_s: tuple[_Value, ...] | UnsetType = UNSET


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """Peaks of a variant while it ran, in bytes; None or 0 if there is nothing to measure (no device)."""

    peak_allocated_bytes: _Bytes | None = None
    peak_reserved_bytes: _Bytes | None = None
    peak_host_rss_bytes: _Bytes | None = None
    stages: dict[str, Any] = {}


RATE: Final = ".rate"
"""The end of the name of an audio output's sample rate."""
PROMPT: Final = ".prompt"
"""The end of the name of a request's prompt, which is saved beside its outputs."""
ANSWERS: Final = "sha256-answers:"
"""The beginning of a hash of all parts of answers; earlier records hash less of them."""
NO_OUTPUTS: Final = ANSWERS + "none"
"""In place of the hash of answers that contain nothing to compare."""
SHEET_COLUMNS: Final = 4


class KeptOutput(msgspec.Struct, frozen=True, kw_only=True):
    """An output for readers: `data` is a PNG image, a sheet of a video's frames, or a WAV file.

    `text` is its size in words; it is `whole` if no pixel, frame or sample is left out. A sheet has `frames` in rows of
    four. `difference` is an image of the difference from the first variant's output, times `gain`; None for audio and
    for the first variant.
    """

    name: str
    kind: Literal["image", "video", "audio"]
    data: bytes
    text: str = ""
    whole: bool = False
    frames: int | None = None
    difference: bytes | None = None
    gain: float | None = None


class DeviceLoad(msgspec.Struct, frozen=True, kw_only=True):
    """Median clock and power of one device while a variant had it to itself; `max_sm_clock_mhz` is the highest clock
    that the device has, `power_limit_w` the limit in force, None where it does not tell."""

    index: _Count
    sm_clock_mhz: _Reading
    max_sm_clock_mhz: _Reading | None = None
    power_w: _Reading
    power_limit_w: _Reading | None = None


class Energy(msgspec.Struct, frozen=True, kw_only=True):
    """The counters of a variant's energy, by device (`gpu0`, `cpu0`).

    `sources` are `NVML counter`, `integrated power` or `RAPL`. `idle_power_w` was measured before anything loaded, of a
    server before its first request; it is in all joules. `absent` is the reason why there are no joules, or none of
    some device.
    """

    sources: dict[str, str] = {}
    idle_power_w: dict[str, _Value] = {}
    absent: str | None = None


class Variant(msgspec.Struct, frozen=True, kw_only=True):
    """One of the compared configurations. `settings` are the requested ones, `effective` those that ran; `error` is set
    if some failed.

    `outputs` are some of its first iteration, if they were asked for. `device_load` is empty without a device, where
    runs were too short to tell whose load it was, and in earlier records.
    """

    name: str
    settings: dict[str, Any] = {}
    effective: dict[str, Any] = {}
    samples: tuple[Sample, ...] = ()
    summary: dict[str, Summary] = {}
    memory: Memory = Memory()
    energy: Energy | None = None
    output_sha256: str | None = None
    outputs: tuple[KeptOutput, ...] = ()
    device_load: tuple[DeviceLoad, ...] = ()
    error: str | None = None

    @property
    def failure(self) -> str | None:
        """The sentence on what failed; such a variant passes no gate. None if nothing did."""
        return self.error or failure_sentence(get_failures(self.samples), num_requests(self), "requests")


class StoppingPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers of blocks at which the interval was looked at, and the first block in the other order of loading."""

    looks: tuple[_Count, ...] = ()
    alpha: Alpha = 0.05
    reversed_from: int | UnsetType = UNSET


class GpuUtilisation(msgspec.Struct, frozen=True, kw_only=True):
    """One device, one value per reading. `throttled` names the causes of throttling (`power_cap+thermal`), or none.

    `max_sm_clock_mhz` is the highest clock that the device has; None where it does not tell, and in earlier records.
    """

    index: int
    name: str
    max_sm_clock_mhz: _Reading | None = None
    utilisation_percent: tuple[_Reading, ...] = ()
    sm_clock_mhz: tuple[_Reading, ...] = ()
    temperature_c: tuple[_Reading, ...] = ()
    power_w: tuple[_Reading, ...] = ()
    throttled: tuple[str, ...] = ()


class Utilisation(msgspec.Struct, frozen=True, kw_only=True):
    """The machine's load during the runs: means between readings, about `interval_s` apart.

    Reading i is taken `end_s[i]` after the start of the first block, and block i ends at `block_end_s[i]`. All programs
    used `busy_cores` of `usable_cores`, the measurement `own_cores` of them; a virtual machine's host gave
    `stolen_cores` to others. `held_back` is the share of periods in which a container's quota ran out, `cpu_mhz` the
    clock of the fastest core; both are empty if unknown. `cost_s` is the processor time of the sampling, `error` the
    reason why it ended early.
    """

    interval_s: _Reading
    cost_s: _Reading
    usable_cores: _Count
    end_s: tuple[_Reading, ...] = ()
    busy_cores: tuple[_Reading, ...] = ()
    own_cores: tuple[_Reading, ...] = ()
    stolen_cores: tuple[_Reading, ...] = ()
    held_back: tuple[_Reading, ...] = ()
    cpu_mhz: tuple[_Reading, ...] = ()
    gpus: tuple[GpuUtilisation, ...] = ()
    block_end_s: tuple[_Reading, ...] = ()
    error: str | None = None


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """A run of `omni bench`.

    Two comparable records agree in all of `environment` (machine, versions, variables) except `code` (omni's version
    and commit, the subject of the measurement) and `conditions` (load, clocks, which cannot be chosen), and in all of
    `workload`, whose `fingerprint` is made by `workload_fingerprint`. `utilisation` is the machine's load during the
    runs; None in records from before it was sampled. `comparisons` and `gate` are for readers of the file; omni
    computes them again.
    """

    schema: Literal["omni.bench/1"] = SCHEMA
    created: str
    command: tuple[str, ...] = ()
    environment: dict[str, Any]
    workload: dict[str, Any]
    variants: tuple[Variant, ...]
    sampling: StoppingPlan = StoppingPlan()
    utilisation: Utilisation | None = None
    comparisons: tuple[Comparison, ...] = ()
    gate: GateResult | None = None
    digest: str | None = None

    def variant(self, name: str) -> Variant:
        """Return the variant of that name; raises `KeyError` if there is none."""
        return {variant.name: variant for variant in self.variants}[name]


def mapping(value: object) -> Mapping[str, Any]:
    """Return `value` if it is a mapping, else an empty one: records may contain anything."""
    return value if isinstance(value, Mapping) else {}


def workload_fingerprint(workload: dict[str, object]) -> str:
    """Return `sha256:...` of everything in `workload` except the fingerprint itself."""
    return get_digest({key: value for key, value in workload.items() if key != "fingerprint"})


def get_counters(variant: Variant) -> Mapping[str, Mapping[str, float]]:
    """Return by stage the counts from the start of loading to the end of the variant's last run."""
    by_stage = mapping(variant.effective.get(COUNTERS_KEY))
    return {stage: counters for stage, counters in by_stage.items() if isinstance(counters, Mapping)}


def num_requests(variant: Variant) -> int:
    """Count the requests that were sent to a server, including failed ones; 0 for all other variants."""
    return sum(map(requests_of, variant.samples))


def requests_of(sample: Sample) -> int:
    """Count the requests of one window; 0 for an iteration."""
    return len(next(iter(sample.requests.values()), ()))


def whole_windows(variant: Variant) -> Variant:
    """Return the variant without the window that an interrupt cut, which lacks its slowest answers; unless it is the
    only one."""
    whole = tuple(sample for sample in variant.samples if sample.unanswered_s is UNSET)
    return msgspec.structs.replace(variant, samples=whole or variant.samples)


def is_of_server(record: Record) -> bool:
    """True for a record of `omni loadtest`."""
    return record.workload.get("kind") == "server"


def describe_failures(failures: Mapping[str, Failures]) -> str:
    """Format `10 x HTTP 429 queue_full, 2 x timeout; the first one: ...`, the most frequent kind first."""
    kinds = ", ".join(f"{failed.count} x {kind}" for kind, failed in failures.items())
    first = next(iter(failures.values())).first
    return kinds if first in failures else f"{kinds}; the first one: {first}"


def summed_failures(failures: Iterable[tuple[str, Failures]]) -> dict[str, Failures]:
    """Add up failures by kind, the most frequent first."""
    total: dict[str, Failures] = {}
    for kind, item in failures:
        before = total.get(kind, Failures(count=0, first=item.first))
        total[kind] = Failures(count=before.count + item.count, first=before.first)
    return dict(sorted(total.items(), key=lambda item: -item[1].count))


def get_failures(samples: Iterable[Sample]) -> dict[str, Failures]:
    """Return the failed requests to a server by kind, the most frequent first."""
    return summed_failures(item for sample in samples for item in sample.failures.items())


def failure_sentence(failures: Mapping[str, Failures], total: int, what: str) -> str | None:
    """Format `12 of 48 requests failed: 12 x HTTP 500; the first one: ...`; None without failures."""
    failed = sum(item.count for item in failures.values())
    return f"{failed} of {total} {what} failed: {describe_failures(failures)}" if failed else None


def load_record(path: Path) -> Record:
    """Read and check a record. Raises `InputError`: unreadable, truncated, foreign, incomplete or edited."""
    record, edit = read_record(path)
    if edit is not None:
        raise InputError(edit, hint=_AGAIN)
    return record


def read_record(path: Path) -> tuple[Record, str | None]:
    """Read a complete record; also return a sentence if it was changed after it was written.

    Raises `InputError` for everything except a complete record.
    """
    document, record = read_document(path, Record, _KIND)
    label = visible(str(path))
    if problem := first_problem(record):
        raise InputError(f"`{label}`: {problem}", hint=_AGAIN)
    edit = digest_problem(document)
    return record, None if edit is None else f"`{label}`: {edit}"


_AGAIN = "measure again with `omni bench --output-json FILE`; records must not be edited by hand"
_KIND = Kind("bench record", SCHEMA, "omni bench --output-json FILE", _AGAIN)


def first_problem(record: Record) -> str | None:
    """Return a sentence on the first value that no run of `omni bench` writes."""
    if not record.variants:
        return "the record has no variants"
    if problem := first_variant_problem(record.variants):
        return problem
    if record.utilisation is not None and (problem := _utilisation_problem(record.utilisation)):
        return f"its `utilisation`: {problem}"
    looks = record.sampling.looks
    is_growing = list(looks) == sorted({look for look in looks if look > 0})
    return None if is_growing else "its `sampling` is not a plan of increasing numbers of blocks"


def first_variant_problem(variants: Sequence[Variant]) -> str | None:
    """Return a sentence on the first value of variants measured together that no measurement writes."""
    names = [variant.name for variant in variants]
    if len(set(names)) != len(names) or "" in names:
        return "the names of its variants are not unique"
    if not all(name.isprintable() for name in names):
        return "the names of its variants contain control characters"
    for variant in variants:
        for number, sample in enumerate(variant.samples):
            if problem := _sample_problem(sample):
                return f"sample {number} of variant `{visible(variant.name, 80)}`: {problem}"
    return None


def _sample_problem(sample: Sample) -> str | None:
    for name, value in (*sample.metrics.items(), *sample.work.items()):
        if 0 < value < _MIN_VALUE:
            return f"`{visible(name, 80)}` is {value}, not an amount"
    if len({len(column) for column in sample.requests.values()}) > 1:
        return "the columns of its `requests` are of different lengths"
    failed = sum(value is None for value in sample.requests.get(E2E, ()))
    counts = [item.count for item in sample.failures.values()]
    if failed != sum(counts) or any(count < 1 for count in counts):
        return f"its `failures` are not the {failed} requests that have no `{E2E}`"
    return None


def _utilisation_problem(load: Utilisation) -> str | None:
    of_gpus = [
        series
        for gpu in load.gpus
        for series in (gpu.utilisation_percent, gpu.sm_clock_mhz, gpu.temperature_c, gpu.power_w)
    ]
    known = [series for series in (load.held_back, load.cpu_mhz) if series]
    together = [load.end_s, load.busy_cores, load.own_cores, load.stolen_cores, *known, *of_gpus]
    if len({len(series) for series in together} | {len(gpu.throttled) for gpu in load.gpus}) > 1:
        return "its series are of different lengths"
    if any(later <= earlier for earlier, later in itertools.pairwise(load.end_s)):
        return "its times do not increase"
    return None
