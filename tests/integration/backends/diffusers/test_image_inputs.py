"""Pipelines that take images, against the plain call of diffusers: image to image, inpainting, ControlNet."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import ControlNetModel, DiffusionPipeline, UNet2DConditionModel
from PIL import Image
from support.tiny_pipelines import build_named

from omni_cli.backends.diffusers.executor import DiffusersPipelineExecutor
from omni_cli.backends.diffusers.requests import DiffusionRequest
from omni_cli.backends.diffusers.stage import get_media
from omni_cli.checkpoints.tiny_pipelines import tiny_image
from omni_cli.config.schema import DiffusionStageConfig
from omni_cli.core.errors import InputError
from omni_cli.requests.contents import Media
from omni_cli.requests.outputs import GenerateRequest

STAGE = DiffusionStageConfig.create("image", num_inference_steps=4, max_num_seqs=4)
CLASSES = {
    "QwenImageImg2ImgPipeline": "qwen_image",
    "QwenImageInpaintPipeline": "qwen_image",
    "StableDiffusionImg2ImgPipeline": "stable_diffusion",
    "StableDiffusionInpaintPipeline": "stable_diffusion",
    "StableDiffusionControlNetPipeline": "stable_diffusion",
    "StableDiffusionControlNetImg2ImgPipeline": "stable_diffusion",
    "StableDiffusionControlNetInpaintPipeline": "stable_diffusion",
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, Path]:
    """A checkpoint for each class; those of one architecture have the same weights."""
    root = tmp_path_factory.mktemp("checkpoints")
    tiny_image(root / "qwen_image", 0)
    build_named("StableDiffusionPipeline", root / "stable_diffusion")
    torch.manual_seed(1)
    unet = UNet2DConditionModel.from_pretrained(root / "stable_diffusion/unet")
    net = ControlNetModel.from_unet(unet, conditioning_embedding_out_channels=(16, 32))
    for parameter in net.parameters():
        torch.nn.init.normal_(parameter, std=0.3)  # its last convolutions begin as zeros, which control nothing
    net.save_pretrained(root / "controlnet")
    for name, source in CLASSES.items():
        shutil.copytree(root / source, root / name, symlinks=True)
        index = json.loads((root / name / "model_index.json").read_text())
        index["_class_name"] = name
        if "ControlNet" in name:
            shutil.copytree(root / "controlnet", root / name / "controlnet")
            index["controlnet"] = ["diffusers", "ControlNetModel"]
        (root / name / "model_index.json").write_text(json.dumps(index))
    return {name: root / name for name in CLASSES}


def pixels(seed: int, height: int = 64, width: int = 64) -> np.ndarray:
    """A smooth image: noise would drown in the VAE."""
    small = np.random.default_rng(seed).integers(0, 256, (4, 4, 3), dtype=np.uint8)
    return np.asarray(Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC))


MASK = np.zeros((64, 64, 3), np.uint8)
MASK[16:48, 8:40] = 255
MEDIA: dict[str, dict[str, Any]] = {
    "image": {"images": (pixels(1),)},
    "mask": {"mask": MASK},
    "control_image": {"control_images": (pixels(2),)},
}


def make(executor, media: tuple[str, ...], arguments: dict, seed: int = 3) -> np.ndarray:
    given = {key: value for medium in media for key, value in MEDIA[medium].items()}
    conditions = executor.call.media_arguments(get_media(GenerateRequest("0", media=Media(**given))))
    request = DiffusionRequest.from_arguments("0", "a red cat", seed, arguments, conditions)
    (output,) = executor.execute_model((request,))
    if output.error is not None:
        raise output.error
    encoded = set(media) & {"image", "mask"}
    assert (output.times.vae_encode_s or 0) > 0 if encoded else output.times.vae_encode_s is None
    return output.images[0]


@pytest.mark.parametrize(
    ("name", "media", "arguments"),
    [
        ("QwenImageImg2ImgPipeline", ("image",), {"strength": 0.5, "height": 64, "width": 64}),
        ("QwenImageInpaintPipeline", ("image", "mask"), {"strength": 0.75, "height": 64, "width": 64}),
        ("StableDiffusionImg2ImgPipeline", ("image",), {"strength": 0.5, "guidance_scale": 3.0}),
        ("StableDiffusionInpaintPipeline", ("image", "mask"), {}),
        ("StableDiffusionInpaintPipeline", ("image", "mask"), {"padding_mask_crop": 4}),
        ("StableDiffusionControlNetPipeline", ("control_image",), {"controlnet_conditioning_scale": 0.5}),
        ("StableDiffusionControlNetImg2ImgPipeline", ("image", "control_image"), {"strength": 0.5}),
        ("StableDiffusionControlNetInpaintPipeline", ("image", "mask", "control_image"), {}),
    ],
)
def test_an_image_is_the_plain_call_s_bit_for_bit(folders, name, media, arguments):
    executor = DiffusersPipelineExecutor(STAGE, str(folders[name]), "float32", "cpu")
    made = make(executor, media, arguments)
    plain = DiffusionPipeline.from_pretrained(folders[name])
    plain.set_progress_bar_config(disable=True)
    control = "control_image" if "image" in media else "image"
    values = {
        "image": ("image", Image.fromarray(pixels(1))),
        "mask": ("mask_image", Image.fromarray(MASK).convert("L")),
        "control_image": (control, Image.fromarray(pixels(2))),
    }
    given = dict(values[medium] for medium in media)
    generator = torch.Generator("cpu").manual_seed(3)
    expected = plain(prompt="a red cat", num_inference_steps=4, generator=generator, **given, **arguments).images[0]
    np.testing.assert_array_equal(made, np.asarray(expected))
    assert made.std() > 5, "a flat image would equal anything"
    for medium in media:
        with pytest.raises(InputError, match="its pipeline rejects the request: "):
            make(executor, tuple(other for other in media if other != medium), arguments)
    executor.shutdown()


def test_media_that_a_pipeline_lacks_are_refused(folders):
    executor = DiffusersPipelineExecutor(STAGE, str(folders["StableDiffusionImg2ImgPipeline"]), "float32", "cpu")
    with pytest.raises(InputError, match="StableDiffusionImg2ImgPipeline takes no mask"):
        make(executor, ("image", "mask"), {})
    with pytest.raises(InputError, match="StableDiffusionImg2ImgPipeline takes no control image"):
        make(executor, ("image", "control_image"), {})
    executor.shutdown()
