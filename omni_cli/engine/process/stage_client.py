"""The command's end of a stage's process."""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import secrets
import shutil
import signal
import tempfile
import threading
from collections.abc import Callable, Iterable
from multiprocessing import connection
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

from omni_cli.backends.execution.stacks import SIGNAL, stacks_in
from omni_cli.core.errors import StageError
from omni_cli.core.files import temporary_folder
from omni_cli.engine.process.fork_server import NO_MAIN_GUARD, StageLog, start_process
from omni_cli.engine.process.stage_process import run_stage
from omni_cli.stage.messages import (
    AbortRequest,
    AddRequest,
    AppendInput,
    Command,
    DecodeError,
    Failure,
    Report,
    RequestDone,
    StageReady,
    StopStage,
    decode_reports,
    encode,
    join,
)
from omni_cli.stage.protocol import StageSpec

# vLLM's workers communicate over sockets in a stage's folder.
_SOCKET_ROOM = len("/omni-0123456789abcdef/01234567-0123-0123-0123-0123456789ab")
STOP_GRACE_S = 3.0
# On a busy machine the fork server may tell of the end of its child some time after their pipe is closed.
_EXIT_CODE_S = 15.0
LOG_TAIL_LINES = 40
_STACKS_TRIES = 10
_STACKS_WAIT_S = 0.2


class StageClient:
    """Starts a stage's process, sends it commands, and calls `on_report` with its reports in the event loop.

    `on_report(client, None)` means that the process has ended.
    """

    def __init__(
        self,
        spec: StageSpec,
        on_report: Callable[[StageClient, Report | None], None],
        *,
        verbose: bool = False,
    ) -> None:
        self.spec = spec
        self.name = spec.stage.name
        self.kind = spec.stage.kind
        self._log = StageLog(passed_on=verbose)
        room = _SOCKET_ROOM if spec.stage.has_ranks_elsewhere else 0
        self._scratch = Path(temporary_folder(room)) / f"omni-{secrets.token_hex(8)}"
        self._on_report = on_report
        self._loop = asyncio.get_running_loop()
        self._process: Any = None
        self._starting: asyncio.Future[None] | None = None
        self._reading = False
        self._ready = False
        self._closed = False
        self._ended = asyncio.Event()
        self._outbox: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._writer = threading.Thread(target=self._write, name=f"omni-{self.name}-writer", daemon=True)
        # The stage's requests, and whether all of their input has been sent.
        self._inside: dict[str, bool] = {}
        # Aborted ones of which reports may still arrive, when another request may have the id.
        self._leaving: list[str] = []
        self._heard_s = 0.0
        self._began_s: float | None = None

    @property
    def loading_s(self) -> float | None:
        """Seconds since its start; None if it has loaded, has ended, or has not been started."""
        if self._began_s is None or self._ready or self._ended.is_set():
            return None
        return self._loop.time() - self._began_s

    @property
    def silent_s(self) -> float | None:
        """Seconds since the stage's last report; None if it has no request to run.

        A request whose input is still arriving does not count: the stage may have to wait for it.
        """
        return self._loop.time() - self._heard_s if self._has_work() and not self._ended.is_set() else None

    def _has_work(self) -> bool:
        return any(self._inside.values())

    async def start(self, context: ForkServerContext) -> None:
        """Start the process and the thread that reads from it; does not wait for the stage to load."""
        self._began_s = self._loop.time()
        self._connection, theirs = context.Pipe()
        self._process = context.Process(
            target=run_stage, args=(theirs, self.spec, self._log, self._scratch), name=f"omni-{self.name}"
        )
        # In a thread, because this waits for the fork server's imports; shielded, because a thread cannot be cancelled.
        self._starting = asyncio.ensure_future(asyncio.to_thread(start_process, self._process))
        try:
            await asyncio.shield(self._starting)
        finally:
            theirs.close()
        self._began_s = self._loop.time()  # the fork server's imports are not part of the stage's loading
        self._reading = True
        threading.Thread(target=self._read, name=f"omni-{self.name}-reader", daemon=True).start()
        self._writer.start()

    def send(self, command: Command) -> None:
        """Send a command without waiting for a busy stage. Raises `StageError` if its process has ended."""
        if self._ended.is_set():
            raise StageError(f"stage `{self.name}` is not running", stage=self.name)
        self._outbox.put(encode(command))
        had_work = self._has_work()
        match command:
            case AddRequest(request):
                self._inside[request.request_id] = not request.stage.more_follows
            # A request may end before its last input arrives: a talker may speak less than the thinker writes.
            case AppendInput() if command.request_id in self._inside:
                self._inside[command.request_id] = command.is_last
            case AbortRequest():
                self._inside.pop(command.request_id, None)
                self._leaving.append(command.request_id)
        if not had_work:
            self._heard_s = self._loop.time()

    def unexpected_end(self) -> Failure:
        """Describe the unreported end of a process: its cause, and its last lines of output."""
        code = self._process.exitcode
        hint = None
        if code is not None and code < 0:
            reason = f"its process was killed ({signal.Signals(-code).name})"
            if -code == signal.SIGKILL:
                hint = "the system kills processes when memory runs out: free some memory, or use smaller settings"
        else:
            reason = "its process ended unexpectedly" + ("" if code is None else f" (exit code {code})")
            if code == 1 and not self._scratch.exists():  # before `run_stage`
                hint = NO_MAIN_GUARD
        return Failure("stage", reason, hint=hint, details=self._log.tail(LOG_TAIL_LINES))

    async def close(self) -> None:
        """Ask the process to stop, then kill it with all its descendants. Idempotent."""
        if self._closed:
            return
        self._closed = True
        if self._starting is not None:
            await asyncio.wait([self._starting])
            # Retrieved, so that asyncio does not report the exception as never retrieved.
            self._starting.cancelled() or self._starting.exception()
            if self._process.pid is not None:
                await self._end_process()
            self._connection.close()
        shutil.rmtree(self._scratch, ignore_errors=True)  # never made if the process was not started
        # On a busy machine the end of a killed process may be seen later, when nobody needs to know.
        self._on_report = lambda client, report: None
        self._log.close()

    async def _end_process(self) -> None:
        if self._ready:  # while loading it would not read commands
            with contextlib.suppress(StageError):
                self.send(StopStage())
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._ended.wait(), STOP_GRACE_S)
        self.kill()
        if not self._reading:  # the start was abandoned
            await asyncio.to_thread(self._process.join, STOP_GRACE_S)
            return
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._ended.wait(), STOP_GRACE_S)
        self._outbox.put(b"")
        await asyncio.to_thread(self._writer.join, STOP_GRACE_S)

    async def write_stacks(self) -> Path | None:
        """Make the stage's processes write their threads' stacks; return the user's copy, None if they cannot.

        A process that is stopped, or that waits for the system (such as a dead file server), runs no signal handler.
        """
        source = stacks_in(self._scratch)
        if self._ended.is_set() or not source.exists():
            return None  # without the handler the signal would kill
        size, copy = -1, None
        try:
            os.killpg(self._process.pid, SIGNAL)
            for _ in range(_STACKS_TRIES):
                await asyncio.sleep(_STACKS_WAIT_S)
                before, size = size, source.stat().st_size
                if size and size == before:
                    break
            if not size:
                return None
            number, name = tempfile.mkstemp(prefix=f"omni-{self.name}-stacks-", suffix=".txt")
            os.close(number)
            copy = Path(name)
            shutil.copyfile(source, copy)
        except OSError:  # the process has just ended, or the disk is full: no reason to end other stages
            if copy is not None:
                copy.unlink()
            return None
        return copy

    def kill(self) -> None:
        """Kill the process and its descendants now."""
        if self._process is not None and self._process.pid is not None:
            # The process leads its own group; until it does, it has no descendants.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.kill()

    def _read(self) -> None:
        # Kill it by name, too: children that outlive it may hold its end of the pipe.
        sources = [self._connection, self._process.sentinel]
        try:
            while self._connection in connection.wait(sources):
                self._deliver(*decode_reports(self._connection.recv_bytes()))
        except (EOFError, OSError):
            pass  # the usual end
        except DecodeError as error:
            # A library wrote into the pipe, so later data cannot be trusted.
            self._deliver(Failure("stage", f"received an invalid message from the stage process: {error}"))
            self.kill()
        self._process.join(_EXIT_CODE_S)
        self._deliver(None)

    def _write(self) -> None:
        # In a thread, because a write to a hung stage blocks once the pipe is full.
        with contextlib.suppress(OSError):  # its process is gone, which `_read` reports
            # Requests that came together enter the stage's next step together.
            while all(contents := [self._outbox.get(), *(self._outbox.get() for _ in range(self._outbox.qsize()))]):
                for message in join(contents):
                    self._connection.send_bytes(message)
                del contents, message  # which may hold an hour of sound, and the next one may be far

    def _deliver(self, *reports: Report | None) -> None:
        # An interrupt may have closed the loop.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._handle, *reports)

    def _handle(self, *reports: Report | None) -> None:
        self._heard_s = self._loop.time()
        for report in reports:
            if getattr(report, "request_id", None) in self._leaving:
                if isinstance(report, AbortRequest):
                    self._leaving.remove(report.request_id)
                continue
            match report:
                case None:
                    self._ended.set()
                case StageReady():
                    self._ready = True
                case RequestDone(request_id=str(ended)) | Failure(request_id=str(ended)):
                    self._inside.pop(ended, None)
            self._on_report(self, report)


