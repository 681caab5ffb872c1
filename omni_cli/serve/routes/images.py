"""`POST /v1/images/generations` and `/v1/images/edits`: images from a prompt, or from a prompt and images."""

from __future__ import annotations

import asyncio
import base64
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from omni_cli.openai_api.replies import ImageItem, ImagesReply
from omni_cli.openai_api.routes import Route
from omni_cli.requests.contents import Media
from omni_cli.requests.encoding import encode_image
from omni_cli.requests.outputs import GenerateRequest, ImageOutput, RequestResult
from omni_cli.serve.chat_reply import stage_times
from omni_cli.serve.errors import APIError
from omni_cli.serve.exchange import Exchange, new_id, unix_now
from omni_cli.serve.media import MediaDecoder
from omni_cli.serve.parsed_route import MULTIPART, RUNNING, errors, parsed_routes
from omni_cli.serve.schemas.diffusion import ImageEditRequest, ImageFields, ImageRequest
from omni_cli.serve.service import Service, seeded_copies


def image_routes(service: Service) -> APIRouter:
    router = parsed_routes()

    @router.post(Route.IMAGES, response_model=ImagesReply, responses=errors(*RUNNING))
    async def images_generations(body: ImageRequest, request: Request) -> Response:
        """Make images; of several, the first has the request's seed, each following one the next seed."""
        _check(service, body)
        service.check_edits(edits=False)
        service.check_given({"control_image"} if body.control_image else set())
        return await _reply(service, body, request, **await service.decode(partial(_controls, body)))

    @router.post(Route.IMAGE_EDITS, response_model=ImagesReply, responses=errors(*RUNNING))
    async def images_edits(body: Annotated[ImageEditRequest, MULTIPART], request: Request) -> Response:
        """Change images: all of them, or the first one where the mask is transparent."""
        _check(service, body)
        service.check_edits(edits=True)
        if not body.images:
            raise APIError(400, "field `image` is missing", code="missing_required_parameter", param="image")
        optional = {"mask": body.mask is not None, "control_image": bool(body.control_image)}
        service.check_given({"image", *(name for name, is_present in optional.items() if is_present)})
        return await _reply(service, body, request, **await service.decode(partial(_media, body)))

    return router


async def _reply(service: Service, body: ImageFields, request: Request, **media: Any) -> Response:
    exchange = Exchange.from_scope(request.scope)
    requests = _generate_requests(
        service.choose_seed(body.seed, exchange), body, lora=service.adapter(body.model), **media
    )
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


def _controls(body: ImageRequest, decoder: MediaDecoder) -> dict[str, Any]:
    urls = body.control_image or []
    images = tuple(decoder.image(url, "control_image") for url in ([urls] if isinstance(urls, str) else urls))
    return {"media": Media(control_images=images), "notes": tuple(decoder.notes)}


def _media(body: ImageEditRequest, decoder: MediaDecoder) -> dict[str, Any]:
    images = tuple(decoder.image_file(upload.file, param) for param, upload in body.images)
    mask = None if body.mask is None else decoder.mask_file(body.mask.file, "mask")
    controls = tuple(decoder.image_file(upload.file, "control_image") for upload in body.control_image)
    media = Media(images=images, mask=mask, control_images=controls)
    return {"media": media, "notes": tuple(decoder.notes)}


def _check(service: Service, body: ImageFields) -> None:
    service.check_model(body.model)
    service.check_makes("image")
    service.check_prompt_length(body.num_prompt_chars)
    if body.n is not None and body.n > service.limits.max_n:
        raise APIError(400, f"`n` may be at most {service.limits.max_n}", code="invalid_value", param="n")


def _generate_requests(seed: int, body: ImageFields, **media: Any) -> list[GenerateRequest]:
    request = GenerateRequest(
        request_id=new_id("image"),
        prompt=body.prompt,
        seed=seed,
        modalities=frozenset({"image"}),
        diffusion=body.diffusion(),
        **media,
    )
    return seeded_copies(request, body.n or 1)


def _items(result: RequestResult, body: ImageFields) -> list[ImageItem]:
    """The images of one request, several with `num_images_per_prompt` in the profile."""
    images = [output for output in result.outputs if isinstance(output, ImageOutput)]
    quality = 100 if body.output_compression is None else body.output_compression
    encoded = [base64.b64encode(encode_image(image.pixels, body.image_format, quality)).decode() for image in images]
    if body.response_format == "url":
        return [{"url": f"data:image/{body.image_format};base64,{data}"} for data in encoded]
    return [{"b64_json": data} for data in encoded]
