"""End hung stages: those that do not finish loading, and those that have requests but make no progress."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from omni_cli.engine.process.stage_client import StageClient

_INTERVAL_S = 0.5


class Watchdog:
    """`clients()` are the stages to watch; `give_up(name, reason, hint)` ends one and its requests."""

    def __init__(self, clients: Callable[[], Iterable[StageClient]], give_up: Callable[[str, str, str], None]) -> None:
        self._clients = clients
        self._give_up = give_up

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            await asyncio.sleep(_INTERVAL_S)
            for client in list(self._clients()):
                found = _hangs(client)
                if found is not None:
                    reason, key = found
                    await self._end(client, reason, key)

    async def _end(self, client: StageClient, reason: str, key: str) -> None:
        stacks = await client.write_stacks()
        if _hangs(client) is None:  # it has continued or ended while its stacks were written
            if stacks is not None:
                stacks.unlink(missing_ok=True)
            return
        where = f"the stacks of its threads are in {stacks}; " if stacks is not None else ""
        self._give_up(client.name, reason, f"{where}`--set {client.name}.{key}=SECONDS` gives it more time")


def _hangs(client: StageClient) -> tuple[str, str] | None:
    """Return (reason, the key that sets the limit)."""
    stage = client.spec.stage
    if client.loading_s is not None and client.loading_s > stage.load_timeout_s:
        return f"not loaded after {client.loading_s:.0f} s", "load_timeout_s"
    if client.silent_s is not None and client.silent_s > stage.step_timeout_s:
        return f"no progress on its requests for {client.silent_s:.0f} s", "step_timeout_s"
    return None
