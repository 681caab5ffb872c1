"""Messages between the command's process and a stage's process, damaged."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import msgspec
import numpy as np

from fuzz.msgpack_mutation import damaged
from omni_cli.requests.contents import CallFile, Media, StageIO
from omni_cli.requests.events import AudioChunk, TextDelta
from omni_cli.requests.outputs import GenerateRequest, TextOutput, VideoOutput
from omni_cli.stage.messages import (
    AbortRequest,
    AddRequest,
    AppendInput,
    DecodeError,
    Failure,
    MemoryReport,
    Progress,
    RequestDone,
    StageOutputChunk,
    StageReady,
    decode_commands,
    decode_reports,
    encode,
    join,
)

SAMPLES = np.arange(6, dtype=np.float32)
PIXELS = np.zeros((2, 3, 3), np.uint8)
REQUESTS = [
    GenerateRequest("0", prompt="hello", media=Media(audio=((SAMPLES, 16_000),), images=(PIXELS,)), sampling={"n": 1}),
    GenerateRequest("1", prompt="hello", media=Media(call_files={"references": [CallFile("image", PIXELS), None]})),
    GenerateRequest("2", stage=StageIO(input=b"\x81\xa7entries\x80", more_follows=True)),
]
COMMANDS = [*map(encode, map(AddRequest, REQUESTS)), encode(AppendInput("0", b"\x80", is_last=True))]
REPORTS = [
    encode(StageReady(1.0, {"execution": "eager"}, MemoryReport(0, 1), {"a": 1}, {"b": 1.0})),
    encode(Failure("stage", "no", "try", None, "0")),
    encode(Progress("0", 1, None, "token")),
    encode(TextDelta("0", "a")),
    encode(StageOutputChunk("0", b"\x80", is_last=False)),
    encode(AbortRequest("0")),
    encode(AudioChunk("0", SAMPLES, 24_000)),
    encode(RequestDone("0", {"latency_s": 0.1}, text=TextOutput("a", (1,), "stop"), images=(PIXELS,))),
    encode(RequestDone("0", {}, videos=(VideoOutput(b"", b"", 2, 2, 9, Fraction(24000, 1001), frames=PIXELS),))),
]
COMMANDS += join(tuple(COMMANDS))
REPORTS += join(tuple(REPORTS))


def cases(rng: random.Random) -> Iterator[tuple[bool, bytes]]:
    """(whether it goes to the stage, the bytes)."""
    while True:
        to_stage = rng.random() < 0.5
        yield to_stage, damaged(rng, COMMANDS if to_stage else REPORTS)


def check(case: tuple[bool, bytes]) -> str:
    """Raises for everything but msgspec's own refusals and messages whose arrays are what their shapes say."""
    to_stage, raw = case
    try:
        message = (decode_commands if to_stage else decode_reports)(raw)
    except DecodeError:
        return "rejected"
    for array in _arrays(message):
        assert array.flags.aligned and len(array.tobytes()) == math.prod(array.shape) * array.itemsize
    return "accepted"


def _arrays(value: Any) -> Iterator[np.ndarray]:
    if isinstance(value, np.ndarray):
        yield value
    elif isinstance(value, tuple | list):
        for item in value:
            yield from _arrays(item)
    elif isinstance(value, dict):
        yield from _arrays(list(value.values()))
    elif isinstance(value, msgspec.Struct):
        yield from _arrays(msgspec.structs.astuple(value))
    elif dataclasses.is_dataclass(value):
        yield from _arrays(list(vars(value).values()))
