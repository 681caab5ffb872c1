"""Images from a control image, equal to the plain call of diffusers. No shared server has such a pipeline."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import DiffusionPipeline
from PIL import Image
from support.omni_server import EDITS, IMAGES, OmniServer
from support.tiny_pipelines import build_named

STEPS = 2
CONTROL = Image.fromarray(np.random.default_rng(1).integers(0, 256, (32, 32, 3), np.uint8))


def content() -> bytes:
    buffer = io.BytesIO()
    CONTROL.save(buffer, "PNG")
    return buffer.getvalue()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    build_named("StableDiffusionControlNetPipeline", made := tmp_path_factory.mktemp("control") / "model")
    return made


@pytest.fixture(scope="module")
def server(start_server: Any, folder: Path) -> OmniServer:
    return start_server("--model", str(folder))


def test_a_control_image_is_a_data_url_or_a_file(server: OmniServer, folder: Path, read_image: Any) -> None:
    plain = DiffusionPipeline.from_pretrained(folder)
    plain.set_progress_bar_config(disable=True)
    torch.manual_seed(3)
    call = {"height": 32, "width": 32, "num_inference_steps": STEPS, "generator": torch.Generator().manual_seed(3)}
    expected = np.asarray(plain(prompt="a cat", image=CONTROL, **call).images[0])
    url = f"data:image/png;base64,{base64.b64encode(content()).decode()}"
    fields = {"prompt": "a cat", "size": "32x32", "num_inference_steps": STEPS, "seed": 3}
    for control in (url, [url]):
        answer = server.request("POST", IMAGES, {**fields, "control_image": control})
        assert answer.status == 200, answer.error
        np.testing.assert_array_equal(read_image(answer.document["data"][0]["b64_json"]), expected)
    extra = {"control_image": url, "num_inference_steps": STEPS, "seed": 3}
    (made,) = server.client().images.generate(prompt="a cat", size="32x32", extra_body=extra).data
    np.testing.assert_array_equal(read_image(made.b64_json), expected)


def test_what_is_missing_or_given_twice_is_a_mistake(server: OmniServer) -> None:
    answer = server.request("POST", IMAGES, {"prompt": "a cat"})
    assert answer.status == 400 and "its pipeline rejects the request: " in answer.error["message"]
    parts = [b'--x\r\nContent-Disposition: form-data; name="prompt"\r\n\r\na cat\r\n']
    for name in (b"image", b"control_image"):
        head = b'--x\r\nContent-Disposition: form-data; name="%s"; filename="a.png"\r\n\r\n' % name
        parts.append(head + content() + b"\r\n")
    body = b"".join((*parts, b"--x--\r\n"))
    answer = server.request("POST", EDITS, body, content_type="multipart/form-data; boundary=x")
    assert answer.status == 400 and "both set the argument `image`" in answer.error["message"]
