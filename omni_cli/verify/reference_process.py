"""The process that runs a reference: the command's imports no torch."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from omni_cli.bench.profile_source import ProfileSource
from omni_cli.child_python import python_command
from omni_cli.errors import OmniError
from omni_cli.models.scores import EngineOutput, Expected, Way
from omni_cli.stage.messages import decoder, pack, sendable_request

Results = list[list[Expected | str]]
"""By way and request; a sentence in place of what the reference cannot run."""

_WIDER = {"bfloat16": "float32", "float16": "float32", "float32": "float64"}


@dataclass(frozen=True)
class Work:
    """The task of a reference: `reference` is `package.module:name` of its class."""

    reference: str
    folder: str
    source: ProfileSource
    overrides: tuple[str, ...]
    ways: tuple[Way, ...]
    outputs: tuple[EngineOutput, ...]


class Answer(msgspec.Struct, frozen=True):
    """`why` is the reason why the reference cannot run at all; `token_ids` are those of texts, by request."""

    results: Results = []
    token_ids: dict[str, tuple[int, ...]] = {}
    why: str | None = None


def get_ways(dtype: str, *, low_memory: bool = False) -> tuple[Way, ...]:
    """Return the ways to run a reference of a type: in a wider one first, then in its own with either attention."""
    ways = (Way(_WIDER[dtype], noise_dtype=dtype), Way(dtype, noise_dtype=dtype), Way(dtype, "eager", dtype))
    return tuple(replace(way, low_memory=low_memory) for way in ways)


async def run_reference(
    work: Work, folder: Path, on_progress: Callable[[str], None], *, verbose: bool = False
) -> Answer:
    """Run the work in a child process, which exchanges files in `folder`. Raises `OmniError` if it fails."""
    task, answer = folder / "reference-work", folder / "reference-answer"
    sendable = [replace(output, request=sendable_request(output.request)) for output in work.outputs]
    task.write_bytes(pack(replace(work, outputs=tuple(sendable))))
    process = await asyncio.create_subprocess_exec(
        *python_command("-m", "omni_cli.verify.reference_worker", str(task), str(answer)),
        stdin=asyncio.subprocess.PIPE,  # closed when this process ends, however it does
        stdout=asyncio.subprocess.PIPE,
        stderr=None if verbose else asyncio.subprocess.PIPE,
        start_new_session=True,  # Ctrl-C is this process's to handle
    )
    assert process.stdout is not None
    errors = asyncio.ensure_future(_read_all(process.stderr))
    try:
        async for line in process.stdout:
            on_progress(line.decode(errors="replace").strip())
        code = await process.wait()
        lines = (await errors).splitlines() or ["see above"]
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
        errors.cancel()
    if code:
        reason = f"signal {signal.Signals(-code).name}: is there enough memory?" if code < 0 else lines[-1]
        raise OmniError(f"the reference failed: {reason}", hint="`-v` shows more")
    return decoder(Answer).decode(answer.read_bytes())


async def _read_all(stream: asyncio.StreamReader | None) -> str:
    return "" if stream is None else (await stream.read()).decode(errors="replace").strip()