_WATCH_INTERVAL_S = 0.5


async def watch(clients: Callable[[], Iterable[StageClient]], give_up: Callable[[str, str, str], None]) -> None:
    """End hung stages until cancelled: those that do not finish loading, or have requests and make no progress.

    `clients()` are the stages to watch; `give_up(name, reason, hint)` ends one and its requests.
    """
    while True:
        await asyncio.sleep(_WATCH_INTERVAL_S)
        for client, hang in [(client, hang) for client in clients() if (hang := _hangs(client)) is not None]:
            stacks = await client.write_stacks()
            if _hangs(client) is not None:
                where = f"the stacks of its threads are in {stacks}; " if stacks is not None else ""
                give_up(client.name, hang[0], f"{where}`--set {client.name}.{hang[1]}=SECONDS` gives it more time")
            elif stacks is not None:  # it has continued or ended while its stacks were written
                stacks.unlink(missing_ok=True)


def _hangs(client: StageClient) -> tuple[str, str] | None:
    """Return (reason, the key that sets the limit)."""
    stage = client.spec.stage
    if client.loading_s is not None and client.loading_s > stage.load_timeout_s:
        return f"not loaded after {client.loading_s:.0f} s", "load_timeout_s"
    if client.silent_s is not None and client.silent_s > stage.step_timeout_s:
        return f"no progress on its requests for {client.silent_s:.0f} s", "step_timeout_s"
    return None
