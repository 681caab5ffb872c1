"""The command's end of a stage's process."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
from collections.abc import Callable
from multiprocessing.context import BaseContext
from pathlib import Path
from typing import Any

from omni_cli.engine.messages import Command, Report, StopStage, decode_report, encode
from omni_cli.engine.stage_process import run_stage
from omni_cli.engine.stages.base import StageSpec
from omni_cli.errors import StageError

STOP_GRACE_S = 3.0


class StageClient:
    """Starts a stage's process, sends it commands, and hands its reports to `on_report` in the event loop.

    `on_report(client, None)` says that the process has ended.
    """

    def __init__(
        self,
        spec: StageSpec,
        log_path: Path,
        on_report: Callable[[StageClient, Report | None], None],
    ) -> None:
        self.spec = spec
        self.name = spec.stage.name
        self.kind = spec.stage.kind
        self.log_path = log_path
        self._on_report = on_report
        self._loop = asyncio.get_running_loop()
        self._process: Any = None
        self._starting: asyncio.Future[None] | None = None
        self._ended = asyncio.Event()

    async def start(self, context: BaseContext) -> None:
        """Start the process and the thread that reads from it; does not wait for the stage to load."""
        self._connection, theirs = context.Pipe()
        self._process = context.Process(
            target=run_stage, args=(theirs, self.spec, str(self.log_path)), name=f"omni-{self.name}"
        )
        # In a thread, for it waits for the fork server's imports; shielded, for a thread cannot be cancelled.
        self._starting = asyncio.ensure_future(asyncio.to_thread(self._process.start))
        try:
            await asyncio.shield(self._starting)
        finally:
            theirs.close()
        threading.Thread(target=self._read, name=f"omni-{self.name}-reader", daemon=True).start()

    def send(self, command: Command) -> None:
        """Raises `StageError` when the process is gone."""
        try:
            self._connection.send_bytes(encode(command))
        except OSError as error:
            raise StageError(f"stage `{self.name}` is not running", stage=self.name) from error

    def log_tail(self, num_lines: int = 40) -> str:
        """The last lines that the stage's process wrote."""
        try:
            return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-num_lines:])
        except OSError:
            return ""

    async def close(self) -> None:
        """Ask the process to stop, then make it; every descendant of it ends too. Safe to call twice."""
        if self._starting is None or self._process is None:
            return
        await asyncio.wait([self._starting])
        if self._process.pid is None:
            # It never started; reading the exception keeps asyncio from reporting it as forgotten.
            self._starting.cancelled() or self._starting.exception()
            self._connection.close()
            self._process = None
            return
        with contextlib.suppress(StageError):
            self.send(StopStage())
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._ended.wait(), STOP_GRACE_S)
        self.kill()
        await asyncio.to_thread(self._process.join, STOP_GRACE_S)
        self._connection.close()
        self._process = None

    def kill(self) -> None:
        """End the process and its descendants now."""
        if self._process is not None and self._process.pid is not None:
            # It leads a group of its own; before it does, it has no descendants.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.kill()

    def _read(self) -> None:
        while True:
            try:
                report = decode_report(self._connection.recv_bytes())
            except (EOFError, OSError):
                break
            self._deliver(report)
        self._deliver(None)

    def _deliver(self, report: Report | None) -> None:
        # The loop may have been closed by an interrupt; then nobody is left to tell.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._handle, report)

    def _handle(self, report: Report | None) -> None:
        if report is None:
            self._ended.set()
        self._on_report(self, report)
