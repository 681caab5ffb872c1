"""The processes of a parallel stage: rank 0 has the stage's reports, the others follow its commands.

Every rank runs the same requests in the same batches, so that its denoiser takes part in each step. Commands go to the
others through pipes, as does the one decision that only rank 0 can make: whether a request was aborted before a step.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import queue
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from omni_cli.compat.libraries import prepare_libraries
from omni_cli.diffusers_integration.parallel import Rank, new_meeting_place
from omni_cli.errors import StageError
from omni_cli.outputs import GenerateRequest
from omni_cli.stage.failures import as_failure
from omni_cli.stage.messages import (
    AbortRequest,
    AddRequest,
    Failure,
    Report,
    SleepStage,
    WakeStage,
    decode_command,
    encode,
)
from omni_cli.stage.protocol import StageSpec

# Messages besides encoded commands: to a rank "run a step" and decisions, from a rank "done".
_STEP, _NO, _YES, _DONE = b"", b"0", b"1", b""
# A rank that failed alone leaves the others in an exchange that may never end; this long, they may fail as well.
_LAST_S = 30.0
_PR_SET_PDEATHSIG = 1


class FollowingStage(Protocol):
    """A stage on a rank other than 0."""

    def add(self, request: GenerateRequest) -> None: ...

    def abort(self, request_id: str) -> None: ...

    def step(self) -> list[Report]: ...

    def sleep(self, level: int) -> bool: ...

    def wake_up(self, tags: Sequence[str] | None) -> bool: ...


LoadStage: TypeAlias = Callable[[StageSpec, Callable[[Report], None], Rank], FollowingStage]


@dataclass(frozen=True)
class _Answer:
    """The end of a step on a rank, or of the rank with `ended`; `failure` is what failed, "" for nothing."""

    rank: int
    failure: str
    ended: bool = False


class Ranks:
    """The other ranks of a stage, seen from rank 0.

    A rank that ends, or that fails where rank 0 does not, ends the stage: `report` gets the failure, at once.
    """

    def __init__(self, spec: StageSpec, load: LoadStage, report: Callable[[Report], None]) -> None:
        """Start the processes, which load the stage with `load`, a class or function of a module."""
        self._spec = spec
        self._report = report
        self._meeting_place = new_meeting_place()
        self._answers: queue.SimpleQueue[_Answer] = queue.SimpleQueue()
        self._settled = threading.Event()
        self._closing = False
        # Not forked: once anything has asked for CUDA devices, as some imports do, forked processes cannot use them.
        context = multiprocessing.get_context("spawn")
        self._processes: dict[int, Any] = {}
        self._pipes: dict[int, Connection] = {}
        for number in range(1, spec.stage.num_ranks):
            self._pipes[number], theirs = context.Pipe()
            self._processes[number] = context.Process(
                target=_run_rank,
                args=(theirs, spec, load, number, self._meeting_place, os.getpid()),
                name=f"omni-{spec.stage.name}-rank-{number}",
                daemon=True,
            )
            self._processes[number].start()
            theirs.close()
        for number in self._processes:
            threading.Thread(target=self._listen, args=(number,), name=f"omni-rank-{number}", daemon=True).start()

    @property
    def rank(self) -> Rank:
        """Rank 0, for its own executor."""
        return Rank(0, self._wait, self._decide, self._meeting_place)

    def send(self, command: AddRequest | AbortRequest | SleepStage | WakeStage) -> None:
        self._send(encode(command))

    def start_step(self) -> None:
        self._settled.clear()
        self._send(_STEP)

    def finish_step(self, *, failed: bool) -> None:
        """Wait for the others; raises `StageError` if one of them failed otherwise than rank 0 did."""
        self._settled.set()
        for answer in [self._answers.get() for _ in self._processes]:
            if answer.ended or bool(answer.failure) != failed:
                raise self._error(answer)

    def close(self) -> None:
        """End the processes."""
        self._closing = True
        for process in self._processes.values():
            process.kill()
            process.join()

    def _wait(self) -> None:
        """Wait until the others have loaded; raises the `StageError` of one that could not."""
        for answer in [self._answers.get() for _ in self._processes]:
            if answer.ended or answer.failure:
                raise self._error(answer)

    def _decide(self, decision: bool) -> bool:
        self._send(_YES if decision else _NO)
        return decision

    def _send(self, message: bytes) -> None:
        for pipe in self._pipes.values():
            try:
                pipe.send_bytes(message)
            except OSError:
                continue  # the rank has ended, which `_listen` reports

    def _listen(self, number: int) -> None:
        pipe, process = self._pipes[number], self._processes[number]
        while True:
            try:
                failure = pipe.recv_bytes().decode()
            except (EOFError, OSError):
                break
            self._answers.put(_Answer(number, failure))
            if failure and not self._settled.wait(_LAST_S):
                self._fail(_Answer(number, failure))
        process.join()
        if self._closing:
            return  # `close` waits for it as well, and only one of the two learns the exit code
        code = process.exitcode
        how = f"was killed ({signal.Signals(-code).name})" if code < 0 else f"ended unexpectedly (exit code {code})"
        self._fail(_Answer(number, how, ended=True))

    def _fail(self, answer: _Answer) -> None:
        if self._closing:
            return
        self._report(Failure.of(self._error(answer)))
        for _ in self._processes:
            self._answers.put(answer)

    def _error(self, answer: _Answer) -> StageError:
        stage = self._spec.stage.name
        how = answer.failure or "finished a request that failed on rank 0"
        killed = "system kills processes when memory runs out: free some memory, or use smaller settings"
        return StageError(
            f"stage `{stage}`: rank {answer.rank} {how if answer.ended else f'failed: {how}'}",
            stage=stage,
            hint=f"the {killed}" if answer.ended and "SIGKILL" in how else None,
        )


def _run_rank(
    pipe: Connection,
    spec: StageSpec,
    load: LoadStage,
    number: int,
    meeting_place: Path,
    parent: int,
) -> None:
    """Run the process of a rank, which ends with rank 0."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    prepare_libraries()
    try:
        stage = load(
            spec, _drop, Rank(number, lambda: pipe.send_bytes(_DONE), lambda _: _decision(pipe), meeting_place)
        )
        _follow(pipe, stage)
    except EOFError:
        os._exit(0)
    except Exception as error:  # noqa: BLE001 - whatever it is, rank 0 has to know
        traceback.print_exc()
        pipe.send_bytes(as_failure(error, spec.stage).message.encode())
        sys.stderr.flush()
        os._exit(1)


def _drop(_: Report) -> None:
    """Ignore a report: rank 0 makes them."""


def _decision(pipe: Connection) -> bool:
    return pipe.recv_bytes() == _YES


def _follow(pipe: Connection, stage: FollowingStage) -> None:
    while True:
        raw = pipe.recv_bytes()
        if raw == _STEP:
            failures = [report.message for report in stage.step() if isinstance(report, Failure)]
            pipe.send_bytes("; ".join(failures).encode())
            continue
        match decode_command(raw):
            case AddRequest(request):
                stage.add(request)
            case AbortRequest(request_id):
                stage.abort(request_id)
            case SleepStage(level):
                stage.sleep(level)
            case WakeStage(tags):
                stage.wake_up(tags)
