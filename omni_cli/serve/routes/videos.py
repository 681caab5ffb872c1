"""`/v1/videos`: videos as jobs, which clients poll, or in the answer to one request."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Literal

from fastapi import APIRouter, Query, Request
from starlette.convertors import StringConvertor, register_url_convertor
from starlette.responses import Response, StreamingResponse

from omni_cli.openai_api.replies import DeletedVideo, VideoList, VideoReply
from omni_cli.openai_api.routes import Route
from omni_cli.requests.contents import Media
from omni_cli.requests.encoding import encode_image
from omni_cli.requests.media.reading import FIRST_FRAME, MediaReader
from omni_cli.requests.outputs import GenerateRequest
from omni_cli.serve.errors import APIError
from omni_cli.serve.exchange import Exchange, new_id
from omni_cli.serve.media import MediaDecoder
from omni_cli.serve.parsed_route import MULTIPART, RUNNING, WITH_KEY, content, errors, parsed_routes
from omni_cli.serve.schemas.diffusion import VideoRequest
from omni_cli.serve.service import Service
from omni_cli.serve.video_jobs import JOB_ID, Job, VideoJobs, get_video

_MAX_PAGE = 100
_CHUNK_BYTES = 2**20


class _JobIdConvertor(StringConvertor):
    """So that `sync` is no id of a video, and has only its own methods."""

    regex = JOB_ID


register_url_convertor("video", _JobIdConvertor())
JobId = Annotated[str, Query(pattern=f"^{JOB_ID}$")]
Variant = Literal["video", "thumbnail", "spritesheet"]


def video_routes(service: Service, jobs: VideoJobs | None) -> APIRouter:
    """The routes that make videos; `jobs` is None for a profile that makes none, which returns 404."""
    router = parsed_routes()

    @router.post(Route.VIDEOS, responses=errors(*RUNNING))
    async def create_video(body: Annotated[VideoRequest, MULTIPART], request: Request) -> VideoReply:
        """Begin a video; it is made even if the client disconnects."""
        generate = await _generate_request(service, body, Exchange.from_scope(request.scope))
        service.check_ready()
        duration = generate.diffusion.get("duration")
        seconds = "auto" if duration is None else f"{duration:g}"
        running = _jobs(service, jobs)
        return _reply(running, await running.create(generate, seconds=seconds, size=body.size or "auto"))

    @router.post(
        Route.VIDEO_SYNC,
        response_class=Response,
        responses=errors(*RUNNING) | content("The video.", "video/mp4"),
    )
    async def create_video_sync(body: Annotated[VideoRequest, MULTIPART], request: Request) -> Response:
        """Make a video and send it, without a job."""
        generate = await _generate_request(service, body, Exchange.from_scope(request.scope))
        video = get_video(await service.result(generate, Exchange.from_scope(request.scope)))
        return Response(video.content, media_type="video/mp4")

    return router


def kept_video_routes(service: Service, jobs: VideoJobs | None) -> APIRouter:
    """The routes for the videos that the server keeps; `jobs` as for `video_routes`."""
    router = APIRouter()

    @router.get(Route.VIDEOS, responses=errors(400, 404, *WITH_KEY))
    async def list_videos(
        after: JobId | None = None,
        limit: Annotated[int, Query(ge=1, le=_MAX_PAGE)] = 20,
        order: Literal["asc", "desc"] = "desc",
    ) -> VideoList:
        """List videos, by default the newest first; `after` is the last id of the page before."""
        running = _jobs(service, jobs)
        page, has_more = running.store.page(after, limit, newest_first=order == "desc")
        data = [_reply(running, job) for job in page]
        first_id, last_id = (page[0].id, page[-1].id) if page else (None, None)
        return {"object": "list", "data": data, "first_id": first_id, "last_id": last_id, "has_more": has_more}

    @router.get(Route.VIDEO, responses=errors(404, *WITH_KEY))
    async def retrieve_video(video_id: str) -> VideoReply:
        """Report a video's state; `progress` is the percentage of its denoising steps."""
        running = _jobs(service, jobs)
        return _reply(running, _find(running, video_id))

    @router.delete(Route.VIDEO, responses=errors(404, *WITH_KEY))
    async def delete_video(video_id: str) -> DeletedVideo:
        """Remove a video; one that is still being made ends."""
        running = _jobs(service, jobs)
        _find(running, video_id)
        try:
            await running.remove(video_id)
        except OSError as error:
            raise APIError(500, f"the video cannot be removed: {error.strerror}", code="storage_failed") from error
        return {"id": video_id, "object": "video.deleted", "deleted": True}

    @router.get(
        Route.VIDEO_CONTENT,
        response_class=Response,
        responses=errors(400, 404, *WITH_KEY) | content("The file.", "video/mp4", "image/webp"),
    )
    async def video_content(video_id: str, variant: Variant = "video") -> Response:
        """Send a finished video as MP4, its first frame or some of its frames as WebP."""
        running = _jobs(service, jobs)
        job = _find(running, video_id)
        if job.status != "completed":
            detail = f": {job.error.message}" if job.error is not None else f" ({job.progress}%)"
            raise APIError(404, f"the video is {job.status}{detail}", code=f"video_{job.status}")
        path = running.store.path(job.id, "webp" if variant == "spritesheet" else "mp4")
        try:
            file = path.open("rb")
        except OSError as error:
            raise _not_found(video_id) from error
        if variant == "thumbnail":
            return Response(await asyncio.to_thread(_thumbnail, file), media_type="image/webp")
        return _send(file, path, "image/webp" if variant == "spritesheet" else "video/mp4")

    return router


