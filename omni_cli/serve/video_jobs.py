"""Run video jobs in the background: they go on when the client that created them has disconnected."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from contextlib import aclosing

from omni_cli.errors import OmniError
from omni_cli.outputs import GenerateRequest, RequestResult, StageProgress, VideoOutput
from omni_cli.serve.errors import APIError, as_api_error, queue_full
from omni_cli.serve.exchange import Exchange
from omni_cli.serve.service import Service
from omni_cli.serve.video_store import Job, JobError, StoreFull, VideoStore

VIDEOS = "/v1/videos"
_STOPPED = JobError("server_stopped", "the server stopped before the video was finished")


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
            try:
                job = await asyncio.to_thread(self.store.add, name, request.prompt or "", seconds=seconds, size=size)
            except StoreFull:
                raise queue_full("all videos that this server may keep are running or waiting") from None
            except OSError as error:
                raise APIError(500, f"the video cannot be stored: {error.strerror}", code="storage_failed") from error
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
        exchange = Exchange(job_id, "JOB", VIDEOS, None, asyncio.get_running_loop().time(), math.inf, VIDEOS)
        try:
            await self._make(request, job_id, exchange)
        except (OmniError, APIError) as failure:
            error = as_api_error(failure)
            self._fail(job_id, JobError(error.kind, error.message), exchange)
        except OSError as failure:
            message = f"the video cannot be stored: {failure.strerror}"
            self._fail(job_id, JobError("storage_failed", message), exchange)
        except asyncio.CancelledError:
            self._fail(job_id, _STOPPED, exchange)
            raise
        except Exception as failure:  # noqa: BLE001 - a fault of ours, which must not end the server
            self._service.log.failure(exchange, failure)
            self._fail(job_id, JobError("internal_error", "internal error"), exchange)
        finally:
            status = "completed" if exchange.error is None else "failed"
            fields = exchange.notes if exchange.error is None else {"error": exchange.error}
            duration_s = round(exchange.elapsed_s(), 6)
            self._service.log.event("video", request_id=job_id, status=status, duration_s=duration_s, **fields)

    async def _make(self, request: GenerateRequest, job_id: str, exchange: Exchange) -> None:
        async with aclosing(self._service.events(request, exchange)) as events:
            async for event in events:
                if isinstance(event, StageProgress) and event.unit == "step":
                    exchange.deadline_s = min(exchange.deadline_s, self._deadline_s())
                    self.store.progress(job_id, 100 * event.done // (event.total or event.done))
                elif isinstance(event, RequestResult):
                    video = get_video(event)
                    await asyncio.to_thread(
                        self.store.finish,
                        job_id,
                        video.content,
                        video.preview,
                        seconds=f"{video.num_frames / float(video.fps):g}",
                        size=f"{video.width}x{video.height}",
                    )

    def _deadline_s(self) -> float:
        return asyncio.get_running_loop().time() + self._service.limits.timeout_s

    def _fail(self, job_id: str, error: JobError, exchange: Exchange) -> None:
        exchange.error = error.code
        self._service.metrics.video_failed(error.code)
        self.store.fail(job_id, error)


def get_video(result: RequestResult) -> VideoOutput:
    return next(output for output in result.outputs if isinstance(output, VideoOutput))
