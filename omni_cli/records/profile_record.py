"""A saved profile, `omni.profile/1`: time and memory of one workload, stage by stage.

Written by `omni profile` beside the trace, read by `omni report`. Imports neither torch nor NumPy. Times are in seconds
and sizes in bytes, as the names say; a number "per iteration" is the median over the profiled iterations.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from omni_cli.records.record_file import Kind, load_checked

SCHEMA: Final = "omni.profile/1"
Limit = Literal["compute", "memory"]
_AGAIN = "profile again with `omni profile --output-dir DIR`; records must not be edited by hand"
_KIND = Kind("profile record", SCHEMA, "omni profile --output-dir DIR", _AGAIN)


def base_name(name: str) -> str:
    """Shorten `denoising step 3`, the name of a range or span, to `denoising step`."""
    return re.sub(r" \d+$", "", name)


class Span(msgspec.Struct, frozen=True, kw_only=True):
    """A time span on a track; `start_s` counts from the start of the iteration. `depth` 0 is outermost."""

    track: str
    name: str
    start_s: float
    duration_s: float
    depth: int = 0


class Overhead(msgspec.Struct, frozen=True, kw_only=True):
    """Slowdown of a time by profiling; unprofiled and profiled iterations were interleaved.

    `ratio` is profiled over unprofiled, centres of the same iterations, `ci95` its interval; None with too few.
    """

    metric: str
    unprofiled_s: float
    profiled_s: float
    ratio: float | None
    ci95: tuple[float, float] | None = None


class Activity(msgspec.Struct, frozen=True, kw_only=True):
    """Activity of a stage's device in an iteration while the stage had a request.

    `device` is `cpu`, meaning the process's `num_threads` operator threads, or a CUDA device. `busy_s` is CPU time of
    all the process's threads, or time with a kernel or copy running; `capacity_s` its maximum. `idle_s` splits the
    rest by cause. `waited_for_core_s` is time in which threads were ready to run and had no core; None if the system
    does not report it.
    """

    device: str
    num_threads: int
    window_s: float
    capacity_s: float
    busy_s: float
    busy_fraction: float
    idle_fraction: float
    idle_s: dict[str, float] = {}
    waited_for_core_s: float | None = None


class LaunchGaps(msgspec.Struct, frozen=True, kw_only=True):
    """Time between operators (CPU) or kernels (CUDA) within an iteration's steps, in which none ran."""

    count: int
    total_s: float
    median_s: float
    largest_s: float
    fraction_of_steps: float


class CopyPlace(msgspec.Struct, frozen=True, kw_only=True):
    """Copies by one operator in one range, per iteration. `module` is the innermost one, if known."""

    range: str
    operator: str
    module: str | None
    calls: float
    copied_bytes: float
    seconds: float


class Copies(msgspec.Struct, frozen=True, kw_only=True):
    """Copies per iteration. The first four fields count device-to-host output copies, hidden behind work or exposed."""

    output_copies: float = 0
    output_bytes: float = 0
    hidden_s: float = 0
    exposed_s: float = 0
    places: tuple[CopyPlace, ...] = ()


class RangeTime(msgspec.Struct, frozen=True, kw_only=True):
    """All ranges of one name in a stage, summed per iteration. `self_s` excludes nested ranges."""

    name: str
    calls: float
    total_s: float
    self_s: float
    median_call_s: float
    fraction: float


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One step of a request, numbered from 1; `median_s` and `samples_s` are over the profiled iterations.

    `usual_s` is the time of its neighbours. `outlier` means that it takes longer every time. `added_bytes` is the peak
    memory of its tensors relative to its start.
    """

    name: str
    number: int
    median_s: float
    samples_s: tuple[float, ...]
    usual_s: float
    outlier: bool = False
    added_bytes: int = 0


class OperatorTime(msgspec.Struct, frozen=True, kw_only=True):
    """An operator in the modules of one kind (`blocks.*.attn`), per iteration, without the operators that it calls.

    `seconds` is time of the stage's device: of its kernels on CUDA, else of the thread that calls operators.
    """

    module: str
    operator: str
    calls: float
    seconds: float
    fraction: float


class MemorySample(msgspec.Struct, frozen=True, kw_only=True):
    """`at_s` counts from the start of the stage's process."""

    at_s: float
    host_rss_bytes: int
    allocated_bytes: int | None = None
    reserved_bytes: int | None = None


