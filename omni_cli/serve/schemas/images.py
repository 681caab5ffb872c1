"""`POST /v1/images/generations` and `/v1/images/edits`."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from fastapi import UploadFile
from pydantic import AfterValidator, ConfigDict, Field

from omni_cli.config.bounds import MAX_IMAGE_SIDE
from omni_cli.config.schema import NumInferenceSteps
from omni_cli.serve.schemas.fields import (
    MAX_PIXELS_MADE,
    Form,
    Ignored,
    Only,
    Seed,
    Strict,
    Upload,
)

_MAX_FILES = 16
_DIFFUSION = ("negative_prompt", "num_inference_steps", "guidance_scale", "true_cfg_scale", "strength")

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
    if width * height > MAX_PIXELS_MADE:
        raise ValueError(f"an image may have at most {MAX_PIXELS_MADE} pixels")
    return width, height


Size = Annotated[str, AfterValidator(_check_size), Field(json_schema_extra={"pattern": _SIZE_OR_AUTO})]


class ImageFields(Strict):
    """The fields of generations and edits."""

    model: str | None = Field(None, description="The model's name in `GET /v1/models`.")
    prompt: str = Field(min_length=1)
    n: Annotated[int, Field(ge=1)] | None = Field(None, description="Number of images; each has the next seed.")
    size: Size | None = Field(None, description="`WIDTHxHEIGHT`. Default, also for `auto`: the profile's.")
    response_format: Literal["b64_json", "url"] | None = Field(None, description="`url` is a data URL.")
    output_format: Literal["png", "jpeg", "webp"] | None = Field(None, description="Default: `png`.")
    output_compression: Annotated[int, Field(ge=0, le=100)] | None = Field(
        None, description="Quality of `jpeg` and `webp`. Default: 100."
    )

    # Our extensions, with diffusers' names.
    seed: Seed | None = None
    negative_prompt: str | None = None
    num_inference_steps: NumInferenceSteps | None = None
    guidance_scale: float | None = None
    true_cfg_scale: float | None = None
    return_stage_times: bool | None = Field(None, description="Also return when each stage worked for the first image.")

    background: Annotated[object, Only("auto", "opaque")] = None
    partial_images: Annotated[object, Only(0)] = None
    stream: Annotated[object, Only(False)] = None
    style: Annotated[object, Only()] = None

    moderation: Ignored
    quality: Ignored
    user: Ignored
    safety_identifier: Ignored

    @property
    def image_format(self) -> str:
        return self.output_format or "png"

    def diffusion(self) -> dict[str, object]:
        """The given arguments of the pipeline's call."""
        values = {name: getattr(self, name, None) for name in _DIFFUSION}
        arguments = {name: value for name, value in values.items() if value is not None}
        if self.size not in (None, "auto"):
            arguments["width"], arguments["height"] = parse_size(self.size)
        return arguments


_Url = Annotated[str, Field(min_length=1)]


class ImageRequest(ImageFields):
    control_image: _Url | Annotated[list[_Url], Field(min_length=1, max_length=_MAX_FILES)] | None = Field(
        None,
        description="What controls the layout: an image as a data URL, or one that the server may fetch; or several.",
    )


# FastAPI validates the default too, so the empty list is refused by the document alone.
_Images = Annotated[list[Upload], Field(max_length=_MAX_FILES, json_schema_extra={"minItems": 1})]


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
    strength: float | None = None

    input_fidelity: Annotated[object, Only()] = None
    markup: Annotated[object, Only()] = None

    @property
    def images(self) -> list[tuple[str, UploadFile]]:
        """The images with the names of their fields, for messages."""
        files = [*self.image, *self.more_images]
        return [("image" if len(files) == 1 else f"image[{number}]", file) for number, file in enumerate(files)]
