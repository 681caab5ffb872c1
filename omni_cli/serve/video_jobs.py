"""Video jobs: a folder with their records and files, each written whole or not at all, and their runs in the
background, which go on when the client that created them has disconnected.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import math
import re
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import IO, Literal

import msgspec

from omni_cli.core.errors import OmniError, UsageError
from omni_cli.core.files import cannot_write, check_writable, remove_left_behind, write_whole
from omni_cli.openai_api.routes import Route
from omni_cli.requests.outputs import GenerateRequest, RequestResult, StageProgress, VideoOutput
from omni_cli.serve.conversation import get_output
from omni_cli.serve.errors import APIError, as_api_error, naming, queue_full, storing
from omni_cli.serve.exchange import Exchange
from omni_cli.serve.limits import MIB, Limits
from omni_cli.serve.schemas.diffusion import SECONDS
from omni_cli.serve.service import Service

JOB_ID = r"video_[0-9a-f]{32}"
_FILE = re.compile(rf"({JOB_ID})\.(json|mp4|webp)", re.ASCII)

Status = Literal["queued", "in_progress", "completed", "failed"]
Asset = Literal["mp4", "webp"]


class JobError(msgspec.Struct, frozen=True):
    code: str
    message: str


_STOPPED_ERROR = JobError("server_stopped", "the server stopped before the video was finished")


class Job(msgspec.Struct, frozen=True):
    """One video to be made, being made, or made; times are seconds since the epoch.

    `seconds` and `size` are `auto` until the video shows what the model chose. `num_bytes` is the size of its files.
    """

    id: str
    model: str
    prompt: str
    created_at: int
    seconds: str = "auto"
    size: str = "auto"
    status: Status = "queued"
    progress: int = 0
    completed_at: int | None = None
    error: JobError | None = None
    num_bytes: int = 0

    @property
    def has_ended(self) -> bool:
        return self.status in ("completed", "failed")


class VideoStore:
    """At most `max_videos` jobs, whose files have at most `max_videos_bytes`, until `max_videos_age_s` after their
    end; the oldest ones that have ended make room for new ones.

    Jobs are ordered by their ids, which begin with the time. Methods may be called from several threads.
    """

    def __init__(self, folder: Path, limits: Limits, now: Callable[[], float] = time.time) -> None:
        self.folder = folder
        self._limits = limits
        self._now = now
        self._jobs: dict[str, Job] = {}
        self._lock = threading.Lock()
        self._owner: IO[bytes] | None = None

    def open(self) -> tuple[str, ...]:
        """Create the folder or find its jobs; those that a server did not finish have failed.

        Return the names of records that cannot be read, which are left alone. Raises `UsageError` for a folder that
        cannot be written or that another server has.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._owner = (self.folder / ".omni-serve").open("wb")
            fcntl.flock(self._owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
            check_writable(self.folder)
        except BlockingIOError as error:
            hint = "choose another folder with `--output-dir`"
            raise UsageError(f"another server keeps its videos in `{self.folder}`", hint=hint) from error
        except (OSError, ValueError) as error:
            raise cannot_write(self.folder, error) from error
        unreadable = tuple(self._load())
        for job in list(self._jobs.values()):
            if not job.has_ended:
                self.fail(job.id, _STOPPED_ERROR)
        self.expire()
        return unreadable

    def close(self) -> None:
        """Leave the folder to another server."""
        if self._owner is not None:
            self._owner.close()
            self._owner = None

    @property
    def jobs(self) -> tuple[Job, ...]:
        """All jobs, the oldest first."""
        return tuple(sorted(self._jobs.values(), key=lambda job: job.id))

    @property
    def num_bytes(self) -> int:
        return sum(job.num_bytes for job in self.jobs)

    def get(self, job_id: str) -> Job | None:
        self.expire()
        return self._jobs.get(job_id)

    def page(self, after: str | None, limit: int, *, newest_first: bool) -> tuple[tuple[Job, ...], bool]:
        """The jobs that follow `after`, which may be gone, and whether there are more of them."""
        self.expire()
        jobs = self.jobs[::-1] if newest_first else self.jobs
        if after is not None:
            jobs = tuple(job for job in jobs if (job.id < after if newest_first else job.id > after))
        return jobs[:limit], len(jobs) > limit

    def expires_at(self, job: Job) -> int | None:
        """The time at which an ended job is removed."""
        return None if job.completed_at is None else math.ceil(job.completed_at + self._limits.max_videos_age_s)

    def path(self, job_id: str, asset: Asset) -> Path:
        return self.folder / f"{job_id}.{asset}"

    def add(self, model: str, prompt: str, *, seconds: str, size: str) -> Job:
        """Add a job. Raises `APIError` (429) if no ended job can make room, `OSError` if it cannot be written."""
        self.expire()
        now = self._now()
        job_id = f"video_{int(now * 1e9):016x}{secrets.token_hex(8)}"
        job = Job(job_id, model, prompt, int(now), seconds, size)
        with self._lock:
            while len(self._jobs) >= self._limits.max_videos:
                if not self._remove_oldest():
                    raise queue_full("all videos that this server may keep are running or waiting")
            self._write(job)
        return job

    def progress(self, job_id: str, percent: int) -> None:
        """Note how far a job is, in memory only: after a restart it would have failed."""
        job = self._jobs.get(job_id)
        if job is not None and not job.has_ended:
            percent = max(job.progress, min(percent, 99))
            self._jobs[job_id] = msgspec.structs.replace(job, status="in_progress", progress=percent)

    def finish(self, job_id: str, content: bytes, preview: bytes, *, seconds: str, size: str) -> None:
        """Keep the files of a job, unless it has been removed meanwhile.

        Raises `OmniError` for a video larger than all of them may be together, `OSError` if it cannot be written.
        """
        num_bytes, limit = len(content) + len(preview), self._limits.max_videos_bytes
        if num_bytes > limit:
            raise OmniError(f"the video has {num_bytes / MIB:.1f} MiB; this server keeps {limit / MIB:.1f} MiB at most")
        with self._lock:
            job = self._jobs.get(job_id)
            if job is None:
                return
            while self.num_bytes + num_bytes > limit and self._remove_oldest():
                pass
            try:
                write_whole(self.path(job_id, "mp4"), content)
                write_whole(self.path(job_id, "webp"), preview)
                self._write(
                    msgspec.structs.replace(
                        job,
                        status="completed",
                        progress=100,
                        completed_at=int(self._now()),
                        seconds=seconds,
                        size=size,
                        num_bytes=num_bytes,
                    )
                )
            except OSError:
                self._remove_files(job_id)
                raise

    def fail(self, job_id: str, error: JobError) -> None:
        """End a job without a video. If its record cannot be written, it is one of an unfinished job, which means the
        same after a restart.
        """
        with self._lock:
            job = self._jobs.get(job_id)
            if job is None or job.has_ended:
                return
            failed = msgspec.structs.replace(job, status="failed", completed_at=int(self._now()), error=error)
            self._jobs[job_id] = failed
            with contextlib.suppress(OSError):
                self._write(failed)

    def remove(self, job_id: str) -> None:
        """Remove a job and its files. Raises `OSError`."""
        with self._lock:
            self._remove(job_id)

    def expire(self) -> None:
        """Remove the jobs that are too old; those that cannot be removed, or while files are written, next time."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            for job in self.jobs:
                expires_at = self.expires_at(job)
                if expires_at is not None and expires_at <= self._now():
                    with contextlib.suppress(OSError):
                        self._remove(job.id)
        finally:
            self._lock.release()

    def _load(self) -> Iterator[str]:
        """Read the records; yield the names of those that cannot be read."""
        others: list[Path] = []
        known: set[str] = set()
        remove_left_behind(self.folder)
        for path in sorted(self.folder.iterdir()):
            name = _FILE.fullmatch(path.name)
            if name is not None and name[2] != "json":
                others.append(path)
            elif name is not None:
                known.add(name[1])
                try:
                    job = msgspec.json.decode(path.read_bytes(), type=Job)
                    if job.id != name[1]:
                        raise ValueError("a record with another id")
                    self._jobs[job.id] = job
                except (OSError, ValueError):
                    yield path.name
        for path in others:
            # Written before its record, or removed after it.
            if path.stem not in known:
                path.unlink(missing_ok=True)

    def _write(self, job: Job) -> None:
        write_whole(self.folder / f"{job.id}.json", msgspec.json.encode(job))
        self._jobs[job.id] = job

    def _remove_oldest(self) -> bool:
        """Remove the oldest job that has ended; False if there is none."""
        ended = next((job for job in self.jobs if job.has_ended), None)
        if ended is not None:
            self._remove(ended.id)
        return ended is not None

    def _remove(self, job_id: str) -> None:
        (self.folder / f"{job_id}.json").unlink(missing_ok=True)
        self._jobs.pop(job_id, None)
        self._remove_files(job_id)

    def _remove_files(self, job_id: str) -> None:
        assets: tuple[Asset, ...] = ("mp4", "webp")
        for asset in assets:
            self.path(job_id, asset).unlink(missing_ok=True)


class VideoJobs:
    """The jobs of a server, in a store that is open. Their number is limited like that of requests in flight."""

    def __init__(self, service: Service, store: VideoStore) -> None:
        self.store = store
        self._service = service
        self._running: dict[str, asyncio.Task[None]] = {}
        self._creating = asyncio.Lock()
        service.metrics.watch_videos(lambda: Counter(job.status for job in store.jobs), lambda: store.num_bytes)

    async def create(self, request: GenerateRequest, *, seconds: str, size: str) -> Job:
        """Begin a job. Raises `APIError` if there are too many, or if the store cannot be written."""
        # A client that disconnects now must not leave a job that nobody runs.
        return await asyncio.shield(self._create(request, seconds, size))

    async def _create(self, request: GenerateRequest, seconds: str, size: str) -> Job:
        async with self._creating:
            if len(self._running) >= self._service.limits.max_requests:
                raise queue_full(f"{len(self._running)} videos are running or waiting, the maximum of this server")
            name = self._service.config.name
            with storing("the video cannot be stored"):
                job = await asyncio.to_thread(self.store.add, name, request.prompt or "", seconds=seconds, size=size)
            task = asyncio.create_task(self._run(request, job.id))
            self._running[job.id] = task
            # Not at the end of `_run`, which a task that is cancelled at once never begins.
            task.add_done_callback(lambda _task: self._running.pop(job.id))
        return job

    async def remove(self, job_id: str) -> None:
        """End a job, if it is running, and remove it. Raises `OSError`."""
        task = self._running.get(job_id)
        if task is not None:
            task.cancel()
            await asyncio.wait({task})
        await asyncio.to_thread(self.store.remove, job_id)

    async def drain(self, timeout_s: float) -> None:
        """Wait for running jobs, then end the others as failed."""
        tasks = set(self._running.values())
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=timeout_s)
            for task in late:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        self.store.close()

    async def _run(self, request: GenerateRequest, job_id: str) -> None:
        # Waiting for other videos has no time limit; it begins with the first step.
        exchange = Exchange(
            job_id, "JOB", Route.VIDEOS, None, asyncio.get_running_loop().time(), math.inf, Route.VIDEOS
        )
        try:
            with storing("the video cannot be stored"), naming(SECONDS):
                await self._make(request, job_id, exchange)
        except asyncio.CancelledError:
            self._fail(job_id, _STOPPED_ERROR, exchange)
            raise
        except Exception as failure:  # noqa: BLE001 - also a fault of ours must not end the server
            if not isinstance(failure, OmniError | APIError):
                self._service.log.failure(exchange, failure)
            error = as_api_error(failure)
            self._fail(job_id, JobError(error.kind, error.message), exchange)
        finally:
            status = "completed" if exchange.error is None else "failed"
            fields = exchange.notes if exchange.error is None else {"error": exchange.error}
            duration_s = round(exchange.elapsed_s(), 6)
            self._service.log.event("video", request_id=job_id, status=status, duration_s=duration_s, **fields)

    async def _make(self, request: GenerateRequest, job_id: str, exchange: Exchange) -> None:
        async with aclosing(self._service.events(request, exchange)) as events:
            async for event in events:
                if isinstance(event, StageProgress) and event.unit == "step":
                    began_s = asyncio.get_running_loop().time()
                    exchange.deadline_s = min(exchange.deadline_s, began_s + self._service.limits.timeout_s)
                    self.store.progress(job_id, 100 * event.done // (event.total or event.done))
                elif isinstance(event, RequestResult):
                    video = get_output(VideoOutput, event)
                    await asyncio.to_thread(
                        self.store.finish,
                        job_id,
                        video.content,
                        video.preview,
                        seconds=f"{video.num_frames / float(video.fps):g}",
                        size=f"{video.width}x{video.height}",
                    )

    def _fail(self, job_id: str, error: JobError, exchange: Exchange) -> None:
        exchange.error = error.code
        self._service.metrics.video_failed(error.code)
        self.store.fail(job_id, error)
