"""Any image pipeline of diffusers: one stage, from a prompt and images to an image."""

from __future__ import annotations

from omni_cli.families import CheckpointNeeds, Family, StageRole

_HERE = "omni_cli.models.diffusers_pipeline"

FAMILY = Family(
    name="diffusers_pipeline",
    title="a diffusers pipeline",
    entry_file="model_index.json",
    roles=(
        StageRole(
            name="image",
            kind="diffusion",
            backend="diffusers",
            stage="omni_cli.diffusers_integration.stage:DiffusersStage",
            makes="image",
            takes=f"{_HERE}.inputs:fields_of",
            needs=f"{_HERE}.inputs:needed_fields_of",
        ),
    ),
    builtins={"tiny-image": f"{_HERE}.builder:tiny_image"},
    profile=f"{_HERE}.profile:image_stages",
    published={
        "Qwen/Qwen-Image": CheckpointNeeds(download_bytes=58 * 10**9, gpu_bytes=80 * 10**9),
        "Qwen/Qwen-Image-Edit": CheckpointNeeds(download_bytes=58 * 10**9, gpu_bytes=80 * 10**9),
        # 25 GB of it are the transformer in float32.
        "Tongyi-MAI/Z-Image-Turbo": CheckpointNeeds(download_bytes=33 * 10**9, gpu_bytes=24 * 10**9),
        "black-forest-labs/FLUX.2-klein-4B": CheckpointNeeds(download_bytes=16 * 10**9, gpu_bytes=24 * 10**9),
    },
)
