"""Pipelines with several images, and without a prompt, against the plain call of diffusers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from diffusers import (
    AutoencoderKL,
    DDIMScheduler,
    DDPMPipeline,
    DDPMScheduler,
    DiffusionPipeline,
    MarigoldDepthPipeline,
    UNet2DConditionModel,
    UNet2DModel,
)
from PIL import Image
from support.stage_specs import get_spec
from support.tiny_pipelines import build_named
from transformers import CLIPTextModel, CLIPTokenizer

from omni_cli.backends.diffusers.stage import DiffusersStage
from omni_cli.checkpoints.tiny_pipelines import tiny_edit
from omni_cli.config.loader import load_profile
from omni_cli.config.schema import DiffusionStageConfig
from omni_cli.core.errors import InputError
from omni_cli.requests.contents import CallFile, Media
from omni_cli.requests.outputs import GenerateRequest
from omni_cli.stage.messages import Failure, RequestDone

STAGE = DiffusionStageConfig.create("image", num_inference_steps=3, max_num_seqs=4)


def smooth(seed: int, height: int = 64, width: int = 64) -> Image.Image:
    """A smooth image: noise would drown in the VAE."""
    small = np.random.default_rng(seed).integers(0, 256, (4, 4, 3), dtype=np.uint8)
    return Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC)


def images_of(stage: DiffusersStage, request: GenerateRequest) -> list[np.ndarray]:
    stage.add(request)
    (done,) = stage.step()
    assert isinstance(done, RequestDone), done.message if isinstance(done, Failure) else done
    return list(done.images)


def plain_of(folder: Path) -> DiffusionPipeline:
    plain = DiffusionPipeline.from_pretrained(folder)
    plain.set_progress_bar_config(disable=True)
    return plain


def test_one_and_several_images_to_edit_are_those_of_the_plain_call(tmp_path):
    tiny_edit(tmp_path / "edit", seed=0)
    (config,) = load_profile("tiny-edit").stages
    stage = DiffusersStage(get_spec(config, str(tmp_path / "edit")), lambda report: None)
    plain, pictures = plain_of(tmp_path / "edit"), [smooth(1), smooth(2, width=96)]
    made = []
    for given in ([], pictures[:1], pictures):
        arrays = tuple(np.asarray(picture) for picture in given)
        arguments = {} if given else {"height": 64, "width": 64}
        request = GenerateRequest("0", prompt="make it snow", seed=3, media=Media(images=arrays), diffusion=arguments)
        (image,) = images_of(stage, request)
        (expected,) = plain(
            prompt="make it snow",
            image=(given[0] if len(given) == 1 else given) or None,
            generator=torch.Generator("cpu").manual_seed(3),
            num_inference_steps=4,
            guidance_scale=1.0,
            text_encoder_out_layers=(1, 2, 3),
            max_sequence_length=64,
            **arguments,
        ).images
        np.testing.assert_array_equal(image, np.asarray(expected))
        made.append(image.astype(int))
    assert abs(made[0] - made[1]).mean() > 1 and abs(made[1] - made[2]).mean() > 1, "each image must matter"
    # The pipeline looks at its images within its call.
    stage.add(GenerateRequest("small", prompt="make it snow", media=Media(images=(np.asarray(smooth(1, 32, 32)),))))
    (refused,) = stage.step()
    assert refused.kind == "input" and "rejects the request: Image too small" in refused.message
    stage.close()


def test_an_unconditional_pipeline_takes_no_prompt_and_makes_several_images(tmp_path):
    torch.manual_seed(0)
    unet = UNet2DModel(
        sample_size=16,
        block_out_channels=(16, 32),
        layers_per_block=1,
        down_block_types=("DownBlock2D",) * 2,
        up_block_types=("UpBlock2D",) * 2,
        norm_num_groups=8,
    )
    DDPMPipeline(unet, DDPMScheduler(num_train_timesteps=10)).save_pretrained(tmp_path)
    stage = DiffusersStage(get_spec(STAGE, str(tmp_path)), lambda report: None)
    made = images_of(stage, GenerateRequest("0", seed=5, diffusion={"batch_size": 2}))
    expected = plain_of(tmp_path)(
        batch_size=2, num_inference_steps=3, generator=torch.Generator("cpu").manual_seed(5)
    ).images
    assert len(made) == len(expected) == 2
    for image, other in zip(made, expected, strict=True):
        np.testing.assert_array_equal(image, np.asarray(other))
    with pytest.raises(InputError, match="takes no `prompt`"):
        stage.add(GenerateRequest("1", prompt="a cat"))
    stage.close()


def test_a_depth_map_is_in_the_colours_of_the_pipeline_s_own_processor(tmp_path):
    build_named("StableDiffusionPipeline", tmp_path / "parts")
    torch.manual_seed(0)
    config = UNet2DConditionModel.load_config(tmp_path / "parts/unet")
    MarigoldDepthPipeline(
        unet=UNet2DConditionModel.from_config({**config, "in_channels": 8}),
        vae=AutoencoderKL.from_pretrained(tmp_path / "parts/vae"),
        scheduler=DDIMScheduler(beta_schedule="scaled_linear", clip_sample=False, steps_offset=1),
        text_encoder=CLIPTextModel.from_pretrained(tmp_path / "parts/text_encoder"),
        tokenizer=CLIPTokenizer.from_pretrained(tmp_path / "parts/tokenizer"),
        default_processing_resolution=64,
    ).save_pretrained(tmp_path / "depth")
    stage = DiffusersStage(get_spec(STAGE, str(tmp_path / "depth")), lambda report: None)
    (made,) = images_of(stage, GenerateRequest("0", seed=1, media=Media(images=(np.asarray(smooth(1)),))))
    plain = plain_of(tmp_path / "depth")
    depth = plain(smooth(1), num_inference_steps=3, generator=torch.Generator("cpu").manual_seed(1)).prediction
    np.testing.assert_array_equal(made, np.asarray(plain.image_processor.visualize_depth(depth)[0]))
    assert made.std() > 5, "a flat image would equal anything"
    stage.close()


def test_further_images_and_tensors_are_arguments_of_the_call(tmp_path):
    build_named("StableDiffusionPipeline", tmp_path)
    stage = DiffusersStage(get_spec(STAGE, str(tmp_path)), lambda report: None)
    plain = plain_of(tmp_path)
    embeds = np.random.default_rng(0).standard_normal((1, 77, 32), dtype=np.float32)
    files = {name: CallFile("tensor", embeds + n) for n, name in enumerate(EMBEDDINGS)}
    (made,) = images_of(stage, GenerateRequest("0", seed=2, media=Media(call_files=files)))
    tensors = {name: torch.from_numpy(embeds + n) for n, name in enumerate(EMBEDDINGS)}
    (expected,) = plain(**tensors, num_inference_steps=3, generator=torch.Generator("cpu").manual_seed(2)).images
    np.testing.assert_array_equal(made, np.asarray(expected))
    with pytest.raises(InputError, match="no argument `example_image`"):
        stage.add(
            GenerateRequest("1", prompt="a cat", media=Media(call_files={"example_image": files["prompt_embeds"]}))
        )
    stage.close()


EMBEDDINGS = ("prompt_embeds", "negative_prompt_embeds")
