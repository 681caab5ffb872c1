"""Build and download checkpoints in a separate process, so that the command's never imports torch."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import traceback
from multiprocessing.connection import Connection
from pathlib import Path

from omni_cli.checkpoints.resolve import resolve_model
from omni_cli.engine.process.fork_server import NO_MAIN_GUARD, ForkServer, start_process
from omni_cli.engine.process.process_group import become_group_leader
from omni_cli.errors import OmniError
from omni_cli.machine_limits import known_failure
from omni_cli.stage.messages import Failure


async def provide_in_child(model: str, fork_server: ForkServer) -> Path:
    """Return the folder of a `builtin:NAME` that has to be built, or of a repo id, from a child process.

    Raises `OmniError`. When cancelled, it ends the process.
    """
    context = fork_server.start()
    ours, theirs = context.Pipe()
    process = context.Process(target=_provide, args=(model, theirs), name="omni-checkpoint")
    # Shielded, because a thread cannot be cancelled.
    starting = asyncio.ensure_future(asyncio.to_thread(start_process, process))
    receiving: asyncio.Future[str | Failure | None] | None = None
    try:
        await asyncio.shield(starting)
        theirs.close()
        receiving = asyncio.ensure_future(asyncio.to_thread(_receive, ours))
        outcome = await asyncio.shield(receiving)
    except asyncio.CancelledError:
        if not starting.done():
            fork_server.stop()  # a process that it starts now would be too late
            await asyncio.wait([starting])
        if starting.exception() is None:
            process.kill()
            await asyncio.to_thread(process.join)
        raise
    finally:
        theirs.close()
        if receiving is not None:
            await receiving
        ours.close()
    if outcome is None:
        await asyncio.to_thread(process.join)
        hint = NO_MAIN_GUARD if process.exitcode == 1 else "check that enough memory is free"
        raise OmniError(f"the process that provides `{model}` ended unexpectedly", hint=hint)
    if isinstance(outcome, Failure):
        raise outcome.error("checkpoint")
    return Path(outcome)


def _receive(connection: Connection) -> str | Failure | None:
    try:
        outcome: str | Failure = connection.recv()
    except EOFError:
        return None
    return outcome


def _provide(model: str, connection: Connection) -> None:
    """Entry point of the process."""
    become_group_leader()
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    threading.Thread(target=end_with_the_command, args=(connection,), daemon=True).start()
    outcome: str | Failure
    try:
        outcome = resolve_model(model)
    except Exception as error:  # noqa: BLE001 - whatever a library raises while building must reach the user
        known = known_failure(error) or OmniError(f"{type(error).__name__}: {error}")
        outcome = Failure.of(known, details=traceback.format_exc())
    connection.send(outcome)


def end_with_the_command(connection: Connection) -> None:
    """End this process when the command ends, even if it is killed: its pipe, which carries no data, is then closed."""
    try:
        connection.recv()
    except (EOFError, OSError):
        os.killpg(0, signal.SIGKILL)
