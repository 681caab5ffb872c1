"""The command's end of a variant's process."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import site
import sysconfig
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

import omni_cli
from omni_cli.core.child_python import python_command
from omni_cli.core.errors import OmniError
from omni_cli.engine.process.fork_server import ForkServer, StageLog
from omni_cli.measure.bench.commits import find_worker
from omni_cli.measure.bench.protocol import (
    MAX_LINE_BYTES,
    PROTOCOL,
    Close,
    Failed,
    Hello,
    Load,
    Loaded,
    Loading,
    Ran,
    Reply,
    Request,
    Run,
    decode_reply,
    encode,
)
from omni_cli.measure.bench.variant_configs import VariantConfig

HELLO_TIMEOUT_S = 60.0
CLOSE_GRACE_S = 10.0
_LOG_LINES = 15


class VariantError(OmniError):
    """The failure of a variant; the message names the variant and what it was doing, `-v` shows the `details`."""


class VariantRunner(Protocol):
    """The runner of a variant: a separate process (`VariantProcess`), or a connection to a server."""

    name: str

    @property
    def pid(self) -> int | None:
        """The process id; None if the variant uses no memory of this machine."""

    async def start(self) -> None: ...

    async def load(self, on_loading: Callable[[Loading], None]) -> Loaded: ...

    async def run(
        self, number: int, *, when: str, outputs: Path | None = None, timeout_s: float | None = None
    ) -> Ran: ...

    async def close(self) -> None: ...


class VariantProcess:
    """Starts the process, sends one request at a time, `request` first, and ends it. Owned by one event loop."""

    def __init__(self, config: VariantConfig, request: Load, *, verbose: bool = False) -> None:
        self.config = config
        self.name = config.name
        self._request = request
        self._log = StageLog(passed_on=verbose)
        self._started: asyncio.subprocess.Process | None = None
        self._protocol = 0
        self._closed = False

    @property
    def pid(self) -> int | None:
        return None if self._started is None else self._started.pid

    @property
    def _process(self) -> asyncio.subprocess.Process:
        assert self._started is not None, "not started"
        return self._started

    @property
    def _stdin(self) -> asyncio.StreamWriter:
        assert self._process.stdin is not None  # it is a pipe
        return self._process.stdin

    async def start(self) -> None:
        """Start Python with the variant's environment. Raises `VariantError`."""
        ForkServer.end_spare()  # of this process, whose stages are the variant's
        self._started = await asyncio.create_subprocess_exec(
            *python_command("-m", find_worker(self.config.code)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=self._log.fileno(),
            env=child_environment(os.environ, self.config),
            limit=MAX_LINE_BYTES,
            # Ctrl-C in a terminal goes to the command alone.
            start_new_session=True,
        )
        hello = await self._receive("starting", HELLO_TIMEOUT_S)
        if not isinstance(hello, Hello) or not 1 <= hello.protocol <= PROTOCOL:
            raise self._too_far()
        self._protocol = hello.protocol

    def _too_far(self) -> VariantError:
        hint = "compare with a commit closer to this one"
        return VariantError(f"variant `{self.name}` uses another version of the bench protocol", hint=hint)

    async def load(self, on_loading: Callable[[Loading], None]) -> Loaded:
        if self._request.requests is not None and self._protocol < PROTOCOL:
            raise self._too_far()
        await self._send(self._request, "loading")
        while True:
            reply = await self._receive("loading", None)
            if isinstance(reply, Loaded):
                return reply
            if isinstance(reply, Loading):
                on_loading(reply)

    async def run(self, number: int, *, when: str, outputs: Path | None = None, timeout_s: float | None = None) -> Ran:
        """Run one iteration. `when` names the current activity in an error message (`block 3`)."""
        await self._send(Run(number, None if outputs is None else str(outputs)), when)
        while True:
            reply = await self._receive(when, timeout_s)
            if isinstance(reply, Ran):
                return reply

    async def close(self) -> None:
        """Let the process end its stages, and kill it if it does not. Safe to call twice."""
        if self._closed:
            return
        self._closed = True
        if self._started is not None:
            with contextlib.suppress(OSError):
                self._stdin.write(encode(Close()) + b"\n")
                # A process that is busy loading or running reads no request, but notices the end of stdin.
                self._stdin.close()
            try:
                await asyncio.wait_for(self._process.wait(), CLOSE_GRACE_S)
            except TimeoutError:
                self.kill()
                await self._process.wait()
        self._log.close()

    def kill(self) -> None:
        """Kill the process; its stages notice and end themselves."""
        if self._started is not None and self._started.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._started.pid, signal.SIGKILL)

    async def _send(self, request: Request, when: str) -> None:
        try:
            self._stdin.write(encode(request) + b"\n")
            await self._stdin.drain()
        except OSError as error:
            raise await self._describe_end(when) from error

    async def _receive(self, when: str, timeout_s: float | None) -> Reply:
        assert self._process.stdout is not None  # it is a pipe
        try:
            line = await asyncio.wait_for(self._process.stdout.readline(), timeout_s)
        except TimeoutError:
            self.kill()
            raise VariantError(
                f"variant `{self.name}` is considered hung ({when}): no answer within {timeout_s:.0f} s",
                hint="`-v` shows the output of its stages",
            ) from None
        if not line.endswith(b"\n"):
            raise await self._describe_end(when)
        reply: Reply = decode_reply(line)
        if isinstance(reply, Failed):
            failure = reply.failure
            # A prompt that is too long for the model is a user error here as well.
            code = failure.error(self.name).exit_code
            message = f"variant `{self.name}` failed ({when}): {failure.message}"
            error = VariantError(message, hint=failure.hint, exit_code=code)
            error.details = failure.details
            raise error
        return reply

    async def _describe_end(self, when: str) -> VariantError:
        code = await self._process.wait()
        tail = self._log.tail(_LOG_LINES)
        module = find_worker(self.config.code)
        if f"No module named {module}" in tail or "No module named 'omni_cli.measure'" in tail:
            return VariantError(
                f"variant `{self.name}`: that commit's omni cannot be measured: it has no `{module}`",
                hint="name a newer commit",
            )
        reason = f"was killed ({signal.Signals(-code).name})" if code < 0 else f"ended (exit code {code})"
        hint = None
        if code == -signal.SIGKILL:
            hint = "the system kills processes when memory runs out: free some memory, or use smaller settings"
        error = VariantError(f"variant `{self.name}` {reason} ({when})", hint=hint)
        error.details = tail or None
        return error


def child_environment(base: Mapping[str, str], config: VariantConfig) -> dict[str, str]:
    """Return the environment of a variant's Python; an empty value unsets a variable."""
    given = config.environment
    environment = {name: value for name, value in {**base, **given}.items() if value or name not in given}
    root = config.code or Path(omni_cli.__file__).parents[1]
    # A path beside the standard library would shadow parts of it, and Python finds it there without help.
    if config.code is not None or str(root) not in _site_folders():
        paths = [str(root), *filter(None, [environment.get("PYTHONPATH")])]
        environment["PYTHONPATH"] = os.pathsep.join(paths)
    return environment


def _site_folders() -> set[str]:
    return {*site.getsitepackages(), site.getusersitepackages(), sysconfig.get_path("purelib")}
