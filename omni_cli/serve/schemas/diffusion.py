"""`POST /v1/images/generations`, `/v1/images/edits`, `/v1/videos` and `/v1/videos/sync`."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from fastapi import UploadFile
from pydantic import AfterValidator, ConfigDict, Field

from omni_cli.config.bounds import MAX_IMAGE_SIDE
from omni_cli.requests.checks import check_frame_rate
from omni_cli.serve.schemas.fields import Form, IgnoredField, ModelBody, Only, Seed, Upload, with_fields_of

_MAX_FILES = 16
# The most that a stranger may have made: a device's memory, not a model's ability, ends there.
_MAX_PIXELS_MADE = 4096 * 4096

_SIZE = r"([1-9]\d{0,4})x([1-9]\d{0,4})"
_SIZE_OR_AUTO = f"^({_SIZE}|auto)$"


def _check_size(value: str) -> str:
    if value != "auto":
        parse_size(value)
    return value


def parse_size(value: str) -> tuple[int, int]:
    """Parse `WIDTHxHEIGHT` in pixels; raises `ValueError`."""
    match = re.fullmatch(_SIZE, value, re.ASCII)
    if match is None:
        raise ValueError("must be WIDTHxHEIGHT in pixels, such as 512x512, or auto")
    width, height = int(match[1]), int(match[2])
    if max(width, height) > MAX_IMAGE_SIDE:
        raise ValueError(f"a side may have at most {MAX_IMAGE_SIDE} pixels")
    if width * height > _MAX_PIXELS_MADE:
        raise ValueError(f"an image may have at most {_MAX_PIXELS_MADE} pixels")
    return width, height


Size = Annotated[str, AfterValidator(_check_size), Field(json_schema_extra={"pattern": _SIZE_OR_AUTO})]


# Names of arguments in these bodies, where they have others.
SECONDS = {"duration": "seconds"}
SIZE = {"height": "size", "width": "size"}


class DiffusionBody(ModelBody):
    """The fields of every route for images and videos."""

    prompt: str = Field(min_length=1)
    size: Size | None = Field(None, description="`WIDTHxHEIGHT`. Default, also for `auto`: the profile's.")
    seed: Seed | None = None

    user: IgnoredField
    safety_identifier: IgnoredField

    def diffusion(self) -> dict[str, Any]:
        """Return the given arguments of the pipeline's call."""
        arguments = self.request_fields("diffusion")
        if self.size not in (None, "auto"):
            arguments["width"], arguments["height"] = parse_size(self.size)
        return arguments

    @property
    def num_prompt_chars(self) -> int:
        return len(self.prompt) + len(self.diffusion().get("negative_prompt", ""))


class ImageFields(DiffusionBody):
    """The fields of generations and edits."""

    n: Annotated[int, Field(ge=1)] | None = Field(None, description="Number of images; each has the next seed.")
    response_format: Literal["b64_json", "url"] | None = Field(None, description="`url` is a data URL.")
    output_format: Literal["png", "jpeg", "webp"] | None = Field(None, description="Default: `png`.")
    output_compression: Annotated[int, Field(ge=0, le=100)] | None = Field(
        None, description="Quality of `jpeg` and `webp`. Default: 100."
    )
    return_stage_times: bool | None = Field(None, description="Also return when each stage worked for the first image.")

    background: Annotated[object, Only("auto", "opaque")] = None
    partial_images: Annotated[object, Only(0)] = None
    stream: Annotated[object, Only(False)] = None
    style: Annotated[object, Only()] = None

    moderation: IgnoredField
    quality: IgnoredField

    @property
    def image_format(self) -> str:
        return self.output_format or "png"


_Url = Annotated[str, Field(min_length=1)]


@with_fields_of("images")
class ImageRequest(ImageFields):
    control_image: _Url | Annotated[list[_Url], Field(min_length=1, max_length=_MAX_FILES)] | None = Field(
        None,
        description="What controls the layout: an image as a data URL, or one that the server may fetch; or several.",
    )


# FastAPI validates the default too, so the empty list is refused by the document alone.
_Images = Annotated[list[Upload], Field(max_length=_MAX_FILES, json_schema_extra={"minItems": 1})]


@with_fields_of("edits")
class ImageEditRequest(ImageFields, Form):
    """The official client sends one image as `image`, several as `image[]`."""

    model_config = ConfigDict(json_schema_extra={"anyOf": [{"required": ["image"]}, {"required": ["image[]"]}]})

    image: _Images = Field(default=[], description="The images to edit, in files.")
    more_images: _Images = Field(default=[], alias="image[]")
    mask: Upload | None = Field(
        None, description="Where it is fully transparent, the model paints; of the size of the first image for most."
    )
    control_image: Annotated[list[Upload], Field(max_length=_MAX_FILES)] = Field(
        default=[], description="What controls the layout: an image, or several."
    )

    input_fidelity: Annotated[object, Only()] = None
    markup: Annotated[object, Only()] = None

    @property
    def images(self) -> list[tuple[str, UploadFile]]:
        """The images with the names of their fields, for messages."""
        files = [*self.image, *self.more_images]
        return [("image" if len(files) == 1 else f"image[{number}]", file) for number, file in enumerate(files)]


Fps = Annotated[
    str, AfterValidator(check_frame_rate), Field(json_schema_extra={"pattern": r"^[1-9]\d{0,2}(/100[01])?$"})
]


@with_fields_of("videos")
class VideoRequest(DiffusionBody, Form):
    input_reference: Upload | None = Field(
        None, description="An image, such as the first frame; or a video for a model that changes it."
    )
    fps: Fps | None = Field(None, description="Frames per second, a number or a ratio such as 24000/1001.")
