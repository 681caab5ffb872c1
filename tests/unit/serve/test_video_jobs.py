"""Video jobs on an engine that does what its prompt says: their states, time limit and end with the server."""

from __future__ import annotations

import asyncio
import dataclasses
import io
import json
import resource
import signal
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from omni_cli.config.loader import load_profile
from omni_cli.core.errors import InputError, StageError
from omni_cli.requests.events import Event
from omni_cli.requests.outputs import GenerateRequest, RequestResult, StageInfo, StageProgress, VideoOutput
from omni_cli.serve.errors import APIError
from omni_cli.serve.exchange import AccessLog
from omni_cli.serve.limits import Limits, ServerSettings
from omni_cli.serve.metrics import Metrics
from omni_cli.serve.service import Service
from omni_cli.serve.supervisor import Supervisor
from omni_cli.serve.video_jobs import Job, VideoJobs, VideoStore

VIDEO = VideoOutput(b"mp4" * 100, b"webp", width=64, height=32, num_frames=17, fps=Fraction(16))
ERRORS = {
    "refused": InputError("`width` is wrong", hint="use another"),
    "failed": StageError("it failed", stage="video", request_id="0"),
    "lost": StageError("it is gone", stage="video"),
}


class ScriptedEngine:
    """Follows the words of a prompt."""

    stages: tuple[StageInfo, ...] = ()
    failed_stages: Mapping[str, StageError] = {}

    async def start(self, on_event: Callable[[Event], None] | None = None) -> None: ...

    async def close(self) -> None: ...

    async def restart(self, name: str) -> None: ...

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Event, None]:
        for word in request.prompt.split():
            if word == "wait":
                await asyncio.sleep(0.3)
            elif word == "crash":
                raise ZeroDivisionError
            elif word == "step":
                yield StageProgress(request.request_id, "video", 1, 4, "step")
            elif word in ERRORS:
                yield RequestResult(request.request_id, (), (), error=ERRORS[word])
                return
        yield RequestResult(request.request_id, (VIDEO,), ())


@dataclasses.dataclass
class Served:
    jobs: VideoJobs
    log: io.StringIO
    metrics: Metrics

    async def begin(self, prompt: str) -> str:
        request = GenerateRequest(prompt, prompt)
        return (await self.jobs.create(request, seconds="auto", size="auto")).id

    async def ended(self, prompt: str) -> Job:
        job_id = await self.begin(prompt)
        # The log's line comes last; the store has the result a moment before.
        while not any(line["request_id"] == job_id for line in self.lines("video")):
            await asyncio.sleep(0.01)
        return self.job(job_id)

    def job(self, job_id: str) -> Job:
        job = self.jobs.store.get(job_id)
        assert job is not None
        return job

    def lines(self, event: str) -> list[dict[str, Any]]:
        return [line for line in map(json.loads, self.log.getvalue().splitlines()) if line["event"] == event]


@asynccontextmanager
async def served(folder: Path, **limits: Any) -> AsyncIterator[Served]:
    bounds = Limits(**limits)
    stream = io.StringIO()
    log, metrics = AccessLog(stream), Metrics(bounds.max_requests)
    engine: Any = ScriptedEngine()  # nothing here puts it to sleep
    supervisor = Supervisor(engine, on_log_event=log.event, metrics=metrics)
    await supervisor.start(lambda _event: None)
    store = VideoStore(folder, bounds)
    store.open()
    jobs = VideoJobs(Service(load_profile("tiny-video"), supervisor, ServerSettings(bounds), metrics, log), store)
    yield Served(jobs, stream, metrics)
    await jobs.drain(0)