async def _generate_request(service: Service, body: VideoRequest, exchange: Exchange) -> GenerateRequest:
    """Check a request and decode its image, before it may wait."""
    service.check_model(body.model)
    service.check_makes("video")
    service.check_prompt_length(body.num_prompt_chars)
    medium = "image" if "image" in service.capabilities.fields else "video"
    service.check_given(set() if body.input_reference is None else {medium}, {medium: "input_reference"})
    return GenerateRequest(
        request_id=new_id("video"),
        prompt=body.prompt,
        lora=service.adapter(body.model),
        seed=service.choose_seed(body.seed, exchange),
        modalities=frozenset({"video"}),
        diffusion=body.diffusion(),
        **await service.decode(partial(_media, body, medium)),
    )


def _media(body: VideoRequest, medium: str, decoder: MediaDecoder) -> dict[str, Any]:
    if body.input_reference is None:
        return {}
    file = body.input_reference.file
    if medium == "video":
        media = Media(videos=(decoder.video_file(file, "input_reference"),))
    else:
        media = Media(images=(decoder.image_file(file, "input_reference"),))
    return {"media": media, "notes": tuple(decoder.notes)}


def _jobs(service: Service, jobs: VideoJobs | None) -> VideoJobs:
    service.check_makes("video")
    assert jobs is not None
    return jobs


def _find(jobs: VideoJobs, video_id: str) -> Job:
    job = jobs.store.get(video_id)
    if job is None:
        raise _not_found(video_id)
    return job


def _not_found(video_id: str) -> APIError:
    return APIError(404, f"no video `{video_id}`; it may have expired", code="video_not_found", param="video_id")


def _reply(jobs: VideoJobs, job: Job) -> VideoReply:
    error = job.error
    return {
        "id": job.id,
        "object": "video",
        "model": job.model,
        "prompt": job.prompt,
        "status": job.status,
        "progress": job.progress,
        "seconds": job.seconds,
        "size": job.size,
        "created_at": job.created_at,
        "completed_at": job.completed_at,
        "expires_at": jobs.store.expires_at(job),
        "error": None if error is None else {"code": error.code, "message": error.message},
        "remixed_from_video_id": None,
    }


def _send(file: BinaryIO, path: Path, media_type: str) -> StreamingResponse:
    """Send an open file, which continues if it is removed meanwhile."""

    async def chunks() -> AsyncIterator[bytes]:
        with file:
            while chunk := await asyncio.to_thread(file.read, _CHUNK_BYTES):
                yield chunk

    length = file.seek(0, io.SEEK_END)
    file.seek(0)
    headers = {"Content-Length": str(length), "Content-Disposition": f'attachment; filename="{path.name}"'}
    return StreamingResponse(chunks(), media_type=media_type, headers=headers)


def _thumbnail(file: BinaryIO) -> bytes:
    with file:
        video = MediaReader(lambda _note: None).video(file, "video", choose=lambda *_: FIRST_FRAME)
    return encode_image(video.frames[0], "webp", 80)
