"""Built-in checkpoints are built in a process of their own, so that the command's never imports torch."""

from __future__ import annotations

import asyncio
import os
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext

from omni_cli.engine.messages import Failure
from omni_cli.errors import CheckpointError, OmniError
from omni_cli.models.checkpoints import is_built, resolve_model


async def resolve_in_child(model: str, context: BaseContext) -> str:
    """`resolve_model`, in a child process where something has to be built. Raises `OmniError`."""
    if is_built(model):
        return resolve_model(model)
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_build, args=(model, theirs), name="omni-build")
    await asyncio.to_thread(process.start)
    theirs.close()
    try:
        outcome = await asyncio.to_thread(_outcome, ours)
    finally:
        process.kill()
        await asyncio.to_thread(process.join)
    if isinstance(outcome, Failure):
        raise outcome.error("build")
    return outcome


def _outcome(connection: Connection) -> str | Failure:
    try:
        return connection.recv()
    except EOFError:
        return Failure.of(CheckpointError("the process that builds the checkpoint ended unexpectedly"))


def _build(model: str, connection: Connection) -> None:
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    try:
        connection.send(resolve_model(model))
    except OmniError as error:
        connection.send(Failure.of(error))
