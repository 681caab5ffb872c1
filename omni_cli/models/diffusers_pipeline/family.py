"""Any pipeline of diffusers: one stage, from a prompt and media to images, audio or a video."""

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
            makes=f"{_HERE}.inputs:made_by",
            takes=f"{_HERE}.inputs:inputs_of",
        ),
    ),
    builtins={
        "tiny-audio": f"{_HERE}.audio_builder:tiny_audio",
        "tiny-edit": f"{_HERE}.edit_builder:tiny_edit",
        "tiny-image": f"{_HERE}.builder:tiny_image",
        "tiny-video": f"{_HERE}.video_builder:tiny_video",
    },
    # It makes one by default, and diffusers saves no part whose argument has a default.
    unsaved_parts={"LongCatAudioDiTPipeline": ("scheduler",)},
    profile=f"{_HERE}.profile:stages",
    published={
        "Qwen/Qwen-Image": CheckpointNeeds(58 * 10**9, 80 * 10**9, "QwenImagePipeline"),
        "Qwen/Qwen-Image-Edit": CheckpointNeeds(58 * 10**9, 80 * 10**9, "QwenImageEditPipeline"),
        # 25 GB of it are the transformer in float32.
        "Tongyi-MAI/Z-Image-Turbo": CheckpointNeeds(33 * 10**9, 24 * 10**9, "ZImagePipeline"),
        "black-forest-labs/FLUX.2-klein-4B": CheckpointNeeds(16 * 10**9, 24 * 10**9, "Flux2KleinPipeline"),
        # In float32; the profile loads half of that.
        "stabilityai/stable-audio-open-1.0": CheckpointNeeds(53 * 10**8, 8 * 10**9, "StableAudioPipeline"),
        # Two experts of 14.3 B parameters in float32, of which the profiles load half, and a text encoder in bfloat16.
        "Wan-AI/Wan2.2-T2V-A14B-Diffusers": CheckpointNeeds(126 * 10**9, 80 * 10**9, "WanPipeline"),
        "Wan-AI/Wan2.2-I2V-A14B-Diffusers": CheckpointNeeds(126 * 10**9, 80 * 10**9, "WanImageToVideoPipeline"),
    },
)
