"""The reference of a model family on a checkpoint, run in a process of its own: the command's imports no torch."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import msgspec

from omni_cli.checkpoints.derive import ITEMSIZES
from omni_cli.checkpoints.files import count_parameters, read_family
from omni_cli.config.families import Family
from omni_cli.config.schema import ARStageConfig, EngineConfig
from omni_cli.core.child_python import python_command
from omni_cli.core.errors import OmniError
from omni_cli.core.machine import read_memory
from omni_cli.engine.devices import has_cuda_device
from omni_cli.measure.bench.profile_source import ProfileSource
from omni_cli.models.scores import EngineOutput, Expected, Way
from omni_cli.report.units import memory
from omni_cli.stage.messages import decoder, pack, sendable_request

Results = list[list[Expected | str]]
"""By way and request; a sentence in place of what the reference cannot run."""

_WIDER = {"bfloat16": "float32", "float16": "float32", "float32": "float64"}
_ITEMSIZES = {**ITEMSIZES, "float64": 8}
# A process with torch, activations, and a KV cache of a few hundred tokens.
_BESIDE_BYTES = 1 << 30


class ReferenceAnswer(msgspec.Struct, frozen=True):
    """`why` is the reason why the reference cannot run at all; `token_ids` are those of texts, by request."""

    results: Results = []
    token_ids: dict[str, tuple[int, ...]] = {}
    why: str | None = None


@dataclass(frozen=True)
class Reference:
    """A checkpoint in `folder`, for its family's reference, configured as in `source` with `overrides`.

    `row_stage` is the stage of its rows in place of its own first one, which is then the only one.
    `python` is another Python, of a family whose publisher's package needs one.
    """

    source: ProfileSource
    folder: str
    overrides: tuple[str, ...] = ()
    low_memory: bool = False
    verbose: bool = False
    row_stage: str | None = None
    python: str | None = None

    @cached_property
    def config(self) -> EngineConfig:
        return self.source.load(self.overrides)

    @property
    def family(self) -> Family:
        return read_family(Path(self.folder))

    @property
    def token_stages(self) -> list[str]:
        """The stages whose tokens it judges."""
        names = [stage.name for stage in self.config.stages if isinstance(stage, ARStageConfig)]
        return names if self.row_stage is None else names[:1]

    async def run(self, outputs: Sequence[EngineOutput], scratch: Path, say: Callable[[str], None]) -> ReferenceAnswer:
        """Run the reference on these outputs; files are exchanged in `scratch`, and `say` shows progress.

        Raises `OmniError` for too little memory.
        """
        if self.family.reference is None:
            return ReferenceAnswer(why=f"the model family `{self.family.name}` has no reference")
        recipe = self.family.reference_recipe
        if self.python is None and recipe is not None:
            why = "the publisher's package needs a Python of its own"
            return ReferenceAnswer(why=f"{why}: `make {recipe}`, then `--reference-python .{recipe}/bin/python`")
        ways = _get_ways(self.config.dtype, low_memory=self.low_memory)
        _check_memory(Path(self.folder), ways)
        sendable = tuple(replace(output, request=sendable_request(output.request)) for output in outputs)
        work = Work(self, ways, sendable)
        try:
            return await _run_process(work, scratch, say)
        except OmniError as error:
            return ReferenceAnswer(why=error.message)


@dataclass(frozen=True)
class Work:
    """The task of the process that runs a reference."""

    reference: Reference
    ways: tuple[Way, ...]
    outputs: tuple[EngineOutput, ...]


def _get_ways(dtype: str, *, low_memory: bool = False) -> tuple[Way, ...]:
    """Return the ways to run a reference of a type: in a wider one, in its own, and in its own by rougher kernels."""
    own = Way(dtype, noise_dtype=dtype)
    ways = (replace(own, dtype=_WIDER[dtype]), own, replace(own, attention="eager", rough_sums=True))
    return tuple(replace(way, low_memory=low_memory) for way in ways)


def _check_memory(folder: Path, ways: Sequence[Way]) -> None:
    """Raise `OmniError`, with the memory needed, if the weights do not fit in the widest type."""
    if any(way.low_memory for way in ways) or has_cuda_device():
        return
    needed = count_parameters(folder) * max(_ITEMSIZES[way.dtype] for way in ways) + _BESIDE_BYTES
    free = read_memory().available_bytes
    if needed > free:
        raise OmniError(
            f"the reference needs {memory(needed)} of memory, and {memory(free)} are free",
            hint="`--low-memory` reads the weights that do not fit when they are used",
        )


async def _run_process(work: Work, folder: Path, on_progress: Callable[[str], None]) -> ReferenceAnswer:
    task, answer = folder / "reference-work", folder / "reference-answer"
    task.write_bytes(pack(work))
    process = await asyncio.create_subprocess_exec(
        *python_command("-m", "omni_cli.measure.verify.reference_worker", str(task), str(answer)),
        stdin=asyncio.subprocess.PIPE,  # closed when this process ends, however it does
        stdout=asyncio.subprocess.PIPE,
        stderr=None if work.reference.verbose else asyncio.subprocess.PIPE,
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
    return decoder(ReferenceAnswer).decode(answer.read_bytes())


async def _read_all(stream: asyncio.StreamReader | None) -> str:
    return "" if stream is None else (await stream.read()).decode(errors="replace").strip()
