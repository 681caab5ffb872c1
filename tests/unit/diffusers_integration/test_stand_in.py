"""Requests that a pipeline would reject are refused from its source and configuration files; nothing is loaded."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from omni_cli.config.schema import DiffusionStageConfig
from omni_cli.diffusers_integration.stand_in import check_request
from omni_cli.errors import InputError
from omni_cli.outputs import CallFile, GenerateRequest

IMAGE = np.zeros((64, 64, 3), np.uint8)
PARTS = {
    "QwenImagePipeline": {"vae": ("AutoencoderKLQwenImage", {"temperal_downsample": [False, True, True]})},
    "WanPipeline": {
        "vae": ("AutoencoderKLWan", {"scale_factor_temporal": 4, "scale_factor_spatial": 8}),
        "transformer": ("WanTransformer3DModel", {"patch_size": [1, 2, 2]}),
    },
    "LTXPipeline": {
        # Null: the class computes it, 4 * 2**3.
        "vae": ("AutoencoderKLLTXVideo", {"patch_size": 4, "spatial_compression_ratio": None}),
    },
    "StableDiffusionImg2ImgPipeline": {"vae": ("AutoencoderKL", {"block_out_channels": [8, 8, 8, 8]})},
    "StableDiffusionControlNetPipeline": {
        "vae": ("AutoencoderKL", {"block_out_channels": [8, 8, 8, 8]}),
        "controlnet": ("ControlNetModel", {}),
    },
}
WRONG = [
    ("QwenImagePipeline", {"width": 65, "height": 64}, "multiple of 16"),
    ("WanPipeline", {"num_frames": 6}, "1 frame and groups of 4 more, not 6"),
    ("WanPipeline", {"height": 40, "width": 64}, "divisible by 16 but are 40 and 64"),
    ("LTXPipeline", {"height": 48, "width": 64}, "divisible by 32"),
    ("LTXPipeline", {"num_frames": 10}, "groups of 8"),
    ("StableDiffusionImg2ImgPipeline", {"strength": 2.0}, "strength should in [0.0, 1.0]"),
    ("StableDiffusionControlNetPipeline", {"control_guidance_start": [0.9], "control_guidance_end": [0.1]}, "0.9"),
    ("StableDiffusionControlNetPipeline", {"control_guidance_start": [0.1, 0.2]}, "has 2 elements"),
]


def folder_of(tmp_path: Path, class_name: str) -> Path:
    parts = PARTS[class_name]
    for name, (_, config) in parts.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(config))
    index = {name: ["diffusers", part] for name, (part, _) in parts.items()}
    (tmp_path / "model_index.json").write_text(json.dumps({"_class_name": class_name, **index}))
    return tmp_path


def request_of(class_name: str, **diffusion: object) -> GenerateRequest:
    is_control = "ControlNet" in class_name
    images = (IMAGE,) if "Img2Img" in class_name else ()
    return GenerateRequest("0", "x", images=images, control_images=(IMAGE,) * is_control, diffusion=diffusion)


@pytest.mark.parametrize(("class_name", "arguments", "reason"), WRONG)
def test_a_wrong_value_is_refused(class_name: str, arguments: dict[str, object], reason: str, tmp_path: Path) -> None:
    folder = folder_of(tmp_path, class_name)
    with pytest.raises(InputError, match=reason.replace("[", r"\[")):
        check_request(class_name, folder, DiffusionStageConfig.named("image"), request_of(class_name, **arguments))


@pytest.mark.parametrize("class_name", PARTS)
def test_a_request_that_fits_is_not(class_name: str, tmp_path: Path) -> None:
    size = {} if "Img2Img" in class_name else {"height": 64, "width": 96}
    check_request(
        class_name, folder_of(tmp_path, class_name), DiffusionStageConfig.named("image"), request_of(class_name, **size)
    )


def test_what_the_files_do_not_tell_is_left_to_the_loaded_pipeline(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, "QwenImagePipeline")
    (folder / "vae" / "config.json").unlink()
    (folder / "model_index.json").write_text(
        '{"_class_name": "QwenImagePipeline", "vae": ["elsewhere", "OtherVAE"], "means": [0, 1, 2]}'
    )
    config = DiffusionStageConfig.named("image")
    check_request("QwenImagePipeline", folder, config, request_of("QwenImagePipeline", height=72, width=72))
    control = tmp_path / "control"
    control.mkdir()
    tensor = {"image": CallFile("tensor", np.zeros((1, 3, 64, 64), np.float32))}
    request = GenerateRequest("0", "x", call_files=tensor)
    check_request(
        "StableDiffusionControlNetPipeline", folder_of(control, "StableDiffusionControlNetPipeline"), config, request
    )


def test_the_settings_of_the_stage_are_checked_too(tmp_path: Path) -> None:
    folder, name = folder_of(tmp_path, "WanPipeline"), "WanPipeline"
    for config, reason in (
        (DiffusionStageConfig.named("image", call={"num_frames": 7}), "not 7"),
        (DiffusionStageConfig.named("image", call={"numframes": 5}), "stage `image`: .* no argument `numframes`"),
        (DiffusionStageConfig.named("image", width=20), "divisible by 16 but are 480 and 20"),
    ):
        with pytest.raises(InputError, match=reason):
            check_request(name, folder, config, request_of(name))


def test_a_rate_that_nobody_sets_is_a_warning_that_names_the_option() -> None:
    config = DiffusionStageConfig.named("video")
    warning = check_request("MochiPipeline", None, config, request_of("MochiPipeline"))
    assert warning is not None and "10 frames per second" in warning and "`--fps`" in warning
    assert check_request("MochiPipeline", None, config, request_of("MochiPipeline", fps="24")) is None
    assert check_request("WanPipeline", None, config, request_of("WanPipeline")) is None, "its example has a rate"


def test_a_length_in_seconds_is_one_in_frames(tmp_path: Path) -> None:
    folder, config = folder_of(tmp_path, "WanPipeline"), DiffusionStageConfig.named("video")
    check_request("WanPipeline", folder, config, request_of("WanPipeline", duration=2.0, fps="12"))
    for wrong, reason in (({"num_frames": 5}, "exclude each other"), ({"duration": 86_400.0}, "from 1 to 100000")):
        with pytest.raises(InputError, match=reason):
            request = request_of("WanPipeline", **{"duration": 2.0, "fps": "12", **wrong})
            check_request("WanPipeline", folder, config, request)
