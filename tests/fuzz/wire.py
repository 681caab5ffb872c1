"""Messages between the command's process and a stage's process, damaged."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np

from fuzz.msgpack_mutation import damaged
from omni_cli.stage.messages import (
    AppendInput,
    Array,
    Audio,
    AudioInput,
    DecodeError,
    Failure,
    HandoffChunk,
    MemoryReport,
    Progress,
    RequestDone,
    StageReady,
    StageRequest,
    Text,
    TextChunk,
    WaveformChunk,
    decode_command,
    decode_report,
    encode,
)

SAMPLES = Array.of(np.arange(6, dtype=np.float32))
PIXELS = Array.of(np.zeros((2, 3, 3), np.uint8))
COMMANDS = [
    encode(
        StageRequest("0", prompt="hello", audio=(AudioInput(SAMPLES, 16_000),), images=(PIXELS,), sampling={"n": 1})
    ),
    encode(StageRequest("1", handoff=b"\x81\xa7entries\x80", more_follows=True)),
    encode(AppendInput("0", b"\x80", is_last=True)),
]
REPORTS = [
    encode(StageReady(1.0, {"execution": "eager"}, MemoryReport(0, 1), {"a": 1}, {"b": 1.0})),
    encode(Failure("stage", "no", "try", None, "0")),
    encode(Progress("0", 1, None, "token")),
    encode(TextChunk("0", "a")),
    encode(HandoffChunk("0", b"\x80", is_last=False)),
    encode(WaveformChunk("0", Audio(SAMPLES, 24_000))),
    encode(RequestDone("0", {"latency_s": 0.1}, text=Text("a", (1,), "stop"), images=(PIXELS,))),
]


def cases(rng: random.Random) -> Iterator[tuple[bool, bytes]]:
    """(whether it goes to the stage, the bytes)."""
    while True:
        to_stage = rng.random() < 0.5
        yield to_stage, damaged(rng, COMMANDS if to_stage else REPORTS)


def check(case: tuple[bool, bytes]) -> str:
    """Raises for everything but msgspec's own refusals and messages whose arrays are what their bytes say."""
    to_stage, raw = case
    try:
        message = (decode_command if to_stage else decode_report)(raw)
    except DecodeError:
        return "rejected"
    for array in _arrays(message):
        assert array.numpy().tobytes() == array.data and array.numpy().shape == array.shape
    return "accepted"


def _arrays(value: Any) -> Iterator[Array]:
    if isinstance(value, Array):
        yield value
    elif isinstance(value, tuple):
        for item in value:
            yield from _arrays(item)
    elif isinstance(value, msgspec.Struct):
        for name in value.__struct_fields__:
            yield from _arrays(getattr(value, name))
