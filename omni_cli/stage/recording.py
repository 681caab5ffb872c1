"""Messages about recording between the command and a stage's process. Times are wall-clock nanoseconds.

A stage starts and stops recording only while it has no request.
"""

from __future__ import annotations

import functools
import re
from typing import Literal

import msgspec

# "memory": ranges and memory; "trace": also operators, on torch's profiler; "work": what operators compute and move.
What = Literal["memory", "trace", "work"]

MODULE_PREFIX = "module "
"""Prefix of a module's path among the operators of a trace."""


class StartRecording(msgspec.Struct, frozen=True, tag=True):
    """`snapshot` also keeps the history of the CUDA allocator."""

    what: What
    snapshot: bool = False


class StopRecording(msgspec.Struct, frozen=True, tag=True):
    """`trace_file` and `snapshot_file` receive what is too large for a message."""

    trace_file: str | None = None
    snapshot_file: str | None = None


class DescribeStage(msgspec.Struct, frozen=True, tag=True):
    """Ask for a `StageDescription`."""


class MeasureRates(msgspec.Struct, frozen=True, tag=True):
    """Ask for `MachineRates`."""


RecordingCommand = StartRecording | StopRecording | DescribeStage | MeasureRates


class Range(msgspec.Struct, frozen=True):
    """`depth` 0 is outermost."""

    name: str
    began_ns: int
    ended_ns: int
    depth: int


class RequestSpan(msgspec.Struct, frozen=True):
    request_id: str
    began_ns: int
    ended_ns: int


class MemoryReading(msgspec.Struct, frozen=True, array_like=True):
    """Memory of the process: resident on the host; allocated and reserved on its CUDA device, None without one."""

    at_ns: int
    host_rss_bytes: int
    allocated_bytes: int | None = None
    reserved_bytes: int | None = None


class WorkPart(msgspec.Struct, frozen=True, array_like=True):
    """Operators of one kind in the modules of one kind: calls, operations, and bytes to be moved."""

    module: str
    operator: str
    calls: int
    flops: float
    moved_bytes: float


class Recording(msgspec.Struct, frozen=True, tag=True):
    """Everything recorded between start and stop.

    `cpu_ns` is the CPU time of all threads of the process; `waited_ns` is the time in which they were ready to run but
    had no core, None if the system does not report it. `kv_cache_usage` is the highest share in use. `omitted` names
    operators that `work` does not count.
    """

    began_ns: int
    ended_ns: int
    requests: tuple[RequestSpan, ...]
    ranges: tuple[Range, ...]
    samples: tuple[MemoryReading, ...]
    cpu_ns: int
    waited_ns: int | None
    kv_cache_usage: float | None = None
    work: tuple[WorkPart, ...] = ()
    omitted: tuple[str, ...] = ()


class Started(msgspec.Struct, frozen=True, tag=True):
    """Recording has begun."""


class Linear(msgspec.Struct, frozen=True, array_like=True):
    """A matrix of an AR model's own modules, which multiplies each token or each sampled one (`rows`).

    Of `num_experts` such matrices a token goes through `num_active`. In a code predictor, which runs once per codebook
    within a step, a sampled token becomes `num_rows` rows, and the weights are read `num_reads` times.
    """

    module: str
    num_weights: int
    weight_bytes: int
    rows: Literal["token", "sample"]
    num_experts: int = 1
    num_active: int = 1
    num_rows: int = 1
    num_reads: int = 1


class Attention(msgspec.Struct, frozen=True, array_like=True):
    module: str
    num_heads: int
    num_kv_heads: int
    head_size: int
    item_bytes: int


class Resident(msgspec.Struct, frozen=True, array_like=True):
    """A tensor that a stage holds for its whole life."""

    name: str
    size_bytes: int
    kind: Literal["weight", "cache"]
    shape: tuple[int, ...]
    dtype: str


class MemoryBudget(msgspec.Struct, frozen=True, array_like=True):
    """`used_bytes` None: the used share is `Recording.kv_cache_usage`."""

    what: str
    budget_bytes: int
    used_bytes: int | None = None


class StageDescription(msgspec.Struct, frozen=True, tag=True):
    """A loaded stage. `load` is the recording of its loading; `device` is torch's name.

    `ranks_elsewhere` is the number of other processes that run its model, which are not recorded; 0 if this process
    runs it. `marks_modules` is True if its modules run as Python, so that traces contain them. `uncounted` are parts of
    an AR model that are in neither `linears` nor `attentions`.
    """

    device: str
    dtype: str
    num_threads: int
    ranks_elsewhere: int
    marks_modules: bool
    load: Recording
    residents: tuple[Resident, ...]
    budgets: tuple[MemoryBudget, ...] = ()
    linears: tuple[Linear, ...] = ()
    attentions: tuple[Attention, ...] = ()
    uncounted: tuple[str, ...] = ()


class MachineRates(msgspec.Struct, frozen=True, tag=True):
    """Rates that this machine reached, per second: operations of a matrix product, bytes read and written by a copy."""

    flops_per_second: float
    copied_bytes_per_second: float
    dtype: str


RecordingReport = Started | Recording | StageDescription | MachineRates


@functools.cache
def module_kind(path: str) -> str:
    """Replace the index of repeated modules: `blocks.3.attn` is `blocks.*.attn`."""
    return re.sub(r"(?<=\.)\d+(?=\.|$)", "*", path)
