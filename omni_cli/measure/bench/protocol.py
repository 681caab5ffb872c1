"""Messages between the command and a variant's process: JSON, one per line, over the child's stdin and stdout."""

from __future__ import annotations

import msgspec

from omni_cli.records.record import COUNTERS_KEY, Energy, Failures
from omni_cli.stage.messages import Failure

PROTOCOL = 2
"""Incremented when messages change, because `--against` may run another commit's process. 1 had no `Load.requests`."""

MAX_LINE_BYTES = 64 * 2**20


class Load(msgspec.Struct, frozen=True, tag=True):
    """Load the measured stages with fixed lengths, and provide their input.

    `inputs` is a file of stage outputs, required if the first measured stage is not the first of the chain. With
    `records_inputs`, the file is made by running the earlier stages once. `requests` is a JSONL file of `batch_size`
    requests to send instead of generated ones. `slo` are limits on values of a request, which count good ones.
    """

    profile: str
    overrides: tuple[str, ...]
    model: str | None
    seed: int | None
    trust_remote_code: bool
    stage: str
    batch_size: int
    input_len: int
    output_len: int
    given_lengths: tuple[str, ...]
    inputs: str
    records_inputs: bool
    verbose: bool = False
    requests: str | None = None
    slo: dict[str, float] = {}


class Run(msgspec.Struct, frozen=True, tag=True):
    """Run the workload once. Equal numbers mean equal prompts and seeds; `outputs` is a file for the outputs."""

    number: int
    outputs: str | None = None


class Close(msgspec.Struct, frozen=True, tag=True):
    pass


Request = Load | Run | Close


class Hello(msgspec.Struct, frozen=True, tag=True):
    protocol: int


class Loading(msgspec.Struct, frozen=True, tag=True):
    """A stage begins to load (`load_s` None) or is ready."""

    stage: str
    kind: str
    load_s: float | None = None


class StagePeaks(msgspec.Struct, frozen=True):
    """Peaks of one stage in bytes, while loading and afterwards; keys `device`, `reserved`, `host`."""

    load: dict[str, int] = {}
    run: dict[str, int] = {}


class LoadedStage(msgspec.Struct, frozen=True, rename={"execution_counters": COUNTERS_KEY}):
    """`settings` and `effective` were read back from the engine; `requested` are the same keys as configured.

    `execution_counters` are those since loading.
    """

    name: str
    kind: str
    load_s: float
    requested: dict[str, object]
    settings: dict[str, object]
    effective: dict[str, object]
    execution_counters: dict[str, float] = {}


class Loaded(msgspec.Struct, frozen=True, tag=True):
    """`server` is the self-description of a server, whose stages are unknown."""

    stages: tuple[LoadedStage, ...]
    server: dict[str, object] = {}


class Used(msgspec.Struct, frozen=True):
    """Energy of a window, by device of the server, whose `counters` were read `seconds` apart."""

    counters: Energy
    seconds: float = 0.0
    joules: dict[str, float] = {}


class Ran(msgspec.Struct, frozen=True, tag=True, rename={"execution_counters": COUNTERS_KEY}):
    """One iteration. `accounted` is the share of a time that its parts add up to; 1 is all of it.

    `execution_counters` are by stage, since the stage began to load. For a window of requests to a server,
    `e2e_s` is one request's and shorter than the window; see `Sample` for `requests`, `failures` and `unanswered_s`.
    `notes` are as of an `Iteration`.
    """

    e2e_s: float
    metrics: dict[str, float]
    work: dict[str, float]
    output_sha256: str | None
    accounted: dict[str, float]
    memory: dict[str, StagePeaks]
    execution_counters: dict[str, dict[str, float]] = {}
    lasted_s: float | None = None
    requests: dict[str, tuple[float | None, ...]] = {}
    failures: dict[str, Failures] = {}
    unanswered_s: tuple[float, ...] | None = None
    used: Used | None = None
    notes: tuple[str, ...] = ()

    @property
    def busy_s(self) -> float:
        """The seconds that the iteration kept the machine busy."""
        return self.e2e_s if self.lasted_s is None else self.lasted_s


class Failed(msgspec.Struct, frozen=True, tag=True):
    failure: Failure


Reply = Hello | Loading | Loaded | Ran | Failed

encode = msgspec.json.Encoder().encode
decode_request = msgspec.json.Decoder(Request).decode
decode_reply = msgspec.json.Decoder(Reply).decode
