"""`POST /v1/videos` and `/v1/videos/sync`."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from omni_cli.config.bounds import MAX_FRAMES_MADE
from omni_cli.config.schema import NumInferenceSteps
from omni_cli.inputs.checks import check_frame_rate
from omni_cli.serve.schemas.fields import MAX_DURATION_S, Form, Ignored, Seed, Upload
from omni_cli.serve.schemas.images import Size, parse_size

_CALL = ("negative_prompt", "num_inference_steps", "guidance_scale", "num_frames", "fps", "strength")

Fps = Annotated[
    str, AfterValidator(check_frame_rate), Field(json_schema_extra={"pattern": r"^[1-9]\d{0,2}(/100[01])?$"})
]


class VideoRequest(Form):
    model: str | None = Field(None, description="The model's name in `GET /v1/models`.")
    prompt: str = Field(min_length=1)
    seconds: Annotated[float, Field(gt=0, le=MAX_DURATION_S)] | None = Field(
        None, description="Length, rounded to frames that the model can make. Default: the profile's."
    )
    size: Size | None = Field(None, description="`WIDTHxHEIGHT`. Default, also for `auto`: the profile's.")
    input_reference: Upload | None = Field(
        None, description="An image, such as the first frame; or a video for a model that changes it."
    )

    # Our own additions, by the names of `omni generate` and diffusers.
    seed: Seed | None = None
    negative_prompt: str | None = None
    num_inference_steps: NumInferenceSteps | None = None
    guidance_scale: float | None = None
    num_frames: Annotated[int, Field(ge=1, le=MAX_FRAMES_MADE)] | None = None
    fps: Fps | None = Field(None, description="Frames per second, a number or a ratio such as 24000/1001.")
    strength: float | None = None

    user: Ignored
    safety_identifier: Ignored

    def diffusion(self) -> dict[str, object]:
        """The given arguments of the pipeline's call."""
        values = {name: getattr(self, name) for name in _CALL} | {"duration": self.seconds}
        arguments = {name: value for name, value in values.items() if value is not None}
        if self.size not in (None, "auto"):
            arguments["width"], arguments["height"] = parse_size(self.size)
        return arguments
