"""Any pipeline of diffusers: one stage, from a prompt and media to images, audio or a video."""

from __future__ import annotations

from pathlib import Path

from omni_cli.config.families import CheckpointNeeds, Family, Machine, StageRole

_HERE = "omni_cli.models.diffusers_pipeline"
_QWEN_IMAGE = {"transformer": 20_430 * 10**6, "text_encoder": 8292 * 10**6, "vae": 127 * 10**6}
_WAN = {
    "transformer": 14_288 * 10**6,
    "transformer_2": 14_288 * 10**6,
    "text_encoder": 5681 * 10**6,
    "vae": 127 * 10**6,
}

FAMILY = Family(
    name="diffusers_pipeline",
    title="a diffusers pipeline",
    entry_file="model_index.json",
    roles=(
        StageRole(
            name="image",
            kind="diffusion",
            backend="diffusers",
            stage="omni_cli.backends.diffusers.stage:DiffusersStage",
            takes=f"{_HERE}.inputs:get_call",
        ),
    ),
    builtins={
        "tiny-audio": "omni_cli.checkpoints.tiny_pipelines:tiny_audio",
        "tiny-edit": "omni_cli.checkpoints.tiny_pipelines:tiny_edit",
        "tiny-image": "omni_cli.checkpoints.tiny_pipelines:tiny_image",
        "tiny-video": "omni_cli.checkpoints.tiny_pipelines:tiny_video",
    },
    # The pipeline makes its scheduler by default, and diffusers saves no part whose argument has a default.
    unsaved_parts={"LongCatAudioDiTPipeline": ("scheduler",)},
    profile=f"{_HERE}.family:stages",
    published={
        "Qwen/Qwen-Image": CheckpointNeeds(58 * 10**9, _QWEN_IMAGE, "QwenImagePipeline"),
        "Qwen/Qwen-Image-Edit": CheckpointNeeds(58 * 10**9, _QWEN_IMAGE, "QwenImageEditPipeline"),
        # 25 GB of it are the transformer in float32.
        "Tongyi-MAI/Z-Image-Turbo": CheckpointNeeds(
            33 * 10**9,
            {"transformer": 6155 * 10**6, "text_encoder": 4022 * 10**6, "vae": 84 * 10**6},
            "ZImagePipeline",
        ),
        "black-forest-labs/FLUX.2-klein-4B": CheckpointNeeds(
            16 * 10**9,
            {"transformer": 3876 * 10**6, "text_encoder": 4022 * 10**6, "vae": 84 * 10**6},
            "Flux2KleinPipeline",
        ),
        # In float32; the profile loads half of that.
        "stabilityai/stable-audio-open-1.0": CheckpointNeeds(
            53 * 10**8,
            {"transformer": 1057 * 10**6, "text_encoder": 110 * 10**6, "vae": 156 * 10**6},
            "StableAudioPipeline",
        ),
        # Two experts in float32, of which the profiles load half, and a text encoder in bfloat16.
        "Wan-AI/Wan2.2-T2V-A14B-Diffusers": CheckpointNeeds(126 * 10**9, _WAN, "WanPipeline"),
        "Wan-AI/Wan2.2-I2V-A14B-Diffusers": CheckpointNeeds(126 * 10**9, _WAN, "WanImageToVideoPipeline"),
        "Lightricks/LTX-2": CheckpointNeeds(
            68 * 10**9,
            {
                "transformer": 18_876 * 10**6,
                "text_encoder": 12_203 * 10**6,
                "connectors": 1431 * 10**6,
                "vae": 1222 * 10**6,
                "audio_vae": 53 * 10**6,
                "vocoder": 56 * 10**6,
            },
            "LTX2Pipeline",
        ),
    },
    reference=f"{_HERE}.reference:PipelineReference",
)


def stages(folder: Path, machine: Machine) -> dict[str, object]:
    """One stage, named after what it makes; steps, sizes, length and guidance are the pipeline's own defaults."""
    return {"image": {"max_num_seqs": 1 if machine.device == "cpu" else 4, "output_copy": "async"}}
