"""Images, from a prompt or from a prompt and images; and videos, as jobs that clients poll or in the answer itself."""

from __future__ import annotations

import asyncio
import base64
import io
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Literal, cast

import msgspec
from fastapi import APIRouter, Query, Request
from starlette.convertors import StringConvertor, register_url_convertor
from starlette.responses import JSONResponse, Response, StreamingResponse

from omni_cli.openai_api.replies import Deleted, ImageItem, ImagesReply, VideoList, VideoReply
from omni_cli.openai_api.routes import Route
from omni_cli.requests.contents import Media
from omni_cli.requests.encoding import encode_image
from omni_cli.requests.media.reading import FIRST_FRAME, MediaReader
from omni_cli.requests.outputs import GenerateRequest, ImageOutput, RequestResult, VideoOutput
from omni_cli.serve.conversation import get_output, stage_times
from omni_cli.serve.errors import APIError, naming, refuse, storing
from omni_cli.serve.exchange import Exchange, new_id, unix_now
from omni_cli.serve.media import MediaDecoder
from omni_cli.serve.parsed_route import MULTIPART, RUNNING, WITH_KEY, content, errors, parsed_routes
from omni_cli.serve.schemas.diffusion import (
    SECONDS,
    SIZE,
    DiffusionBody,
    ImageEditRequest,
    ImageFields,
    ImageRequest,
    VideoRequest,
)
from omni_cli.serve.service import Service, seeded_copies
from omni_cli.serve.video_jobs import JOB_ID, Job, VideoJobs

_MAX_PAGE = 100
_CHUNK_BYTES = 2**20


class _JobIdConvertor(StringConvertor):
    """So that `sync` is no id of a video, and has only its own methods."""

    regex = JOB_ID


register_url_convertor("video", _JobIdConvertor())
JobId = Annotated[str, Query(pattern=f"^{JOB_ID}$")]
Variant = Literal["video", "thumbnail", "spritesheet"]


def image_routes(service: Service) -> APIRouter:
    router = parsed_routes()

    @router.post(Route.IMAGES, response_model=ImagesReply, responses=errors(*RUNNING))
    async def images_generations(body: ImageRequest, request: Request) -> Response:
        """Make images; of several, the first has the request's seed, each following one the next seed."""
        _check_images(service, body)
        if {*service.capabilities.needed_files} - {"control_image"}:
            raise service.make_refusal("makes images from images: use /v1/images/edits")
        given = ["control_image"] if body.control_image else []
        service.check_given({*given, *body.diffusion()}, SIZE)
        return await _reply_images(service, body, request, await service.decode(partial(_decode_controls, body)))

    @router.post(Route.IMAGE_EDITS, response_model=ImagesReply, responses=errors(*RUNNING))
    async def images_edits(body: Annotated[ImageEditRequest, MULTIPART], request: Request) -> Response:
        """Change images: all of them, or the first one where the mask is transparent."""
        _check_images(service, body)
        if "image" not in service.capabilities.fields:
            raise service.make_refusal("makes images from a prompt alone: use /v1/images/generations")
        if not body.images:
            raise APIError(400, "field `image` is missing", code="missing_required_parameter", param="image")
        optional = {"mask": body.mask is not None, "control_image": bool(body.control_image)}
        given = [name for name, is_present in optional.items() if is_present]
        service.check_given({"image", *given, *body.diffusion()}, SIZE)
        return await _reply_images(service, body, request, await service.decode(partial(_decode_edit, body)))

    return router


async def _reply_images(service: Service, body: ImageFields, request: Request, media: dict[str, Any]) -> Response:
    exchange = Exchange.from_scope(request.scope)
    requests = seeded_copies(_generate_request(service, body, "image", exchange, media), body.n or 1)
    results = await service.results(requests, exchange)
    data = await asyncio.to_thread(lambda: [item for result in results for item in _items(result, body)])
    reply: ImagesReply = {
        "created": unix_now(),
        "output_format": body.image_format,
        "data": data,
        "seed": requests[0].seed,
    }
    if body.return_stage_times:
        reply["stages"] = stage_times(results[0])
    return JSONResponse(reply)


def _decode_controls(body: ImageRequest, decoder: MediaDecoder) -> dict[str, Any]:
    urls = body.control_image or []
    images = tuple(decoder.image(url, "control_image") for url in ([urls] if isinstance(urls, str) else urls))
    return {"media": Media(control_images=images), "notes": tuple(decoder.notes)}


def _decode_edit(body: ImageEditRequest, decoder: MediaDecoder) -> dict[str, Any]:
    images = tuple(decoder.image(upload.file, param) for param, upload in body.images)
    mask = None if body.mask is None else decoder.mask(body.mask.file, "mask")
    controls = tuple(decoder.image(upload.file, "control_image") for upload in body.control_image)
    media = Media(images=images, mask=mask, control_images=controls)
    return {"media": media, "notes": tuple(decoder.notes)}