class PhaseMemory(msgspec.Struct, frozen=True, kw_only=True):
    """One phase: `load`, `warm-up`, `capture`, `step 3`, `vae decode`, ...

    Peaks are the highest over all its occurrences. `added_bytes` is the memory held at its peak relative to its start,
    on the device for CUDA, else on the host. `start_s` counts as `MemorySample.at_s`, for its first occurrence.
    """

    name: str
    start_s: float
    duration_s: float
    times: int = 1
    peak_host_rss_bytes: int
    peak_allocated_bytes: int | None = None
    peak_reserved_bytes: int | None = None
    added_bytes: int = 0


class LargeTensor(msgspec.Struct, frozen=True, kw_only=True):
    """A tensor held at the peak. `where` is a weight's name, or the range (and module) that allocated it."""

    where: str
    size_bytes: int
    kind: Literal["weight", "cache", "activation"]
    shape: tuple[int, ...] | None = None
    dtype: str | None = None


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """Memory that the profile allows a stage and its use; `what` names the memory, `used_fraction` the used share."""

    what: str
    budget_bytes: int | None
    used_bytes: int
    used_fraction: float | None = None


class StageMemory(msgspec.Struct, frozen=True, kw_only=True):
    """`peak_bytes` is allocated device memory on CUDA, else resident host memory; `peak_phase` names the phase."""

    measure: Literal["allocated", "host_rss"]
    peak_bytes: int
    peak_phase: str
    timeline: tuple[MemorySample, ...] = ()
    phases: tuple[PhaseMemory, ...] = ()
    largest: tuple[LargeTensor, ...] = ()
    budgets: tuple[Budget, ...] = ()
    snapshot: str | None = None


class RooflinePart(msgspec.Struct, frozen=True, kw_only=True):
    """Modules of one kind: their work and memory traffic per iteration, and the lower bound on its time."""

    module: str
    flops: float
    moved_bytes: float
    bound_s: float
    limit: Limit


class Roofline(msgspec.Struct, frozen=True, kw_only=True):
    """Lower bound on the time of a stage's work on this machine, and the measured time next to it.

    Rates were measured in the stage's process, in its data type and with its threads. `measured_s` is the unprofiled
    time of the ranges that do the work. `omitted` lists what the estimate leaves out.
    """

    flops: float
    moved_bytes: float
    flops_per_second: float
    copied_bytes_per_second: float
    dtype: str
    bound_s: float
    measured_s: float
    fraction: float
    limit: Limit
    parts: tuple[RooflinePart, ...] = ()
    omitted: tuple[str, ...] = ()


class StageProfile(msgspec.Struct, frozen=True, kw_only=True):
    """`waits` are per step and by operator: how often the host waits for its device, or reads numbers on a CPU."""

    name: str
    kind: Literal["ar", "diffusion"]
    backend: str
    device: str
    effective: dict[str, Any] = {}
    load_s: float
    latency_s: float
    unprofiled_latency_s: float
    activity: Activity
    launch_gaps: LaunchGaps | None = None
    copies: Copies = Copies()
    ranges: tuple[RangeTime, ...] = ()
    steps: tuple[Step, ...] = ()
    waits: dict[str, float] = {}
    operators: tuple[OperatorTime, ...] = ()
    memory: StageMemory
    roofline: Roofline | None = None
    notes: tuple[str, ...] = ()


class Hint(msgspec.Struct, frozen=True, kw_only=True):
    """A suggestion, with the numbers that it follows from."""

    stage: str | None
    message: str
    advice: str


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """A run of `omni profile`; `environment` and `workload` are as in a bench record.

    `request` is the profiled iteration of median time, as spans: the stages' requests, their steps and parts, and the
    connectors. `stage_seconds` adds up to `e2e_s`: the time of that iteration per stage and connector (time shared by
    two stages counts for the first), and `other`. `notes` are sentences on what the stages changed about requests.
    """

    schema: Literal["omni.profile/1"] = SCHEMA
    created: str
    command: tuple[str, ...] = ()
    environment: dict[str, Any]
    workload: dict[str, Any]
    num_iters: int
    num_iters_warmup: int
    e2e_s: float
    overhead: tuple[Overhead, ...]
    stages: tuple[StageProfile, ...]
    request: tuple[Span, ...]
    stage_seconds: dict[str, float]
    hints: tuple[Hint, ...] = ()
    notes: tuple[str, ...] = ()
    trace: str
    digest: str | None = None


def load_profile_record(path: Path) -> Profile:
    """Read and check a profile. Raises `InputError`: unreadable, truncated, foreign, incomplete or edited."""
    return load_checked(path, Profile, _KIND)
