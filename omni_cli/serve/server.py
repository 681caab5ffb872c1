"""The server's life cycle: a port, an engine, requests, and an orderly shutdown."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import socket
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, TypeVar

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from omni_cli.config.schema import EngineConfig
from omni_cli.core.energy import open_meter
from omni_cli.requests.events import Event
from omni_cli.serve.app import create_app
from omni_cli.serve.exchange import AccessLog, Exchange, LibraryMessages
from omni_cli.serve.limits import ServerSettings
from omni_cli.serve.listener import BACKLOG
from omni_cli.serve.metrics import Metrics
from omni_cli.serve.service import Service
from omni_cli.serve.supervisor import Engine, Supervisor
from omni_cli.serve.video_jobs import VideoJobs, VideoStore
from omni_cli.serve.voice_store import VoiceStore

# Beside those of requests in flight. Beyond them uvicorn answers with 503.
_MAX_IDLE_CONNECTIONS = 4096
# At the server's end: a client may pause for a few seconds, which are counted while this process runs.
_STALLED_S, _STALLED_LOOKS = 1.0, 5
# Longer than clients keep an idle connection, because closing one under an arriving request is an error to the client.
_KEEP_ALIVE_S = 75
_LOGGERS = ("uvicorn.error", "asyncio")
Store = TypeVar("Store", VideoStore, VoiceStore)


class _Uvicorn(uvicorn.Server):
    """uvicorn without its signal handlers."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class _Connection(H11Protocol):
    """A connection that also sends trailers, and at the server's end does not wait for a client that reads nothing."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._send_event = self.conn.send
        self.conn.send = self._send  # type: ignore[assignment, method-assign]

    def _send(self, event: h11.Event) -> bytes | None:
        if isinstance(event, h11.EndOfMessage) and self.cycle is not None:
            event = h11.EndOfMessage(headers=Exchange.pop_trailers(dict(self.cycle.scope)))
        return self._send_event(event)

    def shutdown(self) -> None:
        super().shutdown()
        self._end_stalled(0, 0)

    def _end_stalled(self, unsent: int, num_looks: int) -> None:
        left = self.transport.get_write_buffer_size()
        num_looks = num_looks + 1 if left and left == unsent else 0
        if num_looks == _STALLED_LOOKS:
            self.transport.abort()
        elif self in self.connections:
            self.loop.call_later(_STALLED_S, self._end_stalled, left, num_looks)


def _max_connections(max_requests: int) -> int:
    """Return how many connections may be open, and raise the limit of open files as far as they need it.

    They use up to half of the open files; the engine, media and videos need the others.
    """
    requested = _MAX_IDLE_CONNECTIONS + max_requests
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < 2 * requested:
        soft = min(2 * requested, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return max(min(requested, soft // 2), 1)


class Server:
    """Serves one profile; single use."""

    def __init__(self, engine: Engine, config: EngineConfig, settings: ServerSettings, log: AccessLog) -> None:
        """`engine`, which runs `config`, is not yet started. Raises `UsageError` if videos cannot be stored."""
        self._settings = settings
        self._log = log
        metrics = Metrics(settings.limits.max_requests)
        self.supervisor = Supervisor(engine, on_log_event=log.event, metrics=metrics)
        folder, limits = settings.voices_dir, settings.limits
        voices = None if folder is None else self._open(VoiceStore(folder, limits.max_voices), "voice_unreadable")
        self.service = Service(config, self.supervisor, settings, metrics, log, voices)
        self._meter = open_meter()
        if self._meter.sources:
            metrics.watch_energy(self._meter)
        metrics.watch_stages(lambda: self.supervisor.stages)
        self._videos: VideoJobs | None = None
        if "video" in self.service.modalities:
            store = self._open(VideoStore(settings.output_dir, limits), "video_unreadable")
            self._videos = VideoJobs(self.service, store)
        self.app = create_app(self.service, self._videos)
        self._uvicorn = _Uvicorn(
            uvicorn.Config(
                self.app,
                http=_Connection,
                ws="none",
                loop="asyncio",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_keep_alive=_KEEP_ALIVE_S,
                limit_concurrency=_max_connections(settings.limits.max_requests),
                backlog=BACKLOG,
                timeout_graceful_shutdown=settings.drain_timeout_s,  # type: ignore[arg-type] # waits for fractions too
            )
        )

    def _open(self, store: Store, unreadable: str) -> Store:
        """Open a store, and log the names of records that it cannot read as events `unreadable`."""
        for name in store.open():
            self._log.event(unreadable, file=name)
        return store

    async def run(
        self,
        listener: socket.socket,
        stop: Awaitable[object],
        *,
        on_event: Callable[[Event], None],
        on_ready: Callable[[], None],
    ) -> None:
        """Answer from the start, load the stages, call `on_ready`, and serve until `stop`; then drain and end.

        Raises `OmniError` if the stages cannot be loaded. Afterwards no process of the engine is left.
        """
        messages = LibraryMessages(self._log)
        for name in _LOGGERS:
            logging.getLogger(name).addHandler(messages)
        serving = asyncio.create_task(self._uvicorn.serve([listener]))
        stopping = asyncio.ensure_future(stop)
        loading = asyncio.create_task(self.supervisor.start(on_event))
        try:
            await asyncio.wait({loading, stopping, serving}, return_when=asyncio.FIRST_COMPLETED)
            if loading.done():
                loading.result()
                on_ready()
                await asyncio.wait({stopping, serving}, return_when=asyncio.FIRST_COMPLETED)
            if serving.done():
                serving.result()
        finally:
            await self._end(serving, loading)

    async def _end(self, serving: asyncio.Task[None], loading: asyncio.Task[None]) -> None:
        was_serving = self.supervisor.state != "starting"
        if was_serving:
            self._log.event("draining", timeout_s=self._settings.drain_timeout_s)
        self.service.drain()
        self.app.stop_reading()
        self._uvicorn.should_exit = True
        loading.cancel()
        jobs = () if self._videos is None else (self._videos.drain(self._settings.drain_timeout_s),)
        await asyncio.gather(serving, loading, *jobs, return_exceptions=True)
        await self.supervisor.close()
        self._meter.close()
        if was_serving:
            self._log.event("stopped")
        for name in _LOGGERS:
            logging.getLogger(name).handlers.clear()
