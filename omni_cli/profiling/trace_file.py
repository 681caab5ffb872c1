"""Reader for the Chrome trace that torch's profiler writes, limited to the fields that the breakdowns need."""

from __future__ import annotations

import math
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from omni_cli.errors import OutputError

_TYPE_BYTES = {
    "float": 4, "double": 8, "long int": 8, "int": 4, "short int": 2, "bool": 1, "unsigned char": 1, "signed char": 1,
    "c10::BFloat16": 2, "c10::Half": 2, "c10::complex<float>": 8,
}  # fmt: skip


class EventArgs(msgspec.Struct, frozen=True, omit_defaults=True):
    """Arguments of an event. Fields not listed are dropped, which halves the size of a trace.

    Operators have inputs; allocations an address and bytes; device work its launching call, device and stream.
    """

    input_dims: Any = msgspec.field(name="Input Dims", default=None)
    input_types: Any = msgspec.field(name="Input type", default=None)
    external_id: int | None = msgspec.field(name="External id", default=None)
    allocated_bytes: int | None = msgspec.field(name="Bytes", default=None)
    address: int | None = msgspec.field(name="Addr", default=None)
    device_type: int | None = msgspec.field(name="Device Type", default=None)
    total_allocated: int | None = msgspec.field(name="Total Allocated", default=None)
    total_reserved: int | None = msgspec.field(name="Total Reserved", default=None)
    copied_bytes: int | None = msgspec.field(name="bytes", default=None)
    device: Any = None
    stream: Any = None
    correlation: Any = None
    grid: Any = None
    block: Any = None
    name: str | None = None
    labels: str | None = None

    def first_input_bytes(self) -> int:
        """Bytes of the first input, which a copying operator writes to; 0 if it is not a tensor."""
        if not self.input_dims or not self.input_types:
            return 0
        dims = self.input_dims[0]
        if not all(isinstance(size, int) for size in dims):
            return 0
        return int(math.prod(dims)) * _TYPE_BYTES.get(self.input_types[0], 0)


class Event(msgspec.Struct, frozen=True, omit_defaults=True):
    """`ts` and `dur` are microseconds, `ts` from the trace's base. `id`, `bp` and `s` link events."""

    ph: str
    name: str = ""
    cat: str = ""
    ts: float | None = None
    dur: float | None = None
    pid: int | str = ""
    tid: int | str = ""
    id: int | str | None = None
    bp: str | None = None
    s: str | None = None
    args: EventArgs = EventArgs()


class _File(msgspec.Struct, frozen=True):
    events: tuple[Event, ...] = msgspec.field(name="traceEvents")
    base_ns: int = msgspec.field(name="baseTimeNanoseconds", default=0)


@dataclass(frozen=True)
class TraceFile:
    """A `ts` of 0 is `base_ns` on the wall clock."""

    base_ns: int
    events: Sequence[Event]

    def ns(self, ts: float) -> int:
        """Convert a trace time to the wall clock."""
        return self.base_ns + round(ts * 1000)

    def begin_ns(self, event: Event) -> int:
        assert event.ts is not None, f"{event.ph} {event.name} has no time"
        return self.ns(event.ts)

    def end_ns(self, event: Event) -> int:
        assert event.ts is not None and event.dur is not None, f"{event.ph} {event.name} has no duration"
        return self.ns(event.ts + event.dur)


_decode = msgspec.json.Decoder(_File).decode


def read_trace(path: Path, stage: str) -> TraceFile:
    """Read a trace. Raises `OutputError` for a truncated file: torch does not report a full disk."""
    try:
        file = _decode(path.read_bytes())
        return TraceFile(file.base_ns, file.events)
    except (OSError, msgspec.DecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is truncated"
        if shutil.disk_usage(path.parent).free < 2**20:  # torch may also have created no file at all
            reason = "No space left on device"
        raise OutputError(
            f"could not save the trace of stage `{stage}`: {reason}",
            hint="check for a full disk, or choose another folder with `--output-dir DIR`",
        ) from error
