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
            takes=f"{_HERE}.inputs:inputs_of",
        ),
    ),
    builtins={
        "tiny-edit": f"{_HERE}.edit_builder:tiny_edit",
        "tiny-image": f"{_HERE}.builder:tiny_image",
    },
    profile=f"{_HERE}.profile:image_stages",
    published={
        "Qwen/Qwen-Image": CheckpointNeeds(58 * 10**9, 80 * 10**9, "QwenImagePipeline"),
        "Qwen/Qwen-Image-Edit": CheckpointNeeds(58 * 10**9, 80 * 10**9, "QwenImageEditPipeline"),
        # 25 GB of it are the transformer in float32.
        "Tongyi-MAI/Z-Image-Turbo": CheckpointNeeds(33 * 10**9, 24 * 10**9, "ZImagePipeline"),
        "black-forest-labs/FLUX.2-klein-4B": CheckpointNeeds(16 * 10**9, 24 * 10**9, "Flux2KleinPipeline"),
    },
)
