"""`/v1/images/edits` with the official client equals the plain call of diffusers with the same inputs."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import numpy as np
import openai
import pytest
from PIL import Image
from support.media_samples import bomb_png
from support.omni_server import EDITS, IMAGES, OmniServer

MODEL = "tiny-image"


TEXT = b'--x\r\nContent-Disposition: form-data; name="%s"\r\n\r\na cat\r\n'


def png(pixels: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def smooth(width: int = 64, height: int = 64) -> np.ndarray:
    small = np.random.default_rng(1).integers(0, 256, (4, 4, 3), dtype=np.uint8)
    return np.asarray(Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC))


def mask(alpha_inside: int = 0, size: int = 64) -> np.ndarray:
    """RGBA, transparent in a square; its colours are the opposite mask, and must not matter."""
    pixels = np.full((size, size, 4), 255, np.uint8)
    pixels[16:48, 8:40] = (0, 0, 0, alpha_inside)
    return pixels


@pytest.fixture(scope="module")
def edit(edit_server: OmniServer, read_image: Any) -> Callable[..., list[np.ndarray]]:
    def edit(**fields: Any) -> list[np.ndarray]:
        given = {"image": png(smooth()), "mask": png(mask()), "prompt": "a red cat", "size": "64x64", **fields}
        extra = {"strength": 0.75, **given.pop("extra_body", {})}
        reply = edit_server.client().images.edit(model=MODEL, **given, extra_body=extra)
        return [read_image(item.b64_json) for item in reply.data]

    return edit


@pytest.fixture(scope="module")
def plain(inpainting: tuple[str, ...]) -> Callable[[int], np.ndarray]:
    """Return the plain call by its seed."""
    import torch
    from diffusers import DiffusionPipeline

    pipeline = DiffusionPipeline.from_pretrained(inpainting[-1])
    pipeline.set_progress_bar_config(disable=True)
    painted = np.zeros((64, 64), np.uint8)
    painted[16:48, 8:40] = 255

    def call(seed: int) -> np.ndarray:
        made = pipeline(
            prompt="a red cat",
            image=Image.fromarray(smooth()),
            mask_image=Image.fromarray(painted),
            strength=0.75,
            height=64,
            width=64,
            num_inference_steps=4,
            true_cfg_scale=1.0,
            generator=torch.Generator().manual_seed(seed),
        )
        return np.asarray(made.images[0])

    return call


def test_the_transparent_part_is_painted_as_by_the_plain_call(edit: Any, plain: Any) -> None:
    two = edit(n=2, response_format="b64_json", extra_body={"seed": 3})
    assert np.array_equal(two[0], plain(3))
    assert np.array_equal(two[1], plain(4)), "seeds of several images follow each other"
    (listed,) = edit(image=[png(smooth())], extra_body={"seed": 4})
    assert np.array_equal(listed, two[1]), "one image in a list is that image"


def test_what_the_pipeline_changes_is_logged(edit: Any, edit_server: OmniServer) -> None:
    (image,) = edit(size="63x64", mask=png(mask(size=80)))
    assert image.shape == (64, 48, 3)
    # The line is written when the answer has left; no other request of this server has notes.
    (line,) = edit_server.wait_until(lambda: [line for line in edit_server.log("request") if "notes" in line])
    assert line["path"] == EDITS and line["notes"][-1] == "the image has 48x64 pixels, not 63x64 as requested"


@pytest.mark.parametrize(
    ("fields", "message", "param"),
    [
        ({"mask": png(mask(alpha_inside=255))}, "no fully transparent pixel", "mask"),
        ({"mask": png(mask(alpha_inside=1))}, "no fully transparent pixel", "mask"),
        ({"mask": png(mask()[:, :, :3])}, "has no transparency", "mask"),
        ({"mask": openai.omit}, "its pipeline rejects the request: ", None),
        ({"mask": b"hello"}, "format is not recognised", "mask"),
        ({"image": b"hello"}, "cannot read the image in `image`", "image"),
        ({"image": [png(smooth()), b""]}, "the image in `image[1]` is empty (0 bytes)", "image[1]"),
        ({"image": []}, "`image` is missing", "image"),
        ({"image": [png(smooth(1, 1))] * 17}, "at most 16", "image[]"),
        ({"image": bomb_png(20_000, 20_000)}, "too many pixels", "image"),
        ({"prompt": ""}, "at least 1 character", "prompt"),
        ({"n": 11}, "`n` may be at most 10", "n"),
        ({"response_format": "file"}, "'b64_json'", "response_format"),
        ({"input_fidelity": "high"}, "`input_fidelity` is not supported", "input_fidelity"),
        ({"markup": png(mask())}, "`markup` is not supported", "markup"),
        ({"extra_body": {"strength": 1.5}}, "The value of strength should in [0.0, 1.0] but is 1.5", None),
        ({"extra_body": {"strength": "much"}}, "valid number", "strength"),
        ({"extra_body": {"control_image": "x"}}, "must be a file", "control_image[0]"),
        ({"extra_body": {"strengh": 1}}, "did you mean `strength`?", "strengh"),
        ({"extra_body": {"num_inference_steps": "many"}}, "valid integer", "num_inference_steps"),
        ({"prompt": openai.omit}, "`prompt` is missing", "prompt"),
        ({"extra_body": {"seed": [1]}}, "unknown field `seed[]`", "seed[]"),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, str) else "",
)
def test_a_mistake(edit: Any, fields: dict[str, Any], message: str, param: str | None) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        edit(**fields)
    assert message in caught.value.message and caught.value.param == param


@pytest.mark.parametrize(
    ("body", "content_type", "message"),
    [
        (b"{}", "application/json", "multipart/form-data"),
        (b"prompt=x", "application/x-www-form-urlencoded", "multipart/form-data"),
        (b"--x\r\n", "multipart/form-data", "Missing boundary"),
        (b"hello", "multipart/form-data; boundary=x", "not a valid form"),
        (2 * (TEXT % b"prompt") + b"--x--\r\n", "multipart/form-data; boundary=x", "`prompt` is given more than once"),
    ],
)
def test_garbage(edit_server: OmniServer, body: bytes, content_type: str, message: str) -> None:
    answer = edit_server.request("POST", EDITS, body, content_type=content_type)
    assert answer.status == 400 and answer.error["code"] == "invalid_form"
    assert message in answer.error["message"]


def test_a_page_of_another_site_gets_nothing(edit_server: OmniServer) -> None:
    """A browser sends forms to other sites without asking."""
    for origin in ("https://evil.example", "null", "http://localhost.evil.example:8000"):
        answer = edit_server.request("POST", EDITS, b"", origin=origin)
        assert answer.status == 403 and answer.error["code"] == "wrong_origin"
    assert edit_server.request("POST", EDITS, b"", origin="http://localhost:3000").status == 400


def test_each_profile_has_its_own_endpoint(edit_server: OmniServer, image_server: OmniServer) -> None:
    with pytest.raises(openai.NotFoundError, match="from a prompt alone: use /v1/images/generations"):
        image_server.client().images.edit(model=MODEL, image=png(smooth()), prompt="a cat")
    refused = edit_server.request("POST", IMAGES, {"prompt": "a cat"})
    assert refused.status == 400 and "its pipeline rejects the request: " in refused.error["message"]