def _check_images(service: Service, body: ImageFields) -> None:
    service.check(body.model, "image", body.num_prompt_chars)
    limit = service.limits.max_n
    is_vain = body.image_format == "png" and body.output_compression not in (None, 100)
    refuse(
        ("n", body.n is not None and body.n > limit, f"`n` may be at most {limit}"),
        ("output_compression", is_vain, "`output_compression` needs `output_format: jpeg` or `webp`"),
    )


def _generate_request(
    service: Service,
    body: DiffusionBody,
    modality: Literal["image", "video"],
    exchange: Exchange,
    media: dict[str, Any],
) -> GenerateRequest:
    return GenerateRequest(
        request_id=new_id(modality),
        prompt=body.prompt,
        lora=service.adapter(body.model),
        seed=service.choose_seed(body.seed, exchange),
        modalities=frozenset({modality}),
        diffusion=body.diffusion(),
        **media,
    )


def _items(result: RequestResult, body: ImageFields) -> list[ImageItem]:
    """The images of one request, several with `num_images_per_prompt` in the profile."""
    images = [output for output in result.outputs if isinstance(output, ImageOutput)]
    quality = 100 if body.output_compression is None else body.output_compression
    encoded = [base64.b64encode(encode_image(image.pixels, body.image_format, quality)).decode() for image in images]
    if body.response_format == "url":
        return [{"url": f"data:image/{body.image_format};base64,{data}"} for data in encoded]
    return [{"b64_json": data} for data in encoded]


def video_routes(service: Service, jobs: VideoJobs | None) -> APIRouter:
    """The routes that make videos; `jobs` is None for a profile that makes none, which returns 404."""
    router = parsed_routes()

    @router.post(Route.VIDEOS, responses=errors(*RUNNING))
    async def create_video(body: Annotated[VideoRequest, MULTIPART], request: Request) -> VideoReply:
        """Begin a video; it is made even if the client disconnects."""
        generate = await _video_request(service, body, Exchange.from_scope(request.scope))
        service.check_ready()
        duration = generate.diffusion.get("duration")
        seconds = "auto" if duration is None else f"{duration:g}"
        running = _jobs(service, jobs)
        return _describe(running, await running.create(generate, seconds=seconds, size=body.size or "auto"))

    @router.post(
        Route.VIDEO_SYNC,
        response_class=Response,
        responses=errors(*RUNNING) | content("The video.", "video/mp4"),
    )
    async def create_video_sync(body: Annotated[VideoRequest, MULTIPART], request: Request) -> Response:
        """Make a video and send it, without a job."""
        generate = await _video_request(service, body, Exchange.from_scope(request.scope))
        with naming(SECONDS):
            video = get_output(VideoOutput, await service.result(generate, Exchange.from_scope(request.scope)))
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
        data = [_describe(running, job) for job in page]
        first_id, last_id = (page[0].id, page[-1].id) if page else (None, None)
        return {"object": "list", "data": data, "first_id": first_id, "last_id": last_id, "has_more": has_more}

    @router.get(Route.VIDEO, responses=errors(404, *WITH_KEY))
    async def retrieve_video(video_id: str) -> VideoReply:
        """Report a video's state; `progress` is the percentage of its denoising steps."""
        running = _jobs(service, jobs)
        return _describe(running, _find(running, video_id))

    @router.delete(Route.VIDEO, responses=errors(404, *WITH_KEY))
    async def delete_video(video_id: str) -> Deleted:
        """Remove a video; one that is still being made ends."""
        running = _jobs(service, jobs)
        _find(running, video_id)
        with storing("the video cannot be removed"):
            await running.remove(video_id)
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


async def _video_request(service: Service, body: VideoRequest, exchange: Exchange) -> GenerateRequest:
    """Check a request and decode its image, before it may wait."""
    service.check(body.model, "video", body.num_prompt_chars)
    medium = "image" if "image" in service.capabilities.fields else "video"
    given = [] if body.input_reference is None else [medium]
    arguments = body.diffusion()
    service.check_given({*given, *arguments}, {medium: "input_reference", **SECONDS, **SIZE})
    both = {"duration", "num_frames"} <= arguments.keys()
    refuse(("seconds", both, "`seconds` and `num_frames` exclude each other"))
    media = await service.decode(partial(_decode_reference, body, medium))
    return _generate_request(service, body, "video", exchange, media)


def _decode_reference(body: VideoRequest, medium: str, decoder: MediaDecoder) -> dict[str, Any]:
    if body.input_reference is None:
        return {}
    file = body.input_reference.file
    if medium == "video":
        media = Media(videos=(decoder.video(file, "input_reference"),))
    else:
        media = Media(images=(decoder.image(file, "input_reference"),))
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


def _describe(jobs: VideoJobs, job: Job) -> VideoReply:
    """Return a job with the fields that its record does not have; the route leaves out those of the record alone."""
    expires_at = jobs.store.expires_at(job)
    more = {"object": "video", "expires_at": expires_at, "remixed_from_video_id": None}
    return cast(VideoReply, msgspec.to_builtins(job) | more)


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