def test_a_job_is_made_and_counted(tmp_path: Path) -> None:
    async def check() -> None:
        async with served(tmp_path) as server:
            job = await server.ended("step step")
            assert (job.status, job.progress, job.seconds, job.size) == ("completed", 100, "1.0625", "64x32")
            assert server.jobs.store.path(job.id, "mp4").read_bytes() == VIDEO.content
            text = (await server.metrics.text()).decode()
            assert 'omni_video_jobs{status="completed"} 1.0' in text and "omni_videos_total 1.0" in text
            assert "omni_video_frames_total 17.0" in text and "omni_video_store_bytes 304.0" in text
            (line,) = server.lines("video")
            assert (line["request_id"], line["status"]) == (job.id, "completed")

    asyncio.run(check())


@pytest.mark.parametrize(
    ("prompt", "code", "message"),
    [
        ("refused", "invalid_request_error", "`width` is wrong (use another)"),
        ("step failed", "stage_failed", "stage `video` failed on this request"),
        ("lost", "engine_unavailable", "stage `video` has stopped and is being restarted"),
        ("crash", "internal_error", "internal error"),
    ],
)
def test_a_job_that_fails(tmp_path: Path, prompt: str, code: str, message: str) -> None:
    async def check() -> None:
        async with served(tmp_path) as server:
            job = await server.ended(prompt)
            assert job.status == "failed" and job.error is not None
            assert (job.error.code, job.error.message) == (code, message)
            assert f'omni_errors_total{{kind="{code}"}} 1.0' in (await server.metrics.text()).decode()
            assert bool(server.lines("failure")) is (prompt in ("crash", "step failed"))
            assert (await server.ended("step")).status == "completed"

    asyncio.run(check())


def test_the_time_limit_begins_with_the_first_step(tmp_path: Path) -> None:
    async def check() -> None:
        async with served(tmp_path, timeout_s=0.2) as server:
            assert (await server.ended("wait step")).status == "completed"
            job = await server.ended("step wait step")
            assert job.error is not None and job.error.code == "deadline_exceeded"

    asyncio.run(check())


def test_the_server_s_end_waits_for_jobs_and_then_fails_them(tmp_path: Path) -> None:
    async def check() -> None:
        async with served(tmp_path) as server:
            soon, late = await server.begin("step wait"), await server.begin("step" + " wait" * 20)
            await server.jobs.drain(2)
            assert server.job(soon).status == "completed"
            failed = server.job(late)
            assert failed.error is not None and failed.error.code == "server_stopped"
            assert [line["status"] for line in server.lines("video")] == ["completed", "failed"]

    asyncio.run(check())


def test_a_removed_job_ends(tmp_path: Path) -> None:
    async def check() -> None:
        async with served(tmp_path, max_requests=1) as server:
            job_id = await server.begin("step wait wait wait wait")
            with pytest.raises(APIError, match="1 videos are running or waiting"):
                await server.begin("step")
            await server.jobs.remove(job_id)
            assert server.jobs.store.get(job_id) is None
            assert (await server.ended("step")).status == "completed", "its place is free"

    asyncio.run(check())


def test_no_place_for_a_record(tmp_path: Path) -> None:
    async def check() -> None:
        async with served(tmp_path, max_videos=1) as server:
            await server.begin("step wait")
            with pytest.raises(APIError, match="all videos that this server may keep are running") as caught:
                await server.begin("step")
            assert (caught.value.status, caught.value.retry_after_s) == (429, 1)

    asyncio.run(check())


def test_a_disk_that_is_full_at_the_end(tmp_path: Path) -> None:
    async def check() -> None:
        async with served(tmp_path) as server:
            job_id = await server.begin("step wait")
            resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
            while not server.job(job_id).has_ended:
                await asyncio.sleep(0.01)
            error = server.job(job_id).error
            assert error is not None and error.code == "storage_failed" and "File too large" in error.message
            assert not server.jobs.store.path(job_id, "mp4").exists()
            with pytest.raises(APIError, match="the video cannot be stored: File too large"):
                await server.begin("step")
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
            assert (await server.ended("step")).status == "completed"

    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        asyncio.run(check())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)
